//! Makes and judges all connections of one situation, and repeats those whose random choice has missed an endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ferry_api::object::{Family, Protocol};
use ferry_model::Verdict;

use super::judge::{Scene, wants_server};
use super::plan::{AffinityKey, Decided, Try};
use super::remember::AffinityLog;
use super::server::Servers;
use super::terrain::{Addresses, Terrain};
use super::{ask, icmp};
use crate::lab::LabMachine;
use crate::mode::Mode;
use crate::probe::{ProbeOutcome, ProbeTally};

/// Results of the connections of a situation.
#[derive(Default)]
pub(super) struct TrialResult {
    /// number of connections made
    pub(super) connections: usize,
    /// outcomes that contradict the model
    pub(super) faults: Vec<Mismatch>,
}

/// An outcome that contradicts the model.
pub(super) struct Mismatch {
    /// its family
    pub(super) family: Family,
    /// its description, on one line
    pub(super) text: String,
}

/// Largest pool whose every endpoint has to answer; in a larger one, a random choice may miss one.
const SMALL: usize = 4;
/// Further connections to missed endpoints, by turn.
const TURNS: [usize; 4] = [8, 16, 32, 64];

/// The turn of connections whose affinity exists already.
const LAST: usize = usize::MAX;

/// The connections of a situation in progress, and their results.
struct Trial<'a> {
    terrain: &'a Terrain,
    scene: Scene<'a>,
    found: TrialResult,
    /// affinities observed so far
    remembered: AffinityLog,
    /// the endpoints that have answered, by destination and pool
    met: BTreeMap<Group, BTreeSet<SocketAddr>>,
}

/// Connections to one destination with the same pool.
type Group = (Protocol, SocketAddr, Vec<SocketAddr>);

// === impl Trial ===

impl Trial<'_> {
    /// Makes all these connections concurrently, and retries those that timed out, since an overloaded machine loses packets.
    /// The retry doesn't hide rules that lose everything sent to a frontend. But rules with a random choice choose again at the
    /// retry: one broken branch of n shows in one of n² connections. If it stands for an endpoint of a small pool,
    /// [`Trial::meet_all`] detects it too, since that endpoint never answers.
    fn make(&mut self, tries: &[&Try]) {
        let mut again = Vec::new();
        for (tried, outcome) in self.ask(tries) {
            match outcome {
                Some(ProbeOutcome::Timeout) | None if !tried.ask.silent => again.push(tried),
                Some(outcome) => self.note(tried, &outcome),
                None => {}
            }
        }
        for (tried, outcome) in self.ask(&again) {
            if let Some(outcome) = outcome {
                self.note(tried, &outcome);
            }
        }
    }

    fn ask<'t>(&self, tries: &[&'t Try]) -> Vec<(&'t Try, Option<ProbeOutcome>)> {
        let asks: Vec<_> = tries.iter().map(|tried| tried.ask).collect();
        tries.iter().copied().zip(ask::ask_all(self.terrain, &asks)).collect()
    }

    fn note(&mut self, tried: &Try, outcome: &ProbeOutcome) {
        self.found.connections += 1;
        let answered = match self.scene.judge(tried, outcome) {
            Ok(answered) => answered,
            Err(wrong) => return self.fault(tried, outcome, wrong),
        };
        let (Some(endpoint), Verdict::Forward(pool)) = (answered, &tried.verdict) else { return };
        if let Some(affinity_key) = &tried.affinity_key {
            if let Err(known) = self.remembered.note(affinity_key, endpoint) {
                self.fault(tried, outcome, &format!("session affinity requires {known}"));
            }
        } else if pool.len() <= SMALL {
            self.met.entry(group(tried)).or_default().insert(endpoint);
        }
    }

    /// Repeats connections to pools with endpoints that have not answered yet.
    fn meet_all(&mut self, tries: &[Try]) {
        for times in TURNS {
            let mut unmet = BTreeMap::new();
            for tried in tries {
                let group = group(tried);
                let met = self.met.get(&group).map_or(0, BTreeSet::len);
                if met > 0 && met < group.2.len() {
                    unmet.entry(group).or_insert(tried);
                }
            }
            let again: Vec<&Try> = unmet.values().flat_map(|tried| std::iter::repeat_n(*tried, times)).collect();
            self.make(&again);
        }
        let missed = self.met.iter().filter(|(group, met)| met.len() < group.2.len());
        self.found.faults.extend(missed.map(|((protocol, to, pool), met)| {
            let text = format!("{protocol} to {to}: of pool {pool:?} only {met:?} answered");
            Mismatch { family: Family::of(to.ip()), text }
        }));
    }

    /// Checks the answers to pings to cluster IPs: they are refused where no machine has the address.
    fn ping(&mut self, decided: &Decided) {
        let pings = decided.pings(self.scene.addresses);
        self.found.connections += pings.len();
        let unmet = icmp::unmet(self.terrain, &pings);
        for (_, ping) in pings.iter().enumerate().filter(|(at, _)| unmet.contains(at)) {
            let (from, source, to) = (ping.from.name(), ping.source, ping.to);
            let text = format!("ping {source} → {to} from {from}: expected {:?}", ping.expected);
            self.found.faults.push(Mismatch { family: Family::of(to), text });
        }
    }

    fn fault(&mut self, tried: &Try, outcome: &ProbeOutcome, wrong: &str) {
        let Try { packet, verdict, ask, .. } = tried;
        let observed = ProbeTally(vec![outcome.clone()]);
        let interface = packet.interface.as_deref().unwrap_or("-");
        let text = format!(
            "{} {} → {} from {} (interface {interface}): expected {verdict}, observed {observed}: {wrong}",
            packet.protocol,
            packet.source,
            ask.to,
            ask.from.name(),
        );
        self.found.faults.push(Mismatch { family: Family::of(packet.source), text });
    }
}

fn group(tried: &Try) -> Group {
    let pool = match &tried.verdict {
        Verdict::Forward(pool) => pool.keys().map(|known| SocketAddr::new(known.address, known.port)).collect(),
        Verdict::Drop | Verdict::Reject | Verdict::Pass => Vec::new(),
    };
    (tried.ask.protocol, tried.ask.to, pool)
}

/// Starts the servers, makes all connections and judges them. The rules have to be in force.
pub(super) fn try_all(terrain: &Terrain, decided: &Decided, addresses: &Addresses, mode: &Mode) -> TrialResult {
    let tries = decided.tries(addresses);
    let mut servers = decided.endpoints();
    servers.extend(
        tries.iter().filter(|tried| wants_server(tried, addresses)).map(|tried| (tried.ask.protocol, tried.ask.to)),
    );
    let _running = start_servers(terrain, addresses, &servers);
    let (relays, listens) = (mode.profile.relays(), mode.profile.listens);
    let scene = Scene { addresses, servers: &servers, relays, listens };
    let mut trial = Trial {
        terrain,
        scene,
        found: TrialResult::default(),
        remembered: AffinityLog::new(mode.remembers),
        met: BTreeMap::new(),
    };
    for (number, turn) in turns(&tries) {
        if number == LAST {
            trial.remembered.settle();
        }
        trial.make(&turn);
    }
    trial.ping(decided);
    if trial.found.faults.is_empty() {
        trial.meet_all(&tries);
    }
    trial.found
}

fn start_servers(terrain: &Terrain, addresses: &Addresses, servers: &BTreeSet<(Protocol, SocketAddr)>) -> Vec<Servers> {
    let mut by_place = BTreeMap::<LabMachine, BTreeSet<_>>::new();
    for server in servers {
        by_place.entry(addresses.owner(server.1.ip())).or_default().insert(*server);
    }
    by_place.iter().map(|(place, at)| Servers::start(terrain.host(*place), at)).collect()
}

/// Splits the connections into concurrent turns. A client must not connect twice before its affinity is stored: of each client
/// of a service port, one connection per pool goes first, one turn after another; all others go last.
fn turns(tries: &[Try]) -> BTreeMap<usize, Vec<&Try>> {
    let mut turns = BTreeMap::<usize, Vec<&Try>>::new();
    let mut clients = BTreeMap::<_, BTreeSet<&AffinityKey>>::new();
    for tried in tries {
        let turn = tried.affinity_key.as_ref().map_or(0, |affinity_key| {
            let known = clients.entry((&affinity_key.port, affinity_key.client)).or_default();
            if known.insert(affinity_key) { known.len() } else { LAST }
        });
        turns.entry(turn).or_default().push(tried);
    }
    turns
}
