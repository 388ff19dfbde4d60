//! The counters of a phase, and calculations with them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::audit::Requests;
use super::gate::{Passed, ServerGate};
use super::network::Network;
use super::proxies::Proxies;
use super::server::{MeasuredServer, ServerCpu, ServerMemory, StoreRequests};

/// Snapshot of the counters.
pub(super) struct Sample {
    at: Instant,
    passed: Passed,
    attempts: u64,
    used: ServerCpu,
    store_requests: StoreRequests,
    proxies: Duration,
}

/// The difference of two samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) duration: Duration,
    pub(super) requests: Requests,
    /// SYN packets to the gate
    pub(super) attempts: u64,
    pub(super) connections: u64,
    /// bytes from the proxies
    pub(super) sent: u64,
    /// bytes to the proxies
    pub(super) received: u64,
    pub(super) used: ServerCpu,
    pub(super) store_requests: StoreRequests,
    pub(super) memory: ServerMemory,
    /// CPU time of the proxies
    pub(super) proxies: Duration,
    /// memory of all proxies in MiB
    pub(super) proxies_memory: f64,
    /// time until each proxy was up to date; `None` if it never was
    pub(super) right: Vec<Option<Duration>>,
}

/// The sources of a sample.
#[derive(Clone, Copy)]
pub(super) struct Sampled<'a, 'hub> {
    pub(super) network: &'a Network<'hub>,
    pub(super) gate: &'a ServerGate,
    pub(super) server: &'a MeasuredServer<'hub>,
    pub(super) proxies: &'a Proxies,
}

// === impl Sampled ===

impl Sampled<'_, '_> {
    /// Samples at the start of a phase. The server's metrics are read first, so that the cost of reading them doesn't count.
    pub(super) fn begin(self) -> anyhow::Result<Sample> {
        let store_requests = self.server.store_requests();
        Ok(Sample { store_requests, ..self.counters()? })
    }

    /// Samples at the end of a phase. The server's metrics are read last, so that the cost of reading them doesn't count.
    pub(super) fn end(self) -> anyhow::Result<Sample> {
        let sample = self.counters()?;
        Ok(Sample { store_requests: self.server.store_requests(), ..sample })
    }

    fn counters(self) -> anyhow::Result<Sample> {
        Ok(Sample {
            at: Instant::now(),
            passed: self.gate.passed()?,
            attempts: self.network.attempts()?,
            used: self.server.used()?,
            store_requests: StoreRequests::new(),
            proxies: self.proxies.processor_time()?,
        })
    }
}

// === impl Sample ===

impl Sample {
    /// The difference to an earlier sample. The caller adds the requests that the server answered, and the absolute values.
    pub(super) fn since(&self, earlier: &Self) -> Figures {
        let mut requests = self.passed.refused.clone();
        for (label, count) in &earlier.passed.refused {
            if let Some(now) = requests.get_mut(label) {
                *now -= count;
            }
        }
        requests.retain(|_, count| *count > 0);
        let mut store_requests = self.store_requests.clone();
        for (operation, count) in &earlier.store_requests {
            *store_requests.entry(operation.clone()).or_default() -= count;
        }
        Figures {
            duration: self.at - earlier.at,
            requests,
            attempts: self.attempts - earlier.attempts,
            connections: self.passed.connections - earlier.passed.connections,
            sent: self.passed.sent - earlier.passed.sent,
            received: self.passed.received - earlier.passed.received,
            used: ServerCpu {
                api: self.used.api.saturating_sub(earlier.used.api),
                store: self.used.store.saturating_sub(earlier.used.store),
            },
            store_requests,
            proxies: self.proxies.saturating_sub(earlier.proxies),
            ..Figures::default()
        }
    }
}

// === impl Figures ===

impl Figures {
    pub(super) fn all_requests(&self) -> u64 {
        self.requests.values().sum()
    }

    /// Number of requests answered with this status code.
    pub(super) fn answered(&self, code: &str) -> u64 {
        let answered = self.requests.iter().filter(|(label, _)| label.rsplit(' ').next() == Some(code));
        answered.map(|(_, count)| count).sum()
    }

    /// Adds requests that were counted elsewhere.
    pub(super) fn add_requests(&mut self, more: Requests) {
        for (label, count) in more {
            *self.requests.entry(label).or_default() += count;
        }
    }

    /// Times until half of the proxies and until all of them were up to date; `None` if they never were.
    pub(super) fn rightness(&self) -> (Option<Duration>, Option<Duration>) {
        let mut times: Vec<_> = self.right.iter().map(|time| time.unwrap_or(Duration::MAX)).collect();
        times.sort_unstable();
        let at = |index: usize| times.get(index).copied().filter(|time| *time != Duration::MAX);
        (at(times.len().saturating_sub(1) / 2), at(times.len().saturating_sub(1)))
    }

    /// The value, or `None` without proxies.
    pub(super) fn with_proxies(&self, value: f64) -> Option<f64> {
        (!self.right.is_empty()).then_some(value)
    }

    /// Indexes of the proxies that were never up to date.
    pub(super) fn wrong(&self) -> Vec<usize> {
        let all = self.right.iter().enumerate();
        all.filter(|(_, time)| time.is_none()).map(|(node, _)| node).collect()
    }
}

/// Extrapolates the cost of the measured nodes, minus the server's own, to a cluster size.
pub(super) fn scaled(measured: f64, alone: f64, nodes: usize, cluster: usize) -> f64 {
    (measured - alone).max(0.0) / float(nodes) * float(cluster)
}

/// Bytes per second to all proxies of a cluster with changes in proportion to its nodes: each change is sent to every node.
pub(super) fn fan_out(received: f64, nodes: usize, cluster: usize, hour: Duration) -> f64 {
    let growth = float(cluster) / float(nodes);
    received * growth * growth / hour.as_secs_f64()
}

pub(super) fn float(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}

#[expect(clippy::cast_precision_loss, reason = "a number to print")]
pub(super) fn count(number: u64) -> f64 {
    number as f64
}

/// The sum of the values of some keys.
pub(super) fn sum_of(values: &BTreeMap<String, f64>, keys: &[&str]) -> f64 {
    values.iter().filter(|(key, _)| keys.contains(&key.as_str())).map(|(_, value)| value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(refused: &[(&str, u64)], get: f64, connections: u64) -> Sample {
        Sample {
            at: Instant::now(),
            passed: Passed {
                connections,
                refused: refused.iter().map(|&(label, count)| (label.to_owned(), count)).collect(),
                ..Passed::default()
            },
            attempts: connections,
            used: ServerCpu::default(),
            store_requests: StoreRequests::from([("get".to_owned(), get)]),
            proxies: Duration::ZERO,
        }
    }

    #[test]
    fn a_phase_is_the_difference_of_two_samples() {
        let before = sample(&[("list 503", 3), ("get 503", 1)], 10.0, 5);
        let after = sample(&[("list 503", 7), ("get 503", 1), ("watch 503", 2)], 12.0, 9);
        let mut figures = after.since(&before);
        figures.add_requests(Requests::from([("watch 200".to_owned(), 4), ("watch 503".to_owned(), 1)]));
        let want =
            [("list 503", 4), ("watch 200", 4), ("watch 503", 3)].map(|(label, count)| (label.to_owned(), count));
        assert_eq!(figures.requests, Requests::from(want));
        assert_eq!((figures.all_requests(), figures.answered("503"), figures.connections), (11, 7, 4));
        assert_eq!(figures.store_requests.get("get"), Some(&2.0));
    }

    #[test]
    fn rightness_is_that_of_half_and_of_the_last() {
        let second = Duration::from_secs;
        let right = |times: &[Option<u64>]| Figures {
            right: times.iter().map(|time| time.map(second)).collect(),
            ..Figures::default()
        };
        assert_eq!(right(&[Some(3), Some(1), Some(2)]).rightness(), (Some(second(2)), Some(second(3))));
        let figures = right(&[Some(3), None, Some(2)]);
        assert_eq!(figures.rightness(), (Some(second(3)), None));
        assert_eq!(figures.wrong(), [1]);
        assert_eq!(right(&[]).rightness(), (None, None));
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the numbers have exact forms")]
    fn a_cluster_is_extrapolated_beyond_the_server_alone() {
        assert_eq!(scaled(250.0, 50.0, 50, 5000), 20_000.0);
        assert_eq!(scaled(40.0, 50.0, 50, 5000), 0.0);
        // 100 times the nodes, each with 100 times the changes.
        assert_eq!(fan_out(3600.0, 50, 5000, Duration::from_hours(1)), 10_000.0);
    }
}
