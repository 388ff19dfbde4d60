//! The relay as the lower layer of the mode: service ports, listeners and routes of this process.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_model::{FrontendAddr, Scope};
use ferry_plane::layered::Layer;
use ferry_plane::{Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Op, Refusal};
use ferry_relay::{
    Bind, Destination, Gate, Listener, ListenerError, ListenerId, ListenerState, Port, Routes, SocketName,
};
use ferry_ruleset::id::HashId;

use super::doors::Doors;
use super::element::Door;
use super::object::{UserspaceKey, UserspaceObject};
use crate::balancers::Balancers;
use crate::failing::{FailingListeners, ListenerReports};
use crate::port::{PortId, PortSpec, SCOPES, other, scope_word};
use crate::shared::{SharedRelay, family_word, unspecified};

/// Interval of the looks for listeners that have failed. They hold no connection up: the relay opens a listener again by itself.
const LOOK: Duration = Duration::from_secs(10);
/// Time for which a listener that nothing leads to any more stays: datagrams may wait in it, and answers be on their way.
const LINGER: Duration = Duration::from_secs(1);
/// Ports of the preferred range that are tried before the system chooses one.
const PREFERRED_TRIES: usize = 8;

/// The relay's part of one family's engine.
#[derive(Debug)]
pub(crate) struct RelayLayer {
    family: Family,
    shared: SharedRelay,
    doors: Doors,
    balancers: Balancers,
    ports: BTreeMap<PortId, Arc<Port>>,
    routes: BTreeMap<(Scope, FrontendAddr), PortId>,
    tables: [Arc<Routes>; 2],
    listeners: HashMap<Door, ListenerId>,
    /// listeners that nothing leads to any more, with the time of their end, in order
    leaving: VecDeque<(Instant, ListenerId)>,
    next_look: Option<Instant>,
    /// of the last look
    listener_errors: u64,
    failing: FailingListeners<Door>,
}

/// Why an object could not be made.
enum RelayFailure {
    /// descriptors or memory are used up
    Exhausted(io::Error),
    /// this object is impossible now
    Refused(io::Error),
}

// === impl RelayFailure ===

impl From<io::Error> for RelayFailure {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

impl From<ListenerError> for RelayFailure {
    fn from(error: ListenerError) -> Self {
        let failure = if error.is_exhaustion { Self::Exhausted } else { Self::Refused };
        failure(io::Error::other(error.text))
    }
}

// === impl RelayLayer ===

impl RelayLayer {
    pub(crate) fn new(family: Family, shared: SharedRelay, doors: Doors, reports: ListenerReports) -> Self {
        Self {
            family,
            balancers: Balancers::new(family, shared.clone()),
            shared,
            doors,
            ports: BTreeMap::new(),
            routes: BTreeMap::new(),
            tables: SCOPES.map(|_| Arc::new(Routes::new())),
            listeners: HashMap::new(),
            leaving: VecDeque::new(),
            next_look: None,
            listener_errors: 0,
            failing: FailingListeners::new(reports),
        }
    }

    fn apply(&mut self, op: Op, object: &UserspaceObject) -> Result<(), RelayFailure> {
        match (op, object) {
            (Op::Create | Op::Replace, UserspaceObject::Port(id, spec)) => self.serve(id, spec),
            (Op::Delete, UserspaceObject::Port(id, _)) => self.close_port(id),
            (Op::Create | Op::Replace, UserspaceObject::Route(_, at, id)) => self.route(*at, id)?,
            (Op::Delete, UserspaceObject::Route(scope, at, _)) => self.unroute(*scope, *at),
            (Op::Create | Op::Replace, UserspaceObject::Listener(door)) => {
                let listened = self.listen(door);
                match &listened {
                    Err(RelayFailure::Refused(error)) => self.failing.insert(door.clone(), error.to_string()),
                    Err(RelayFailure::Exhausted(_)) | Ok(()) => self.failing.remove(door),
                }
                return listened;
            }
            (Op::Delete, UserspaceObject::Listener(door)) => {
                self.failing.remove(door);
                self.close_door(door);
                if let Some(id) = self.listeners.remove(door) {
                    self.shared.names.remove(id);
                    self.leaving.push_back((Instant::now() + LINGER, id));
                }
            }
            (_, UserspaceObject::Table(_)) => return Err(io::Error::other("it is in the table").into()),
        }
        Ok(())
    }

    /// Serves a service port with these endpoints.
    fn serve(&mut self, id: &PortId, spec: &PortSpec) {
        let balancer = self.balancers.serve(id, spec);
        let (shared, family) = (&self.shared, self.family);
        self.ports.entry(id.clone()).or_insert_with(|| {
            let port = Arc::new(Port::new(id.to_string(), Arc::clone(balancer) as _, shared.limit_per_port));
            shared.directory.insert_port(family, id, &port);
            port
        });
        self.note_datagrams(id);
    }

    /// Notes what is behind the listener for datagrams of a service port, if it has one.
    fn note_datagrams(&self, id: &PortId) {
        if let (Some(number), Some(port)) = (self.doors.port(&Door::Datagrams(id.clone())), self.balancers.get(id)) {
            self.shared.datagrams.lead(self.family, number, &port.spec.pool);
        }
    }

    fn close_port(&mut self, id: &PortId) {
        if let Some(port) = self.ports.remove(id) {
            self.shared.directory.remove_port(self.family, id, &port);
        }
        // A listener that never opened is no object, so nothing deletes it.
        self.failing.remove(&Door::Datagrams(id.clone()));
        self.balancers.close(id);
    }

    /// Leads connections elsewhere. A connection to this scope may have begun before the table changed, and is accepted afterwards:
    /// it is of the other scope, if that serves the destination.
    fn unroute(&mut self, scope: Scope, at: FrontendAddr) {
        self.routes.remove(&(scope, at));
        let other = self.routes.get(&(other(scope), at)).and_then(|id| self.ports.get(id));
        match other.map(Arc::clone) {
            Some(port) => drop(self.table(scope).insert(destination(at), port)),
            None => self.tables.iter().for_each(|table| drop(table.remove(destination(at)))),
        }
    }

    fn route(&mut self, at: FrontendAddr, id: &PortId) -> io::Result<()> {
        let port = self.ports.get(id).ok_or_else(|| no_port(id))?;
        self.table(id.scope).insert(destination(at), Arc::clone(port));
        self.routes.insert((id.scope, at), id.clone());
        Ok(())
    }

    /// Opens a listener: with the socket that the process before has left, or at a port of the preferred range, the same one each
    /// time, or else at a port that the system chooses.
    fn listen(&mut self, door: &Door) -> Result<(), RelayFailure> {
        let label = label(self.family, door);
        let (listener, name) = (self.shared.names.next(), SocketName::Gate(label.clone()));
        let inherited = self.shared.inheritance.bind(&name, self.at(0), false);
        let binds = match inherited {
            inherited @ Bind::Inherited { .. } => vec![inherited],
            Bind::Address { .. } | Bind::Open(_) => self.candidates(door.protocol(), &label),
        };
        let mut failure = RelayFailure::from(io::Error::other("no port to listen at"));
        for bind in binds {
            match self.add(listener, door, &label, bind)? {
                ListenerState::Open(address) => {
                    self.doors.open(door, address.port());
                    if let Door::Datagrams(id) = door {
                        self.note_datagrams(id);
                    }
                    self.shared.names.insert(listener, name);
                    if let Some(before) = self.listeners.insert(door.clone(), listener) {
                        self.shared.remove(before);
                    }
                    return Ok(());
                }
                ListenerState::Failed(error) | ListenerState::Lost(error) => failure = error.into(),
            }
            self.shared.relay.remove(listener);
        }
        Err(failure)
    }

    /// Closes the listeners whose time has come.
    fn close_leaving(&mut self, now: Instant) {
        while let Some((_, id)) = self.leaving.pop_front_if(|(end, _)| *end <= now) {
            self.shared.remove(id);
        }
    }

    fn close_door(&self, door: &Door) {
        if let (Door::Datagrams(_), Some(number)) = (door, self.doors.port(door)) {
            self.shared.datagrams.end(self.family, number);
        }
        self.doors.close(door);
    }

    fn add(&self, listener: ListenerId, door: &Door, label: &str, bind: Bind) -> io::Result<ListenerState> {
        Ok(match door {
            Door::Gate(scope) => {
                let route = Arc::clone(self.table(*scope)) as _;
                self.shared.relay.add_gate(listener, Gate { name: label.to_owned(), bind, route })
            }
            Door::Datagrams(id) => {
                let port = Arc::clone(self.ports.get(id).ok_or_else(|| no_port(id))?);
                self.shared.relay.add(listener, Listener { protocol: ferry_relay::Protocol::Udp, bind, port })
            }
        })
    }

    /// The addresses to listen at, in the order in which they are tried.
    fn candidates(&self, protocol: Protocol, label: &str) -> Vec<Bind> {
        let (first, last) = (*self.shared.ports.start(), *self.shared.ports.end());
        let count = u32::from(last - first) + 1;
        let begin = preferred(label) % count;
        let ports = (0..count).filter_map(|step| u16::try_from(u32::from(first) + (begin + step) % count).ok());
        // Ports that other programs have are few.
        let free = ports.filter(|port| self.doors.door(protocol, *port).is_none()).take(PREFERRED_TRIES);
        let bind = |port| Bind::Address { address: self.at(port), reuse_port: false };
        free.chain([0]).map(bind).collect()
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(unspecified(self.family), port)
    }

    fn table(&self, scope: Scope) -> &Arc<Routes> {
        let [cluster, local] = &self.tables;
        match scope {
            Scope::Cluster => cluster,
            Scope::Local => local,
        }
    }

    /// The object of a key, if it is there: a listener only while it is open, at the port that is known of it.
    fn object(&self, key: &UserspaceKey, lost: &BTreeSet<Door>) -> Option<UserspaceObject> {
        match key {
            UserspaceKey::Port(id) => {
                self.balancers.get(id).map(|port| UserspaceObject::Port(id.clone(), port.spec.clone()))
            }
            UserspaceKey::Route(scope, at) => {
                self.routes.get(&(*scope, *at)).map(|id| UserspaceObject::Route(*scope, *at, id.clone()))
            }
            UserspaceKey::Listener(door) => {
                let known = self.listeners.contains_key(door) && !lost.contains(door);
                known.then(|| UserspaceObject::Listener(door.clone()))
            }
            UserspaceKey::Table(_) => None,
        }
    }

    /// The listeners that are not open any more, or at another port.
    fn lost(&self) -> BTreeSet<Door> {
        let states: HashMap<ListenerId, ListenerState> = self.shared.relay.states().into_iter().collect();
        let is_open = |(door, id): &(&Door, &ListenerId)| match states.get(id) {
            Some(ListenerState::Open(address)) => self.doors.port(door) == Some(address.port()),
            Some(ListenerState::Failed(_) | ListenerState::Lost(_)) | None => false,
        };
        self.listeners.iter().filter(|listener| !is_open(listener)).map(|(door, _)| door.clone()).collect()
    }

    fn errors(&self) -> u64 {
        self.shared.relay.totals().listener_errors.value()
    }
}

/// The listeners of a family stay as long as its engine.
impl Drop for RelayLayer {
    fn drop(&mut self) {
        let leaving = self.leaving.iter().map(|(_, id)| id);
        self.listeners.values().chain(leaving).for_each(|id| self.shared.remove(*id));
        self.ports.iter().for_each(|(id, port)| self.shared.directory.remove_port(self.family, id, port));
    }
}

impl Layer<UserspaceObject> for RelayLayer {
    fn holds(&self, key: &UserspaceKey) -> bool {
        !matches!(key, UserspaceKey::Table(_))
    }

    fn kernel(&mut self) -> &mut dyn Kernel<UserspaceObject> {
        self
    }
}

impl Kernel<UserspaceObject> for RelayLayer {
    fn prepare(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<UserspaceKey>) -> Result<Vec<UserspaceObject>, CommitError> {
        let asks_for_listeners =
            |keys: &[UserspaceKey]| keys.iter().any(|key| matches!(key, UserspaceKey::Listener(_)));
        let lost = match extent {
            Extent::Keys(keys) if !asks_for_listeners(keys) => BTreeSet::new(),
            Extent::Keys(_) | Extent::All => self.lost(),
        };
        Ok(match extent {
            Extent::Keys(keys) => keys.iter().filter_map(|key| self.object(key, &lost)).collect(),
            Extent::All => {
                let ports =
                    self.balancers.iter().map(|(id, port)| UserspaceObject::Port(id.clone(), port.spec.clone()));
                let routes =
                    self.routes.iter().map(|((scope, at), id)| UserspaceObject::Route(*scope, *at, id.clone()));
                let open = self.listeners.keys().filter(|door| !lost.contains(door));
                ports.chain(routes).chain(open.map(|door| UserspaceObject::Listener(door.clone()))).collect()
            }
        })
    }

    fn commit(&mut self, batch: &Batch<UserspaceObject>) -> Result<(), CommitFailure> {
        let mut refused: Vec<Refusal> = Vec::new();
        for (op, index, object) in batch.operations() {
            match self.apply(op, object) {
                Ok(()) => {}
                // Whatever comes next needs descriptors or memory, too.
                Err(RelayFailure::Exhausted(error)) => {
                    self.failing.report();
                    return Err(CommitFailure::unknown(CommitError::Resources(error)));
                }
                Err(RelayFailure::Refused(error)) => refused.push((op, index, error)),
            }
        }
        self.failing.report();
        if refused.is_empty() { Ok(()) } else { Err(CommitFailure::unknown(CommitError::Refused(refused))) }
    }

    fn tend(&mut self, now: Instant) -> Result<Drift<UserspaceKey>, CommitError> {
        self.close_leaving(now);
        if self.next_look.is_some_and(|next| now < next) {
            return Ok(Drift::default());
        }
        self.next_look = Some(now + LOOK);
        let errors = self.errors();
        if std::mem::replace(&mut self.listener_errors, errors) == errors {
            return Ok(Drift::default());
        }
        // Elements have the ports, so that they have to be compared, too.
        let lost = self.lost();
        lost.iter().for_each(|door| self.close_door(door));
        let by_others = (!lost.is_empty()).then_some(Extent::All);
        Ok(Drift { by_proxies: None, by_others })
    }

    fn wake(&mut self, now: Instant) -> Option<Instant> {
        let look = *self.next_look.get_or_insert(now + LOOK);
        Some(self.leaving.front().map_or(look, |(end, _)| look.min(*end)))
    }
}

fn destination(at: FrontendAddr) -> Destination {
    match at {
        FrontendAddr::Vip(address, port) => Destination::Address(address, port),
        FrontendAddr::NodePort(port) => Destination::AnyAddress(port),
    }
}

fn no_port(id: &PortId) -> io::Error {
    io::Error::other(format!("the relay has no port {id}"))
}

/// The name of a listener in logs and at a hand-over: letters, digits and `-`.
fn label(family: Family, door: &Door) -> String {
    let family = family_word(family);
    match door {
        Door::Gate(scope) => format!("{family}-{}", scope_word(*scope)),
        Door::Datagrams(id) => {
            let name = HashId::of(id.to_string().as_bytes());
            debug_assert_eq!(id.protocol, Protocol::Udp, "TCP has gates");
            format!("{family}-udp-{name}")
        }
    }
}

/// A number that depends on the name alone.
fn preferred(label: &str) -> u32 {
    let text = HashId::of(label.as_bytes()).to_string();
    text.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or_default()
}
