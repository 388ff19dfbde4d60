//! The core: applies events to the store, resolves the affected Services, and puts changed units into each engine's mailbox.

mod desk;
mod diagnostic_log;
mod engine_handle;
mod gate;
mod local_node;
mod lookup;
mod node_warnings;
mod object_log;
mod own_objects;
mod restore;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ferry_api::config::KubeProxyConfiguration;
use ferry_api::object::{Family, Kind, KubeObject, ObjectName, Uid};
use ferry_model::store::{Dirty, Event, ServiceObjects, Store};
use ferry_model::{
    Context, Diagnostic, MissingSchedulers, PerFamily, Profile, Settings, Stack, facts, resolve, serves,
};
use ferry_plane::{Delta, Unit, UnitId};

pub use self::desk::{Applied, Desk, Frozen};
use self::diagnostic_log::{DiagnosticLog, Topic};
pub use self::engine_handle::EngineHandle;
pub use self::gate::NodeWait;
use self::gate::{StartGate, StartReadiness};
use self::local_node::{LocalNode, preferred_first};
pub use self::lookup::await_node;
use self::node_warnings::NodeWarnings;
use self::own_objects::OwnObjects;
pub use self::own_objects::{OWN_NAMESPACE, is_own};
pub use self::restore::{ObjectPage, Restored};
pub use self::view::{FamilyView, View, has_address};
use crate::events::{self, Recorder};
use crate::input::Input;
use crate::report::ChangeReporter;

/// The inputs of the core.
#[derive(Debug)]
pub struct CoreSetup {
    /// the settings of the configuration that affect traffic
    pub settings: Settings,
    /// the configuration in the effective mode, to check it against the Node
    pub config: KubeProxyConfiguration,
    /// the mode's capabilities
    pub profile: Profile,
    /// all addresses of the machine's interfaces
    pub addresses: Vec<IpAddr>,
    /// where the facts about our Node come from
    pub node: NodeFacts,
    /// the engines
    pub engines: Vec<EngineHandle>,
    /// counts events for metrics
    pub changes: ChangeReporter,
    /// true while load balancers may send to this node; read by `/healthz`
    pub eligible: Arc<AtomicBool>,
    /// writes Events about Services and the node
    pub recorder: Recorder,
    /// returns true if rules of an earlier run still serve
    pub in_use: fn(Family) -> io::Result<bool>,
    /// gets a message after changes and complete lists; one that isn't received yet stands for later ones
    pub changed: Option<SyncSender<()>>,
}

/// Source of the facts about this node's Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFacts {
    /// the source, or else the machine itself
    Local,
    /// the cluster; the start waits for its Node
    Cluster(NodeWait),
}

/// A precondition of the start can't be met any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NeverReady(String);

/// Owns all objects.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
    config: KubeProxyConfiguration,
    profile: Profile,
    store: Store,
    addresses: Vec<IpAddr>,
    stand_in: Option<LocalNode>,
    own: OwnObjects,
    gate: StartGate,
    engines: Vec<EngineHandle>,
    changes: ChangeReporter,
    eligible: Arc<AtomicBool>,
    recorder: Recorder,
    in_use: fn(Family) -> io::Result<bool>,
    changed: Option<SyncSender<()>>,
    /// files that could not be read once since the start
    unreadable: usize,
    /// the hold-back of the first hand-over because of them has been logged
    held_back: bool,
    /// everything was handed over once
    started: bool,
    diagnostic_log: DiagnosticLog,
    node_warnings: NodeWarnings,
    /// schedulers that the kernel lacks; shared with readers that don't wait for the core
    missing_schedulers: Arc<Mutex<PerFamily<MissingSchedulers>>>,
    /// not decided yet
    dirty: Dirty,
    /// those of it whose Service itself may have changed since the last hand-over
    redefined: BTreeSet<ObjectName>,
    /// local addresses changed and that isn't decided yet
    readdressed: bool,
    /// a slice came that belongs to no service
    orphaned: bool,
    /// the excess of objects has been logged
    overfull: bool,
    /// counts the hand-overs to the engines
    hand_overs: Arc<AtomicU64>,
}

/// Kinds whose initial lists must be complete before anything is decided.
const AWAITED: [Kind; 3] = [Kind::Node, Kind::Service, Kind::EndpointSlice];

// === impl Core ===

impl Core {
    /// A core without objects.
    pub fn new(setup: CoreSetup) -> Self {
        let name = &setup.settings.node_name;
        let (stand_in, wait) = match setup.node {
            NodeFacts::Local => (Some(LocalNode::new(name, preferred_first(&setup.addresses))), None),
            NodeFacts::Cluster(wait) => (None, Some(wait)),
        };
        Self {
            store: Store::new(name).serving_external_ips(setup.settings.external_ips),
            gate: StartGate::new(AWAITED.into(), wait, name),
            stand_in,
            own: OwnObjects::default(),
            settings: setup.settings,
            config: setup.config,
            profile: setup.profile,
            addresses: setup.addresses,
            engines: setup.engines,
            changes: setup.changes,
            eligible: setup.eligible,
            recorder: setup.recorder,
            in_use: setup.in_use,
            changed: setup.changed,
            unreadable: 0,
            held_back: false,
            started: false,
            diagnostic_log: DiagnosticLog::default(),
            node_warnings: NodeWarnings::default(),
            missing_schedulers: Arc::default(),
            dirty: Dirty::default(),
            redefined: BTreeSet::new(),
            readdressed: false,
            orphaned: false,
            overfull: false,
            hand_overs: Arc::default(),
        }
    }

    /// The count of hand-overs, which other threads read.
    fn hand_overs(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.hand_overs)
    }

    /// True before the first hand-over.
    fn is_starting(&self) -> bool {
        !self.started
    }

    /// Applies an input, without deciding anything.
    pub fn take(&mut self, input: Input) {
        match input {
            Input::Events(events) => {
                let events = match &mut self.stand_in {
                    Some(stand_in) => stand_in.complete(events),
                    None => events,
                };
                self.own.complete(events).into_iter().for_each(|event| self.apply(event));
            }
            Input::OwnObjects(objects) => {
                self.own.replace(objects).into_iter().for_each(|event| self.apply(event));
            }
            Input::Addresses(addresses) => {
                if let Some(event) =
                    self.stand_in.as_mut().and_then(|stand_in| stand_in.readdress(preferred_first(&addresses)))
                {
                    self.apply(event);
                }
                self.readdressed |= self.addresses != addresses;
                self.addresses = addresses;
            }
            Input::Undecided => {}
            Input::Unreadable(files) => self.unreadable = files,
            Input::HealthCheckFailed { service, note } => {
                self.recorder.record(events::KubeEvent::health_check_failed(&service, self.uid(&service), &note));
            }
            Input::MissingSchedulers { family, missing } => {
                let mut all = self.missing_schedulers.lock().unwrap_or_else(PoisonError::into_inner);
                // The contexts are renewed as after a change of addresses.
                self.readdressed |= *all.of(family) != missing;
                *all.of_mut(family) = missing;
            }
            Input::NodeWarning(warning) => {
                let event = self.node_warnings.replace(warning, &self.settings.node_name);
                event.into_iter().for_each(|event| self.recorder.record(event));
            }
        }
    }

    fn apply(&mut self, event: Event) {
        object_log::received(&event);
        self.orphaned |= match &event {
            Event::Upsert(KubeObject::EndpointSlice(slice)) => slice.service.is_none(),
            Event::Delete(kind, _) => *kind == Kind::EndpointSlice && self.diagnostic_log.has(&Topic::Orphans),
            Event::Upsert(_) | Event::Unreadable(..) | Event::Restart(_) | Event::Synced(_) => false,
        };
        if matches!(event, Event::Synced(_)) {
            self.signal();
        }
        let noted = self.changes.note(&event);
        let of_slice =
            matches!(&event, Event::Upsert(KubeObject::EndpointSlice(_)) | Event::Delete(Kind::EndpointSlice, _));
        let dirty = self.store.apply(event);
        if !dirty.services.is_empty() {
            self.changes.count(noted);
        }
        // Before the first hand-over no engine has anything.
        if !of_slice && self.started {
            self.redefined.extend(dirty.services.iter().cloned());
        }
        self.dirty.merge(dirty);
    }

    /// Resolves everything dirty and hands it over; nothing, until the initial lists are complete and no rules in the kernel
    /// could belong to an unread file. Returns the time of the next call in case no input comes before.
    pub fn decide(&mut self) -> Result<Option<Instant>, NeverReady> {
        if self.orphaned {
            self.orphaned = false;
            self.diagnostic_log.replace(Topic::Orphans, self.store.orphans());
        }
        if self.store.left_out() > 0 && !self.overfull {
            self.overfull = true;
            tracing::error!(
                "Too many objects, ignoring some until they change: delete unneeded Services and EndpointSlices"
            );
        }
        if self.dirty.node {
            self.note_eligibility();
        }
        if !self.started {
            let serving = || any_in_use(self.in_use, &self.engines);
            match self.gate.readiness(&self.store, Instant::now(), serving) {
                StartReadiness::Ready if self.hold_back() => return Ok(None),
                StartReadiness::Ready => self.check_stack()?,
                StartReadiness::Waiting(again) => return Ok(again),
                StartReadiness::Failed(reason) => return Err(NeverReady(reason)),
            }
        }
        self.hand_over_dirty();
        Ok(None)
    }

    /// Signals that objects changed or lists are complete.
    fn signal(&self) {
        // A full channel has a message that stands for this one, too.
        let _ = self.changed.as_ref().map(|changed| changed.try_send(()));
    }

    /// Checks the configuration against the Node and the served families, and logs both, as upstream does at its start.
    fn check_stack(&self) -> Result<(), NeverReady> {
        let served: Vec<Family> = self.engines.iter().map(|engine| engine.family).collect();
        let stack = Stack::check(&self.config, &self.settings, self.store.node(), &served)
            .map_err(|error| NeverReady(error.to_string()))?;
        for err in &stack.warnings {
            tracing::error!(err, "Kube-proxy configuration may be incomplete or incorrect");
        }
        let addresses: Vec<String> = stack.addresses.iter().map(ToString::to_string).collect();
        tracing::info!(NodeIPs = addresses.join(","), "Successfully retrieved NodeIPs");
        let stack_kind = if served.len() > 1 { "dual-stack" } else { "single-stack" };
        tracing::info!("primary ipFamily" = %stack.primary, "kube-proxy running in {stack_kind} mode");
        Ok(())
    }

    /// Notes if load balancers may send to this node: not to one without a Node object in the cluster.
    fn note_eligibility(&self) {
        let eligible = match self.store.node() {
            Some(node) => !node.deleting && !node.to_be_deleted,
            None => self.stand_in.is_some(),
        };
        self.eligible.store(eligible, Ordering::Relaxed);
    }

    fn hand_over_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        let redefined = std::mem::take(&mut self.redefined);
        let readdressed = std::mem::take(&mut self.readdressed);
        if self.started && dirty.is_empty() && !readdressed {
            return;
        }
        if !self.started || !dirty.is_empty() {
            self.signal();
        }
        let fresh = if !self.started || dirty.node || readdressed { self.renew_contexts() } else { BTreeSet::new() };
        self.started = true;
        if !fresh.is_empty() || readdressed {
            let addresses = facts::node_port_addresses(&self.settings, self.store.node(), &self.addresses);
            dirty.services.extend(self.store.serve_node_ports_at(addresses));
        }
        let base_dirty = !fresh.is_empty() || dirty.node || dirty.service_cidrs || readdressed;
        self.hand_over(&fresh, (&dirty.services, &redefined), base_dirty);
        self.hand_overs.fetch_add(1, Ordering::Relaxed);
    }

    /// True if the first hand-over has to wait: it would remove the rules of objects that an earlier run had read from a file
    /// that is malformed now. Without rules that serve there is nothing to lose. Meanwhile the change counts as queued, so that
    /// the families become unhealthy after a while.
    fn hold_back(&mut self) -> bool {
        let holds = self.unreadable > 0 && any_in_use(self.in_use, &self.engines);
        if holds && !self.held_back {
            tracing::warn!(
                files = self.unreadable,
                "Unreadable manifests, keeping the rules of an earlier run until they can be read"
            );
            self.engines.iter().for_each(|engine| engine.queue(&self.changes));
        } else if self.held_back && !holds {
            tracing::info!("First sync no longer waits for unreadable manifests");
        }
        self.held_back = holds;
        holds
    }

    /// The families whose context differs from their engine's.
    fn renew_contexts(&mut self) -> BTreeSet<Family> {
        let mut fresh = BTreeSet::new();
        let missing = self.missing_schedulers.lock().unwrap_or_else(PoisonError::into_inner);
        for engine in &mut self.engines {
            let node = self.store.node();
            let context = facts::context(&self.settings, node, &self.addresses, &self.profile, engine.family);
            let missing_schedulers = missing.of(engine.family).clone();
            let context = Context { missing_schedulers, ..context };
            if engine.context.as_deref() != Some(&context) {
                engine.context = Some(Arc::new(context));
                fresh.insert(engine.family);
            }
        }
        fresh
    }

    /// `fresh`: families with a new context; `redefined`: services that may have changed themselves.
    fn hand_over(
        &mut self,
        fresh: &BTreeSet<Family>,
        (dirty, redefined): (&BTreeSet<ObjectName>, &BTreeSet<ObjectName>),
        base_dirty: bool,
    ) {
        // Every service of a family depends on its context. What is gone is dirty anyway.
        let others = (!fresh.is_empty()).then(|| self.store.service_names()).into_iter().flatten();
        let names: BTreeSet<ObjectName> = others.chain(dirty).cloned().collect();
        let families: Vec<Family> = self.engines.iter().map(|engine| engine.family).collect();
        let mut said: BTreeMap<&ObjectName, Vec<Diagnostic>> = BTreeMap::new();
        let mut base_said = Vec::new();
        let mut base_checked = false;
        for engine in &mut self.engines {
            let Some(context) = engine.context.clone() else { continue };
            let is_fresh = fresh.contains(&engine.family);
            let mut delta = Delta { context: is_fresh.then(|| Arc::clone(&context)), units: BTreeMap::new() };
            let affinity = engine.base.as_ref().map(|base| base.affinity);
            if base_dirty || affinity != Some(self.store.uses_affinity(engine.family)) {
                let (base, diagnostics) =
                    facts::base(&self.settings, &context, &self.addresses, &self.store, &self.profile, engine.family);
                base_checked = true;
                base_said.extend(diagnostics);
                if engine.base.as_ref() != Some(&base) {
                    delta.units.insert(UnitId::Base, Some(Arc::new(Unit::Base(base.clone()))));
                    engine.base = Some(base);
                }
            }
            for name in &names {
                let objects = self.store.objects(name);
                let (state, diagnostics) =
                    resolve(&objects, self.store.claims(), &context, &self.profile, engine.family);
                engine.count_local(name, &objects, &state);
                if !diagnostics.is_empty() {
                    said.entry(name).or_default().extend(diagnostics);
                }
                // Another family's context is new: here the service is only resolved for its diagnostics.
                if !is_fresh && !dirty.contains(name) {
                    continue;
                }
                let unit = (!state.ports.is_empty()).then(|| Arc::new(Unit::Service(state)));
                // The engine has no such unit, and the Service isn't served in its family: it need not wake.
                if unit.is_none() && !redefined.contains(name) && is_served(&objects, &self.profile, &families) {
                    continue;
                }
                delta.units.insert(UnitId::Service(name.clone()), unit);
            }
            if !delta.is_empty() {
                engine.put(delta, &self.changes);
            }
        }
        if base_checked && base_dirty {
            self.diagnostic_log.replace(Topic::Base, base_said);
        }
        for name in &names {
            let diagnostics = said.remove(name).unwrap_or_default();
            let fresh = self.diagnostic_log.replace(Topic::Service(name.clone()), diagnostics);
            let events = fresh.iter().filter_map(|fresh| events::KubeEvent::not_served(name, self.uid(name), fresh));
            events.for_each(|event| self.recorder.record(event));
        }
    }

    fn uid(&self, service: &ObjectName) -> Option<Uid> {
        self.store.objects(service).service?.uid
    }
}

/// True if an earlier run's rules serve in one of the families.
fn any_in_use(in_use: fn(Family) -> io::Result<bool>, engines: &[EngineHandle]) -> bool {
    engines.iter().any(|engine| {
        in_use(engine.family).unwrap_or_else(|error| {
            tracing::warn!(
                family = %engine.family,
                err = %error,
                "Can't determine if rules of an earlier run are in use, assuming they are"
            );
            true
        })
    })
}

/// True if one of the families serves it.
fn is_served(objects: &ServiceObjects<'_>, profile: &Profile, families: &[Family]) -> bool {
    objects.service.is_some_and(|service| families.iter().any(|family| serves(service, profile, *family)))
}
