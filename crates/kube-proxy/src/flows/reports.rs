//! Reports of rule changes, from the engines' loops to the cleaner.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};
use std::{mem, thread};

use ferry_api::object::{Family, ObjectName};
use ferry_model::state::{BaseState, FrontendAddr, FrontendKind, NodePortAddresses};
use ferry_model::{FlowRule, PerFamily, ServiceState, flow_rules};
use ferry_plane::{Acknowledged, Extent, Outcome, Served, SyncEngine, Unit, UnitId};

use super::pace::Pace;
use super::queue::{FlowKey, FlowQueue, FlowRules, SyncRules};

/// Polling interval while the cleaner waits for the end of a sync pass.
const POLL: Duration = Duration::from_millis(1);

/// Reports of the engines' loops to the cleaner.
#[derive(Debug, Default)]
pub struct FlowReports {
    families: Mutex<PerFamily<FamilyReports>>,
    news: Condvar,
    passes: PerFamily<SyncPasses>,
    /// foreign rules may have translated packets: the next sync pass reports all frontends
    misled: PerFamily<AtomicBool>,
    /// as the mode does ([`Profile::keeps_client_ports`](ferry_model::Profile::keeps_client_ports))
    keeps_client_ports: bool,
}

/// Reports of one family.
#[derive(Debug, Default)]
struct FamilyReports {
    queue: FlowQueue,
    /// the last sync pass failed: the rules in force are uncertain, so no flow can be called stale
    doubtful: bool,
    /// frontends of foreign rules that were removed; for the next sync pass
    misled: Vec<Served>,
    /// wakes the engine's loop for a sync pass
    waker: Option<Waker>,
}

/// The Services whose rules were damaged.
enum Damaged<'a> {
    All,
    These(HashSet<&'a ObjectName>),
}

/// Counts beginnings and ends of sync passes: odd while one is under way.
#[derive(Debug, Default)]
struct SyncPasses(AtomicU64);

/// Reports for the loop of one engine.
#[derive(Debug)]
pub struct FlowObserver {
    reports: Arc<FlowReports>,
    family: Family,
    doubtful: bool,
    /// frontends of rules that failed sync passes may have removed
    unserved: Vec<Served>,
}

// === impl Damaged ===

impl<'a> Damaged<'a> {
    fn of(units: &'a Extent<UnitId>) -> Self {
        let name = |id: &'a UnitId| match id {
            UnitId::Base => None,
            UnitId::Service(name) => Some(name),
        };
        match units {
            Extent::All => Self::All,
            Extent::Keys(ids) => Self::These(ids.iter().filter_map(name).collect()),
        }
    }

    fn has(&self, service: &ObjectName) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.contains(service),
        }
    }
}

// === impl SyncPasses ===

impl SyncPasses {
    /// Counts the beginning or the end of a sync pass.
    fn step(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until a sync pass that is under way has ended.
    fn wait(&self) {
        let seen = self.0.load(Ordering::SeqCst);
        while seen % 2 == 1 && self.0.load(Ordering::SeqCst) == seen {
            thread::sleep(POLL);
        }
    }
}

// === impl FlowReports ===

impl FlowReports {
    /// Reports in a mode that keeps the ports of clients, or doesn't.
    pub(super) fn new(keeps_client_ports: bool) -> Self {
        Self { keeps_client_ports, ..Self::default() }
    }

    /// The reporting end for this family.
    pub fn observer(self: &Arc<Self>, family: Family) -> FlowObserver {
        FlowObserver { reports: Arc::clone(self), family, doubtful: false, unserved: Vec::new() }
    }

    /// Foreign rules with these frontends were removed, which may have translated packets of this family until now: all flows
    /// are checked after the engine's next sync pass, for which its loop is woken.
    pub fn mislead(&self, family: Family, served: Vec<Served>) {
        let waker = {
            let mut reports = self.lock();
            let reports = reports.of_mut(family);
            reports.misled.extend(served);
            reports.waker.clone()
        };
        self.misled.of(family).store(true, Ordering::Release);
        waker.iter().for_each(Waker::wake_by_ref);
    }

    /// Waits until checks are due and the pace allows them, or for the time `until`. Returns the families whose checks are due.
    pub(super) fn wait(&self, pace: &Pace, until: Option<Instant>) -> Vec<Family> {
        let mut reports = self.lock();
        loop {
            let now = Instant::now();
            let due = |family| {
                let reports: &FamilyReports = reports.of(family);
                let next = reports.queue.next().filter(|_| !reports.doubtful)?;
                Some((family, next.max(pace.ready(family))))
            };
            let due: Vec<(Family, Instant)> = Family::ALL.into_iter().filter_map(due).collect();
            let ready: Vec<Family> = due.iter().filter(|(_, at)| *at <= now).map(|(family, _)| *family).collect();
            if !ready.is_empty() || until.is_some_and(|until| until <= now) {
                return ready;
            }
            reports = match due.into_iter().map(|(_, at)| at).chain(until).min() {
                None => self.news.wait(reports).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let patience = at.saturating_duration_since(now);
                    self.news.wait_timeout(reports, patience).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Takes the rules that are due.
    pub(super) fn take(&self, family: Family, now: Instant) -> FlowRules {
        self.lock().of_mut(family).queue.take(now)
    }

    /// Takes the rules of these frontends, as far as they wait for a later check.
    pub(super) fn take_again(&self, family: Family, keys: impl Iterator<Item = FlowKey>) -> FlowRules {
        self.lock().of_mut(family).queue.take_again(keys)
    }

    /// Waits until all sync passes that have begun by now have reported. `false`: the rules in force are uncertain.
    pub(super) fn settle(&self, family: Family) -> bool {
        self.passes.of(family).wait();
        !self.lock().of(family).doubtful
    }

    /// Newer rules of the frontends that were taken, if there are any.
    pub(super) fn newer(&self, family: Family, than: &FlowRules) -> Option<FlowRules> {
        self.lock().of(family).queue.newer(than)
    }

    /// Ends the check of the frontends that were taken.
    pub(super) fn done(&self, family: Family) {
        self.lock().of_mut(family).queue.done();
    }

    /// Schedules the frontends that were taken for another check.
    pub(super) fn failed(&self, family: Family, now: Instant) {
        self.lock().of_mut(family).queue.failed(now);
    }

    fn lock(&self) -> MutexGuard<'_, PerFamily<FamilyReports>> {
        // No holder can leave it inconsistent.
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl FlowObserver ===

impl FlowObserver {
    /// Family of the engine.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Sets what [`FlowReports::mislead`] wakes: the engine's loop, which makes a sync pass then.
    pub fn wake_by(&self, waker: Waker) {
        self.reports.lock().of_mut(self.family).waker = Some(waker);
    }

    /// Marks the beginning of a sync pass.
    pub fn begin(&self) {
        self.reports.passes.of(self.family).step();
    }

    /// Reports the outcome of the sync pass, and marks its end.
    pub fn end(&mut self, outcome: &Outcome, engine: &dyn SyncEngine) {
        let is_news = self.report(outcome, engine);
        self.reports.passes.of(self.family).step();
        // Only now: a cleaner that takes this thread's processor finds no sync pass under way.
        if is_news {
            self.reports.news.notify_one();
        }
    }

    /// Takes the lock only if there is something to report. Returns true if the cleaner must wake up.
    fn report(&mut self, outcome: &Outcome, engine: &dyn SyncEngine) -> bool {
        let doubtful = outcome.error.is_some();
        let base = outcome.acked.iter().find_map(|acked| base(acked.after.as_deref()));
        let misled = self.reports.misled.of(self.family).swap(false, Ordering::AcqRel);
        let mut misled = misled.then(|| mem::take(&mut self.reports.lock().of_mut(self.family).misled));
        if doubtful {
            self.keep(&outcome.unserved);
        } else if !self.unserved.is_empty() {
            misled.get_or_insert_default().append(&mut self.unserved);
        }
        let rules = sync_rules(outcome, engine, misled.as_deref(), self.reports.keeps_client_ports);
        if rules.is_empty() && base.is_none() && doubtful == self.doubtful {
            return false;
        }
        self.doubtful = doubtful;
        let mut reports = self.reports.lock();
        let reports = reports.of_mut(self.family);
        let cleared = reports.doubtful && !doubtful;
        reports.doubtful = doubtful;
        if let Some(base) = base {
            reports.queue.serve_node_ports(&base.node_ports, base.localhost);
        }
        reports.queue.offer(rules, Instant::now()) || cleared
    }

    /// Keeps the frontends of rules that a failed sync pass may have removed: the next sync pass does not find them.
    fn keep(&mut self, unserved: &[Served]) {
        self.unserved.extend(unserved);
        self.unserved.sort_unstable();
        self.unserved.dedup();
    }
}

/// Rules for flows after a sync pass; `misled`: frontends of foreign rules that were in the kernel until now.
fn sync_rules(
    outcome: &Outcome,
    engine: &dyn SyncEngine,
    misled: Option<&[Served]>,
    keeps_client_ports: bool,
) -> SyncRules {
    let mut rules = SyncRules::default();
    // At a start all units are new, whatever was adopted: while the proxy was away, all may have changed.
    for acked in outcome.acked.iter().filter(|acked| changed(acked)) {
        let (before, after) = (service(acked.before.as_deref()), service(acked.after.as_deref()));
        rules.add(flow_rules(before, after, keeps_client_ports));
    }
    // While rules were damaged, packets may have passed by them.
    let damaged = if misled.is_some() { Some(&Extent::All) } else { outcome.damaged.as_ref() }.map(Damaged::of);
    let elsewhere = outcome.acked.iter().any(serves_elsewhere);
    if damaged.is_some() || elsewhere {
        engine.each_unit(&mut |unit| {
            let Some(state) = service(Some(unit)) else { return };
            let passed_by = damaged.as_ref().is_some_and(|damaged| damaged.has(&state.name));
            if passed_by || elsewhere {
                let all = all_flow_rules(state);
                rules.add(all.into_iter().filter(|rule| passed_by || matches!(rule.at, FrontendAddr::NodePort(_))));
            }
        });
    }
    add_unserved(&mut rules, outcome, misled.unwrap_or_default());
    add_neighbours(&mut rules, engine);
    rules
}

/// Adds rules for frontends that were served by removed rules only. A unit's own rule takes precedence.
fn add_unserved(rules: &mut SyncRules, outcome: &Outcome, misled: &[Served]) {
    let mut addresses: Vec<IpAddr> = outcome.acked.iter().flat_map(addresses_that_went).collect();
    for served in outcome.unserved.iter().chain(misled) {
        match *served {
            Served::Frontend(protocol, at) => rules.add(FlowRule::gone(protocol, at)),
            Served::NodePorts(address) => addresses.push(address),
            Served::NodePortsEverywhere => rules.leave_addresses(),
        }
    }
    for (protocol, port) in if addresses.is_empty() { HashSet::new() } else { rules.node_ports() } {
        rules.add(addresses.iter().filter_map(|to| FlowRule::gone(protocol, FrontendAddr::Vip(*to, port))));
    }
}

/// Adds frontends that share address and port with a node port: an external address may be one of the node's, with the
/// number of a node port. Then the address takes precedence, and the node port serves once the address is gone.
fn add_neighbours(rules: &mut SyncRules, engine: &dyn SyncEngine) {
    let (ports, gone) = (rules.node_ports(), rules.gone());
    if ports.is_empty() && gone.is_empty() {
        return;
    }
    let is_neighbour = |protocol, at: FrontendAddr| match at {
        FrontendAddr::Vip(_, port) => ports.contains(&(protocol, port)),
        FrontendAddr::NodePort(port) => gone.contains(&(protocol, port)),
    };
    engine.each_unit(&mut |unit| {
        let has_some = |state: &&ServiceState| {
            state.ports.iter().any(|port| {
                let external = port.frontends.iter().filter(|frontend| frontend.kind != FrontendKind::ClusterIp);
                external.into_iter().any(|frontend| is_neighbour(port.protocol, frontend.at))
            })
        };
        let Some(state) = service(Some(unit)).filter(has_some) else { return };
        rules.add(all_flow_rules(state).into_iter().filter(|rule| is_neighbour(rule.protocol, rule.at)));
    });
}

/// The rules of all frontends of a Service, as after its creation: all are due, whether the mode keeps client ports or not.
fn all_flow_rules(state: &ServiceState) -> Vec<FlowRule> {
    flow_rules(None, Some(state), false)
}

fn changed(acked: &Acknowledged) -> bool {
    match (&acked.before, &acked.after) {
        (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
        (None, None) => false,
        _ => true,
    }
}

/// True if the set of addresses that serve node ports has changed.
fn serves_elsewhere(acked: &Acknowledged) -> bool {
    match (base(acked.before.as_deref()), base(acked.after.as_deref())) {
        (Some(before), Some(after)) => before.node_ports != after.node_ports || before.localhost != after.localhost,
        _ => false,
    }
}

/// Addresses that served node ports before the change, and don't after it.
fn addresses_that_went(acked: &Acknowledged) -> Vec<IpAddr> {
    use NodePortAddresses::Only;
    match (base(acked.before.as_deref()), base(acked.after.as_deref())) {
        (Some(BaseState { node_ports: Only(before), .. }), Some(BaseState { node_ports: Only(after), .. })) => {
            before.iter().filter(|address| !after.contains(address)).copied().collect()
        }
        _ => Vec::new(),
    }
}

fn service(unit: Option<&Unit>) -> Option<&ServiceState> {
    match unit? {
        Unit::Service(state) => Some(state),
        Unit::Base(_) => None,
    }
}

fn base(unit: Option<&Unit>) -> Option<&BaseState> {
    match unit? {
        Unit::Base(state) => Some(state),
        Unit::Service(_) => None,
    }
}

#[cfg(test)]
mod tests;
