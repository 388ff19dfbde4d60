//! Runs the phases of one side, one after another.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::figures::{Figures, Sampled};
use super::gate::{Order, ServerGate};
use super::marker::Marker;
use super::network::Network;
use super::objects::{hour, node_name, reset};
use super::options::{FleetOptions, FleetSide, Phase};
use super::proxies::Proxies;
use super::server::MeasuredServer;

/// Minimum length of phase `start`.
const START: Duration = Duration::from_secs(45);
/// Time in which the changes of an hour are made.
const CHURN: Duration = Duration::from_secs(60);
/// Duration of the 503 answers.
pub(super) const UNAVAILABLE: Duration = Duration::from_secs(60);
/// Observation time after an outage: the relist that checks a doubtful history follows within a minute, and upstream backs
/// off up to half a minute.
const RECOVERY: Duration = Duration::from_secs(65);
/// Observation time after a smaller event.
const AFTER: Duration = Duration::from_secs(5);
/// Time for all reconnections after upstream's check of its certificate.
const RECONNECTED: Duration = Duration::from_secs(20);
/// Time limit for the proxies to be up to date.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval of upstream's checks of its certificate, from its start (`CertCallbackRefreshDuration` of client-go).
const UPSTREAM_CHECKS: Duration = Duration::from_secs(300);

/// The servers and the network, shared by all sides.
pub(super) struct SideRunner<'a> {
    pub(super) options: &'a FleetOptions,
    pub(super) folder: PathBuf,
    pub(super) network: Network<'a>,
    pub(super) gate: ServerGate,
    pub(super) server: MeasuredServer<'a>,
    pub(super) marker: Marker<'a>,
}

/// The times of a phase.
struct PhaseTimes {
    /// earliest time at which a proxy can be up to date
    since: Instant,
    /// earliest end of the phase
    until: Instant,
}

// === impl SideRunner ===

impl<'a> SideRunner<'a> {
    /// Runs the phases of a side with a freshly restarted server.
    pub(super) fn run(&mut self, side: FleetSide, executable: Option<&Path>) -> anyhow::Result<Vec<(Phase, Figures)>> {
        self.restart()?;
        let FleetOptions { nodes, services, endpoints, .. } = *self.options;
        self.server.ask_all(&reset(nodes, services, endpoints));
        let nodes = if executable.is_some() { nodes } else { 0 };
        let mut proxies = Proxies::new(&mut self.network, nodes, self.folder.join(side.to_string()))?;
        let mut all = Vec::new();
        for &phase in &self.options.phases {
            // The other phases have no effect without proxies.
            if executable.is_none() && !matches!(phase, Phase::Churn | Phase::Restart) {
                continue;
            }
            let figures = self.measure(phase, &mut proxies, executable)?;
            print_progress(side, phase, &figures, &proxies);
            all.push((phase, figures));
        }
        Ok(all)
    }

    fn measure(&mut self, phase: Phase, proxies: &mut Proxies, executable: Option<&Path>) -> anyhow::Result<Figures> {
        self.server.reset_peak()?;
        self.server.requests()?;
        let before = self.sampled(proxies).begin()?;
        let event = match phase {
            Phase::Start => self.start(proxies, executable)?,
            Phase::Churn => self.churn()?,
            Phase::Restart => {
                self.restart()?;
                let event = self.mark()?;
                PhaseTimes { until: event.since + RECOVERY, ..event }
            }
            Phase::Unavailable => self.unavailable()?,
            Phase::Certificates => self.rotate(proxies.started())?,
        };
        let right = self.marker.wait(&proxies.nodes, event.until.max(event.since + PATIENCE))?;
        std::thread::sleep(event.until.saturating_duration_since(Instant::now()));
        let after = self.sampled(proxies).end()?;
        let mut figures = after.since(&before);
        figures.add_requests(self.server.requests()?);
        figures.memory = self.server.memory()?;
        figures.proxies_memory = proxies.memory()?;
        figures.right = right.into_iter().map(|at| at.map(|at| at.saturating_duration_since(event.since))).collect();
        Ok(figures)
    }

    fn sampled<'b>(&'b self, proxies: &'b Proxies) -> Sampled<'b, 'a> {
        Sampled { network: &self.network, gate: &self.gate, server: &self.server, proxies }
    }

    fn start(&self, proxies: &mut Proxies, executable: Option<&Path>) -> anyhow::Result<PhaseTimes> {
        let since = Instant::now();
        if let Some(executable) = executable {
            let kubeconfig = self.folder.join("kubeconfig");
            self.server.write_kubeconfig(&kubeconfig)?;
            proxies.start(executable, &kubeconfig)?;
        }
        Ok(PhaseTimes { since, until: since + START })
    }

    /// The changes of an hour, evenly spread.
    fn churn(&mut self) -> anyhow::Result<PhaseTimes> {
        let FleetOptions { nodes, services, endpoints, changes, .. } = *self.options;
        let (begin, requests) = (Instant::now(), hour(changes, nodes, services, endpoints));
        let pause = CHURN / u32::try_from(requests.len().max(1))?;
        let mut due = begin;
        for request in &requests {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.server.ask(request);
            due += pause;
        }
        let event = self.mark()?;
        Ok(PhaseTimes { until: event.since.max(begin + CHURN) + AFTER, ..event })
    }

    fn unavailable(&mut self) -> anyhow::Result<PhaseTimes> {
        let begin = Instant::now();
        self.gate.order(Order::Unavailable);
        self.marker.advance(&self.server)?;
        std::thread::sleep((begin + UNAVAILABLE).saturating_duration_since(Instant::now()));
        self.gate.order(Order::Pass);
        let since = Instant::now();
        Ok(PhaseTimes { since, until: since + RECOVERY })
    }

    /// Rotates the certificates; lasts until upstream's proxies have read the new one.
    fn rotate(&mut self, started: Instant) -> anyhow::Result<PhaseTimes> {
        let begin = Instant::now();
        self.server.rotate();
        let mut check = started + UPSTREAM_CHECKS;
        while check < begin {
            check += UPSTREAM_CHECKS;
        }
        std::thread::sleep((check + RECONNECTED).saturating_duration_since(Instant::now()));
        self.mark()
    }

    /// Ends the API server and starts it again; connections are refused meanwhile.
    fn restart(&mut self) -> anyhow::Result<()> {
        self.gate.order(Order::Close);
        self.server.stop()?;
        self.gate.order(Order::Pass);
        let took = self.server.resume();
        println!("  the API server was ready {:.1} s after its start", took.as_secs_f64());
        Ok(())
    }

    fn mark(&mut self) -> anyhow::Result<PhaseTimes> {
        let since = self.marker.advance(&self.server)?;
        Ok(PhaseTimes { since, until: since + AFTER })
    }
}

fn print_progress(side: FleetSide, phase: Phase, figures: &Figures, proxies: &Proxies) {
    let wrong = figures.wrong();
    let right = figures.right.len() - wrong.len();
    println!("{side}, {phase}: {:.0} s, {right} of {} converged", figures.duration.as_secs_f64(), figures.right.len());
    for node in wrong {
        print!("  not converged: {}; the end of its log:\n{}", node_name(node), proxies.log_tail(node));
    }
}
