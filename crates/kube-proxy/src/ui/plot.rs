//! Draws the latency of the last changes.

use std::time::Duration;

use maud::{Markup, html};

use crate::report::PastPass;

/// The drawing's size, without unit.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 150.0;
/// Space for the axis' labels at the left and above.
const LEFT: f64 = 60.0;
const TOP: f64 = 14.0;
/// Least maximum of the axis, in seconds, so that microseconds make low bars.
const LEAST: f64 = 0.001;

/// A bar for each pass, oldest at the left: the time that it took, from zero.
pub(super) fn latencies(passes: &[PastPass]) -> Markup {
    let seconds = |pass: &PastPass| pass.elapsed.as_secs_f64();
    let top = passes.iter().map(seconds).fold(LEAST, f64::max);
    let height = HEIGHT - TOP;
    let step = (WIDTH - LEFT) / f64::max(passes.len() as f64, 20.0);
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label="Time that the last changes took until they were in force" {
            line class="axis" x1=(LEFT) y1=(TOP) x2=(WIDTH) y2=(TOP) {}
            line class="axis" x1=(LEFT) y1=(HEIGHT - 1.0) x2=(WIDTH) y2=(HEIGHT - 1.0) {}
            text x="0" y=(TOP + 4.0) { (time(Duration::from_secs_f64(top))) }
            text x="0" y=(HEIGHT - 3.0) { "0" }
            @for (at, pass) in passes.iter().enumerate() {
                @let bar = (height * seconds(pass) / top).max(1.0);
                rect class=(if pass.error.is_some() { "failed" } else { "bar" })
                    x=(format!("{:.1}", LEFT + step * at as f64)) y=(format!("{:.1}", HEIGHT - bar))
                    width=(format!("{:.1}", step * 0.8)) height=(format!("{bar:.1}")) {
                    title { (pass.family) ": " (time(pass.elapsed)) }
                }
            }
        }
    }
}

/// A short time for a person: `0.42 ms`, `13 ms`, `1.3 s`.
pub(super) fn time(length: Duration) -> String {
    let milliseconds = length.as_secs_f64() * 1000.0;
    match milliseconds {
        _ if milliseconds < 10.0 => format!("{milliseconds:.2} ms"),
        _ if milliseconds < 1000.0 => format!("{milliseconds:.0} ms"),
        _ => format!("{:.1} s", milliseconds / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (length, text) in [(0, "0.00 ms"), (420, "0.42 ms"), (13_000, "13 ms"), (1_320_000, "1.3 s")] {
            assert_eq!(time(Duration::from_micros(length)), text);
        }
    }

    #[test]
    fn a_plot_without_passes_is_empty() {
        let text = latencies(&[]).into_string();
        assert!(text.contains("1.00 ms") && !text.contains("<rect"), "{text}");
    }
}
