//! Draws the figures of a run as an SVG: a pair of bars for each figure, ours above upstream's.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use maud::{Markup, PreEscaped, html};

use crate::figures::{Figures, ProxyFigures};

/// The drawing's width, and the left end and greatest length of its bars, without unit.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 84.0;
const LONGEST: f64 = 560.0;
/// Heights of a panel, of its title and of a bar's line, and the thickness of a bar.
const PANEL: f64 = 78.0;
const TITLE: f64 = 26.0;
const LINE: f64 = 22.0;
const BAR: f64 = 15.0;
/// Height of the source's lines, below the panels.
const SOURCE: f64 = 44.0;
/// Least length of a bar, so that it can be seen.
const LEAST: f64 = 1.0;

/// Colours by the reader's preference, since the drawing stands on pages of both kinds.
const STYLE: &str = "
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.source { font-size: 11px; fill: #59636e }
.ours { fill: #0969da }
.upstream { fill: #9aa4af }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .source { fill: #9198a1 }
  .ours { fill: #4493f8 }
  .upstream { fill: #656c76 }
}
";

/// A figure of both proxies.
struct Panel {
    title: String,
    unit: Unit,
    ours: f64,
    upstream: f64,
}

/// The unit of a panel's values.
#[derive(Clone, Copy)]
enum Unit {
    Seconds,
    Mebibytes,
}

/// Draws the chart of a file with figures, beside it with the ending `svg`.
///
/// # Errors
/// If the file holds no figures, or the drawing can't be written.
pub(crate) fn run(path: &Path) -> anyhow::Result<()> {
    let drawing = path.with_extension("svg");
    fs::write(&drawing, chart(&Figures::read(path)?)).with_context(|| format!("writing {}", drawing.display()))
}

/// The drawing of these figures.
fn chart(figures: &Figures) -> String {
    let panels = panels(figures);
    let height = PANEL * panels.len() as f64 + SOURCE;
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (height) } width=(WIDTH) height=(height)
            role="img" aria-label="Figures of Ferry and of upstream's kube-proxy, measured in one run" {
            style { (PreEscaped(STYLE)) }
            @for (at, panel) in panels.iter().enumerate() {
                (panel.draw(PANEL * at as f64))
            }
            @for (at, line) in source(figures).iter().enumerate() {
                text class="source" x="0" y=(height - SOURCE + 18.0 + 16.0 * at as f64) { (line) }
            }
        }
    };
    drawing.into_string() + "\n"
}

fn panels(figures: &Figures) -> Vec<Panel> {
    let panel = |title: &str, unit, of: fn(&ProxyFigures) -> f64| Panel {
        title: title.to_owned(),
        unit,
        ours: of(&figures.ours),
        upstream: of(&figures.upstream),
    };
    let slowest =
        format!("The same, the slowest of {} and of {} changes", figures.ours.changes, figures.upstream.changes);
    vec![
        panel("One endpoint replaced: time until the rule is in force, median", Unit::Seconds, |of| {
            of.change_p50_seconds
        }),
        panel(&slowest, Unit::Seconds, |of| of.change_max_seconds),
        panel("Start: processor time until the last rule is in force", Unit::Seconds, |of| of.start_cpu_seconds),
        panel("1,000 changes in a minute: processor time", Unit::Seconds, |of| of.spread_cpu_seconds),
        panel("Resident memory", Unit::Mebibytes, |of| of.resident_mib),
    ]
}

/// The conditions of the measurement, in two lines.
fn source(figures: &Figures) -> [String; 2] {
    let Figures { mode, services, endpoints, kernel, cores, upstream, .. } = figures;
    [
        format!(
            "Mode {mode}, {services} Services with {endpoints} endpoints each, from an API server over TLS; upstream: {}.",
            upstream.version
        ),
        format!("One run on {cores} shared cores, Linux {kernel}. Processor time includes that of nft. Linear scales."),
    ]
}

// === impl Panel ===

impl Panel {
    fn draw(&self, top: f64) -> Markup {
        let longest = f64::max(self.ours, self.upstream);
        let length = |value: f64| if longest > 0.0 { f64::max(LONGEST * value / longest, LEAST) } else { LEAST };
        html! {
            text class="title" x="0" y=(top + 18.0) { (self.title) }
            @for (line, (class, label, value)) in [("ours", "Ferry", self.ours), ("upstream", "upstream", self.upstream)].into_iter().enumerate() {
                @let y = top + TITLE + LINE * line as f64;
                text x="0" y=(y + 12.0) { (label) }
                rect class=(class) x=(LEFT) y=(y) width=(format!("{:.1}", length(value))) height=(BAR) {}
                text x=(format!("{:.1}", LEFT + length(value) + 8.0)) y=(y + 12.0) { (self.unit.text(value)) }
            }
        }
    }
}

// === impl Unit ===

impl Unit {
    /// The value with two significant digits or more.
    fn text(self, value: f64) -> String {
        match self {
            Self::Mebibytes => format!("{value:.0} MiB"),
            Self::Seconds if value < 0.01 => format!("{:.2} ms", value * 1e3),
            Self::Seconds if value < 10.0 => format!("{value:.2} s"),
            Self::Seconds => format!("{value:.1} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(seconds: f64) -> ProxyFigures {
        ProxyFigures {
            version: "<v1>".to_owned(),
            start_seconds: seconds,
            start_cpu_seconds: seconds,
            resident_mib: 29.4,
            tool_peak_mib: 0.0,
            changes: 20,
            change_p50_seconds: seconds / 1000.0,
            change_max_seconds: seconds,
            spread_cpu_seconds: seconds,
        }
    }

    fn figures(ours: f64, upstream: f64) -> Figures {
        Figures {
            mode: "nftables".to_owned(),
            services: 10_000,
            endpoints: 10,
            kernel: "6.18".to_owned(),
            cores: 2,
            ours: proxy(ours),
            upstream: proxy(upstream),
        }
    }

    #[test]
    fn bars_are_in_proportion_and_have_their_values_as_text() {
        let drawing = chart(&figures(0.5, 5.0));
        assert_eq!(drawing.matches("width=\"56.0\"").count(), 4, "{drawing}");
        assert_eq!(drawing.matches("width=\"560.0\"").count(), 6, "four of upstream, two of equal memory: {drawing}");
        for text in ["0.50 ms", "5.00 ms", "0.50 s", "5.00 s", "29 MiB", "&lt;v1&gt;"] {
            assert!(drawing.contains(text), "{text} in {drawing}");
        }
    }

    #[test]
    fn figures_of_nothing_make_bars_that_can_be_seen() {
        let drawing = chart(&figures(0.0, 0.0));
        assert!(drawing.contains("width=\"1.0\"") && !drawing.contains("NaN"), "{drawing}");
    }

    #[test]
    fn the_documented_chart_is_that_of_the_kept_figures() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let kept = Figures::read(&docs.join("measured.json")).unwrap();
        assert!(
            fs::read_to_string(docs.join("measured.svg")).unwrap() == chart(&kept),
            "docs/measured.svg is another drawing: cargo xt bench --chart draws it"
        );
    }

    #[test]
    fn a_file_without_figures_is_named() {
        let path = std::env::temp_dir().join(format!("ferry-bench-figures-{}", std::process::id()));
        fs::write(&path, "{\"mode\": 3}").unwrap();
        let error = format!("{:#}", Figures::read(&path).unwrap_err());
        fs::remove_file(&path).unwrap();
        assert!(error.contains("ferry-bench-figures") && error.contains("holds no figures"), "{error}");
    }
}
