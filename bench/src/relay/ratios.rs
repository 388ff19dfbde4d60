//! Ratios of the relay's figures to those of the other ways in the same round, as medians over all rounds.

use std::collections::BTreeMap;
use std::time::Duration;

/// The way that is compared with the others.
const RELAY: &str = "relay";

/// The measurements of one way in one round.
#[derive(Clone, Copy)]
pub(super) struct RelayFigures {
    /// gigabits a second of one stream
    pub(super) throughput: f64,
    /// processor seconds of the relaying process for a gigabit; 0 without one
    pub(super) cpu: f64,
    /// new connections, with one request each, in a time that is the same for all
    pub(super) connections: usize,
    /// the median on an established connection
    pub(super) round_trip: Duration,
}

/// The figures of all rounds, by way.
#[derive(Default)]
pub(super) struct Rounds(BTreeMap<&'static str, Vec<RelayFigures>>);

// === impl Rounds ===

impl Rounds {
    pub(super) fn add(&mut self, way: &'static str, figures: RelayFigures) {
        self.0.entry(way).or_default().push(figures);
    }

    /// Prints the relay's figures beside those of each other way, if both were measured.
    pub(super) fn print(&self) {
        let Some(relay) = self.0.get(RELAY) else { return };
        println!("\n== {RELAY} beside the others, medians of {} rounds", relay.len());
        for (way, others) in self.0.iter().filter(|&(&way, _)| way != RELAY) {
            let of = |compared: fn(&RelayFigures, &RelayFigures) -> f64| {
                middle(relay.iter().zip(others).map(|(relay, other)| compared(relay, other)).collect())
            };
            println!(
                "beside {way:16} stream {:5.2} x   connections {:5.2} x   round trip {:+6.1} us",
                of(|relay, other| relay.throughput / other.throughput),
                of(|relay, other| count(relay.connections) / count(other.connections)),
                of(|relay, other| (relay.round_trip.as_secs_f64() - other.round_trip.as_secs_f64()) * 1e6),
            );
            if others.iter().all(|other| other.cpu > 0.0) {
                println!("beside {way:16} CPU per gigabit {:5.2} x", of(|relay, other| relay.cpu / other.cpu));
            }
        }
    }
}

/// A count of connections, to compute with.
#[expect(clippy::cast_precision_loss, reason = "a count of seconds")]
pub(super) fn count(connections: usize) -> f64 {
    connections as f64
}

/// The median; not a number without any.
fn middle(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_unstable_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
}
