//! Prints the results as Markdown tables.

use std::collections::BTreeSet;
use std::time::Duration;

use super::figures::{Figures, count, fan_out, float, scaled, sum_of};
use super::options::{FleetOptions, FleetSide, Phase};
use super::side::UNAVAILABLE;

/// The period that the changes of `churn` represent.
const HOUR: Duration = Duration::from_hours(1);
/// Largest ratio of a phase's length to that of the server alone for CPU times to be comparable.
const COMPARABLE: f64 = 1.25;
const MIB: f64 = 1_048_576.0;
/// Operations of etcd that read.
const READS: [&str; 3] = ["get", "list", "listWithCount"];

/// Measurements of each side.
pub(super) type Measured = Vec<(FleetSide, Vec<(Phase, Figures)>)>;

/// Extracts one number from a phase's figures; `None` if the side has none.
type Number = Box<dyn Fn(&Figures) -> Option<f64>>;

/// One number for all sides.
struct TableRow {
    what: String,
    digits: usize,
    of: Number,
}

/// Prints a table for each phase, and one with the extrapolation to the given cluster size.
pub(super) fn print(options: &FleetOptions, measured: &Measured) {
    for &phase in &options.phases {
        println!("\n### {phase}\n\n{}", table(phase, measured));
    }
    println!("\n### Calculated for {} nodes\n\n{}", options.cluster, extrapolation(options, measured));
}

fn of(measured: &Measured, side: FleetSide, phase: Phase) -> Option<&Figures> {
    let phases = &measured.iter().find(|(found, _)| *found == side)?.1;
    phases.iter().find(|(found, _)| *found == phase).map(|(_, figures)| figures)
}

/// The table of a phase.
fn table(phase: Phase, measured: &Measured) -> String {
    let [alone, ours, upstream] =
        [FleetSide::Alone, FleetSide::Ours, FleetSide::Upstream].map(|side| of(measured, side, phase));
    let all = [alone, ours, upstream];
    let mut text = "| | server alone | ours | upstream's | ours ÷ upstream's |\n|---|---:|---:|---:|---:|\n".to_owned();
    for row in rows(&all) {
        let [alone, ours, upstream] = all.map(|figures| (row.of)(figures?));
        text += &line(&row.what, row.digits, &[alone, ours, upstream], ratio([ours, upstream]));
    }
    text
}

fn rows(all: &[Option<&Figures>]) -> Vec<TableRow> {
    let labels: BTreeSet<_> = all.iter().flatten().flat_map(|figures| figures.requests.keys().cloned()).collect();
    let mut rows = vec![TableRow::new("requests", 0, |figures| Some(count(figures.all_requests())))];
    for label in labels {
        rows.push(TableRow::new(&format!("– {label}"), 0, move |figures| {
            Some(count(figures.requests.get(&label).copied().unwrap_or(0)))
        }));
    }
    rows.extend([
        TableRow::new("attempts to connect", 0, |figures| Some(count(figures.attempts))),
        TableRow::new("connections accepted", 0, |figures| Some(count(figures.connections))),
        TableRow::new("sent to the proxies, MiB", 2, |figures| Some(count(figures.received) / MIB)),
        TableRow::new("sent by the proxies, KiB", 0, |figures| Some(count(figures.sent) / 1024.0)),
        TableRow::new("API server, processor time, s", 2, |figures| Some(figures.used.api.as_secs_f64())),
        TableRow::new("API server, resident memory at the end, MiB", 0, |figures| Some(figures.memory.now)),
        TableRow::new("API server, peak of that, MiB", 0, |figures| Some(figures.memory.peak)),
        TableRow::new("etcd, processor time, s", 2, |figures| Some(figures.used.store.as_secs_f64())),
        TableRow::new("etcd, requests", 0, |figures| Some(figures.store_requests.values().sum())),
        TableRow::new("– of them reads", 0, |figures| Some(sum_of(&figures.store_requests, &READS))),
        TableRow::new("all proxies, processor time, s", 1, |figures| {
            figures.with_proxies(figures.proxies.as_secs_f64())
        }),
        TableRow::new("all proxies, resident memory, MiB", 0, |figures| figures.with_proxies(figures.proxies_memory)),
        TableRow::new("half of the proxies converged after, s", 2, |figures| {
            Some(figures.rightness().0?.as_secs_f64())
        }),
        TableRow::new("every proxy converged after, s", 2, |figures| Some(figures.rightness().1?.as_secs_f64())),
        TableRow::new("proxies not converged", 0, |figures| figures.with_proxies(float(figures.wrong().len()))),
        TableRow::new("length of the phase, s", 0, |figures| Some(figures.duration.as_secs_f64())),
    ]);
    rows
}

/// The extrapolated load on a control plane, minus that of the server alone.
fn extrapolation(options: &FleetOptions, measured: &Measured) -> String {
    let mut text = "| | ours | upstream's | ours ÷ upstream's |\n|---|---:|---:|---:|\n".to_owned();
    for &phase in &options.phases {
        let alone = of(measured, FleetSide::Alone, phase);
        let sides = [FleetSide::Ours, FleetSide::Upstream].map(|side| of(measured, side, phase));
        let of_cluster = |value: fn(&Figures) -> f64| {
            let alone = alone.map_or(0.0, value);
            sides.map(|figures| Some(scaled(value(figures?), alone, options.nodes, options.cluster)))
        };
        let mut row = |what: &str, digits, values: [Option<f64>; 2]| {
            text += &line(&format!("{phase}: {what}"), digits, &values, ratio(values));
        };
        row("requests", 0, of_cluster(|figures| count(figures.all_requests())));
        row("attempts to connect", 0, of_cluster(|figures| count(figures.attempts)));
        row("sent to the proxies, MiB", 0, of_cluster(|figures| count(figures.received) / MIB));
        if let Some(alone) = alone {
            // A longer phase contains more of the server's own work.
            let used = |figures: &Figures| {
                let (used, own) = (figures.used.api.as_secs_f64(), alone.used.api.as_secs_f64());
                let comparable = figures.duration <= alone.duration.mul_f64(COMPARABLE);
                comparable.then(|| scaled(used, own, options.nodes, options.cluster))
            };
            row("API server, processor time, s", 0, sides.map(|figures| used(figures?)));
        }
        if phase == Phase::Unavailable {
            let each_second = of_cluster(|figures| count(figures.answered("503")) / UNAVAILABLE.as_secs_f64());
            row("requests a second in that minute", 0, each_second);
        }
        if phase == Phase::Churn {
            let sent = |figures: &Figures| fan_out(count(figures.received), options.nodes, options.cluster, HOUR) / MIB;
            row("with changes in proportion to the nodes, sent, MiB/s", 1, sides.map(|figures| Some(sent(figures?))));
        }
    }
    text
}

fn line(what: &str, digits: usize, values: &[Option<f64>], ratio: Option<f64>) -> String {
    let cell = |value: &Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.digits$}"));
    let cells: Vec<_> = values.iter().map(cell).collect();
    let ratio = ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
    format!("| {what} | {} | {ratio} |\n", cells.join(" | "))
}

fn ratio([ours, upstream]: [Option<f64>; 2]) -> Option<f64> {
    Some(ours? / upstream.filter(|value| *value > 0.0)?)
}

// === impl TableRow ===

impl TableRow {
    fn new(what: &str, digits: usize, of: impl Fn(&Figures) -> Option<f64> + 'static) -> Self {
        Self { what: what.to_owned(), digits, of: Box::new(of) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::audit::Requests;

    fn figures(watches: u64, attempts: u64, right: &[Option<u64>]) -> Figures {
        Figures {
            requests: Requests::from([("watch 200".to_owned(), watches)]),
            attempts,
            received: attempts * 1_048_576,
            right: right.iter().map(|time| time.map(Duration::from_millis)).collect(),
            ..Figures::default()
        }
    }

    fn measured() -> Measured {
        vec![
            (FleetSide::Alone, vec![(Phase::Churn, figures(0, 0, &[]))]),
            (FleetSide::Ours, vec![(Phase::Churn, figures(3, 10, &[Some(120), Some(250)]))]),
            (FleetSide::Upstream, vec![(Phase::Churn, figures(4, 0, &[Some(900), None]))]),
        ]
    }

    #[test]
    fn a_phase_is_a_table_with_ratios_where_there_are_some() {
        let table = table(Phase::Churn, &measured());
        for line in [
            "| requests | 0 | 3 | 4 | 0.75 |",
            "| – watch 200 | 0 | 3 | 4 | 0.75 |",
            "| attempts to connect | 0 | 10 | 0 | – |",
            "| half of the proxies converged after, s | – | 0.12 | 0.90 | 0.13 |",
            "| every proxy converged after, s | – | 0.25 | – | – |",
            "| proxies not converged | – | 0 | 1 | 0.00 |",
        ] {
            assert!(table.lines().any(|found| found == line), "no {line} in\n{table}");
        }
        assert!(super::table(Phase::Start, &measured()).contains("| requests | – | – | – | – |"));
    }

    #[test]
    fn a_cluster_is_calculated_by_phase() {
        let options = FleetOptions { nodes: 2, cluster: 20, phases: vec![Phase::Churn], ..FleetOptions::default() };
        let table = extrapolation(&options, &measured());
        for line in [
            "| churn: requests | 30 | 40 | 0.75 |",
            "| churn: sent to the proxies, MiB | 100 | 0 | – |",
            // 10 MiB in an hour, ten times the nodes, each with ten times the changes
            "| churn: with changes in proportion to the nodes, sent, MiB/s | 0.3 | 0.0 | – |",
        ] {
            assert!(table.lines().any(|found| found == line), "no {line} in\n{table}");
        }
    }
}
