//! The upper layer of the way: service ports and listeners of the relay.
//!
//! A listener that can't be opened is no refusal: the relay tries it again, and the other frontends of its Service are served. It is
//! reported.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_model::Scope;
use ferry_plane::layered::Layer;
use ferry_plane::{Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Op};
use ferry_relay::{Listener, ListenerId, ListenerState, Port, SocketName, SourceRanges};

use super::object::{BindKey, BindObject, ListenAddress, Serves};
use super::origin::{ChooseByOrigin, Whereabouts};
use crate::balancers::Balancers;
use crate::failing::{FailingListeners, ListenerReports};
use crate::port::PortId;
use crate::shared::SharedRelay;

/// Interval of the looks for listeners that have failed or are open again. They hold no connection up.
const LOOK: Duration = Duration::from_secs(2);

/// One family's listeners.
#[derive(Debug)]
pub(crate) struct ListenerLayer {
    family: Family,
    shared: SharedRelay,
    whereabouts: Arc<Whereabouts>,
    /// an object of the base was committed
    has_origins: bool,
    balancers: Balancers,
    ports: BTreeMap<Serves, SharedPort>,
    listeners: BTreeMap<ListenAddress, Listening>,
    failing: FailingListeners<ListenAddress>,
    next_look: Option<Instant>,
    /// of the last look
    listener_errors: u64,
}

/// A port of the relay, for all listeners that serve in the same way.
#[derive(Debug)]
struct SharedPort {
    port: Arc<Port>,
    listeners: usize,
}

#[derive(Debug)]
struct Listening {
    id: ListenerId,
    serves: Serves,
}

// === impl ListenerLayer ===

impl ListenerLayer {
    pub(crate) fn new(family: Family, shared: SharedRelay, reports: ListenerReports) -> Self {
        Self {
            family,
            whereabouts: Arc::default(),
            has_origins: false,
            balancers: Balancers::new(family, shared.clone()),
            shared,
            ports: BTreeMap::new(),
            listeners: BTreeMap::new(),
            failing: FailingListeners::new(reports),
            next_look: None,
            listener_errors: 0,
        }
    }

    /// Fails with what the relay lacks for any further listener.
    fn apply(&mut self, op: Op, object: &BindObject) -> Result<(), CommitError> {
        match (op, object) {
            (Op::Create | Op::Replace, BindObject::Origins(origins)) => {
                self.whereabouts.replace(origins.clone());
                self.has_origins = true;
            }
            (Op::Delete, BindObject::Origins(_)) => self.has_origins = false,
            (Op::Create | Op::Replace, BindObject::Port(id, spec)) => drop(self.balancers.serve(id, spec)),
            (Op::Delete, BindObject::Port(id, _)) => self.balancers.close(id),
            (Op::Create | Op::Replace, BindObject::Listener(place, serves)) => return self.listen(*place, serves),
            (Op::Delete, BindObject::Listener(place, _)) => self.close(*place),
            (_, BindObject::Address(_)) => {}
        }
        Ok(())
    }

    /// Opens a listener, or has the open one serve in this way from the next connection on.
    fn listen(&mut self, place: ListenAddress, serves: &Serves) -> Result<(), CommitError> {
        let Some(protocol) = protocol(place.protocol) else { return Ok(()) };
        let port = self.port(serves);
        let before = self.listeners.remove(&place);
        let id = before.as_ref().map_or_else(|| self.shared.names.next(), |before| before.id);
        let name = SocketName::Listener(protocol, place.at().into());
        let bind = self.shared.inheritance.bind(&name, place.at(), false);
        let state = self.shared.relay.add(id, Listener { protocol, bind, port });
        self.listeners.insert(place, Listening { id, serves: serves.clone() });
        match before {
            Some(before) => self.leave_port(&before.serves),
            None => {
                self.shared.names.insert(id, name);
                self.whereabouts.enter(place.address);
            }
        }
        match state {
            ListenerState::Open(_) => self.note_open(place),
            ListenerState::Failed(error) | ListenerState::Lost(error) if error.is_exhaustion => {
                return Err(CommitError::Resources(std::io::Error::other(error.text)));
            }
            ListenerState::Failed(error) | ListenerState::Lost(error) => self.note_failing(place, error.text),
        }
        Ok(())
    }

    fn note_open(&mut self, place: ListenAddress) {
        self.failing.remove(&place);
        self.whereabouts.set_open(place, true);
    }

    fn note_failing(&mut self, place: ListenAddress, why: String) {
        self.failing.insert(place, why);
        self.whereabouts.set_open(place, false);
    }

    fn close(&mut self, place: ListenAddress) {
        self.failing.remove(&place);
        self.whereabouts.set_open(place, false);
        if let Some(Listening { id, serves }) = self.listeners.remove(&place) {
            self.shared.remove(id);
            self.whereabouts.leave(place.address);
            self.leave_port(&serves);
        }
    }

    /// The port of the relay that serves in this way, with one more listener.
    fn port(&mut self, serves: &Serves) -> Arc<Port> {
        let (shared, family, balancers) = (&self.shared, self.family, &self.balancers);
        let whereabouts = &self.whereabouts;
        let known = self.ports.entry(serves.clone()).or_insert_with(|| {
            let balancer = |scope| {
                let balanced = balancers.get(&PortId { scope, ..serves.port.clone() })?;
                Some(Arc::clone(&balanced.balancer))
            };
            let choose = ChooseByOrigin::new(Arc::clone(whereabouts), serves.port.protocol, serves.scopes, balancer);
            let port = Arc::new(Port::new(name(&serves.port), Arc::new(choose), shared.limit_per_port));
            port.set_sources(serves.sources.as_ref().map(|ranges| SourceRanges::new(ranges.iter().copied())));
            shared.directory.insert_port(family, &identity(serves), &port);
            SharedPort { port, listeners: 0 }
        });
        known.listeners += 1;
        Arc::clone(&known.port)
    }

    fn leave_port(&mut self, serves: &Serves) {
        let Some(known) = self.ports.get_mut(serves) else { return };
        known.listeners -= 1;
        if known.listeners == 0 {
            self.shared.directory.remove_port(self.family, &identity(serves), &known.port);
            self.ports.remove(serves);
        }
    }

    fn object(&self, key: &BindKey) -> Option<BindObject> {
        match key {
            BindKey::Origins => self.has_origins.then(|| BindObject::Origins(self.whereabouts.origins())),
            BindKey::Port(id) => Some(BindObject::Port(id.clone(), self.balancers.get(id)?.spec.clone())),
            BindKey::Listener(place) => Some(BindObject::Listener(*place, self.listeners.get(place)?.serves.clone())),
            BindKey::Address(_) => None,
        }
    }

    fn all(&self) -> Vec<BindObject> {
        let ports = self.balancers.iter().map(|(id, port)| BindObject::Port(id.clone(), port.spec.clone()));
        let listeners = self.listeners.iter();
        let listeners = listeners.map(|(place, listening)| BindObject::Listener(*place, listening.serves.clone()));
        self.object(&BindKey::Origins).into_iter().chain(ports).chain(listeners).collect()
    }

    /// Notes the listeners that have failed since the last look, or are open again.
    fn look(&mut self) {
        let failing = self.shared.relay.failing();
        let listeners: Vec<(ListenAddress, ListenerId)> =
            self.listeners.iter().map(|(place, listening)| (*place, listening.id)).collect();
        for (place, id) in listeners {
            match failing.get(&id) {
                Some(error) => self.note_failing(place, error.text.clone()),
                None => self.note_open(place),
            }
        }
    }
}

/// The listeners of a family stay as long as its engine.
impl Drop for ListenerLayer {
    fn drop(&mut self) {
        self.listeners.values().for_each(|listening| self.shared.remove(listening.id));
        for (serves, known) in &self.ports {
            self.shared.directory.remove_port(self.family, &identity(serves), &known.port);
        }
    }
}

impl Layer<BindObject> for ListenerLayer {
    fn holds(&self, key: &BindKey) -> bool {
        !matches!(key, BindKey::Address(_))
    }

    fn kernel(&mut self) -> &mut dyn Kernel<BindObject> {
        self
    }
}

impl Kernel<BindObject> for ListenerLayer {
    fn prepare(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<BindKey>) -> Result<Vec<BindObject>, CommitError> {
        Ok(match extent {
            Extent::Keys(keys) => keys.iter().filter_map(|key| self.object(key)).collect(),
            Extent::All => self.all(),
        })
    }

    fn commit(&mut self, batch: &Batch<BindObject>) -> Result<(), CommitFailure> {
        let applied = batch.operations().try_for_each(|(op, _, object)| self.apply(op, object));
        self.failing.report();
        applied.map_err(CommitFailure::unknown)
    }

    fn tend(&mut self, now: Instant) -> Result<Drift<BindKey>, CommitError> {
        if self.next_look.is_none_or(|next| next <= now) {
            self.next_look = Some(now + LOOK);
            let errors = self.shared.relay.totals().listener_errors.value();
            let is_new = std::mem::replace(&mut self.listener_errors, errors) != errors;
            if is_new || !self.failing.is_empty() {
                self.look();
                self.failing.report();
            }
        }
        Ok(Drift::default())
    }

    fn wake(&mut self, now: Instant) -> Option<Instant> {
        Some(*self.next_look.get_or_insert(now + LOOK))
    }
}

/// The identity of a port of the relay for metrics, whatever the scopes of its clients.
fn identity(serves: &Serves) -> PortId {
    PortId { scope: Scope::Cluster, ..serves.port.clone() }
}

/// The name of a port of the relay, in logs.
fn name(id: &PortId) -> String {
    let PortId { service, name, protocol, .. } = id;
    let colon = if name.is_empty() { "" } else { ":" };
    format!("{service}{colon}{name}/{}", protocol.lower())
}

/// The protocol of a listener. SCTP is not relayed: the model serves none in this mode.
fn protocol(protocol: Protocol) -> Option<ferry_relay::Protocol> {
    match protocol {
        Protocol::Tcp => Some(ferry_relay::Protocol::Tcp),
        Protocol::Udp => Some(ferry_relay::Protocol::Udp),
        Protocol::Sctp => None,
    }
}
