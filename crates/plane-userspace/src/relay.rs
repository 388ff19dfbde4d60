//! The relay as the lower layer of the mode: service ports, listeners and routes of this process.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_model::{FrontendAddr, Scope};
use ferry_plane::layered::Layer;
use ferry_plane::{Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Op, Refusal};
use ferry_relay::{
    Balancer, Bind, DEFAULT_PENALTY, Destination, Gate, Inheritance, Listener, ListenerError, ListenerId,
    ListenerState, Port, Relay, Routes, SocketName,
};
use ferry_ruleset::id::HashId;

use crate::base::SCOPES;
use crate::datagrams::Datagrams;
use crate::doors::Doors;
use crate::element::{Door, PortId, scope_word};
use crate::object::{PortSpec, UserspaceKey, UserspaceObject};
use crate::readings::Directory;

/// Interval of the looks for listeners that have failed. They hold no connection up: the relay opens a listener again by itself.
const LOOK: Duration = Duration::from_secs(10);
/// Time for which a listener that nothing leads to any more stays: datagrams may wait in it, and answers be on their way.
const LINGER: Duration = Duration::from_secs(1);
/// Ports of the preferred range that are tried before the system chooses one.
const PREFERRED_TRIES: usize = 8;

/// The parts of the relay that the engines of a process share.
#[derive(Clone, Debug)]
pub struct SharedRelay {
    /// the relay, whose threads run
    pub relay: Arc<Relay>,
    /// listening sockets of the process before
    pub inheritance: Arc<Inheritance>,
    /// the ports that listeners prefer: the same ones after a restart, so that clients of UDP go on
    pub ports: RangeInclusive<u16>,
    /// the most connections, and the most associations, of one service port
    pub limit_per_port: usize,
    /// the identity of the next listener
    pub next_listener: Arc<AtomicU64>,
    /// the open listeners by their names
    pub names: Arc<Mutex<BTreeMap<ListenerId, String>>>,
    /// the service ports of all engines
    pub directory: Directory,
    /// what is behind the UDP listeners of all engines
    pub datagrams: Datagrams,
}

/// The relay's part of one family's engine.
#[derive(Debug)]
pub(crate) struct RelayLayer {
    family: Family,
    shared: SharedRelay,
    doors: Doors,
    ports: BTreeMap<PortId, ServicePort>,
    routes: BTreeMap<(Scope, FrontendAddr), PortId>,
    tables: [Arc<Routes>; 2],
    listeners: HashMap<Door, ListenerId>,
    /// listeners that nothing leads to any more, with the time of their end, in order
    leaving: VecDeque<(Instant, ListenerId)>,
    next_look: Option<Instant>,
    /// of the last look
    listener_errors: u64,
}

#[derive(Debug)]
struct ServicePort {
    spec: PortSpec,
    port: Arc<Port>,
    balancer: Arc<Balancer>,
}

/// Why an object could not be made.
enum Failure {
    /// descriptors or memory are used up
    Exhausted(io::Error),
    /// this object is impossible now
    Refused(io::Error),
}

// === impl Failure ===

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

impl From<ListenerError> for Failure {
    fn from(error: ListenerError) -> Self {
        let failure = if error.is_exhaustion { Self::Exhausted } else { Self::Refused };
        failure(io::Error::other(error.text))
    }
}

// === impl SharedRelay ===

impl SharedRelay {
    /// Duplicates of the sockets of all open listeners, each with its name, for the next process.
    ///
    /// # Errors
    /// The system's error if descriptors are exhausted.
    pub fn sockets(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let sockets = self.relay.sockets()?;
        let names = self.names();
        let named = |(id, socket): (ListenerId, OwnedFd)| Some((SocketName::Gate(names.get(&id)?.clone()), socket));
        Ok(sockets.into_iter().filter_map(named).map(|(name, socket)| (name.to_string(), socket)).collect())
    }

    /// Closes the sockets of the process before that no listener of this family has taken: their Services are gone.
    pub fn forget_inherited(&self, family: Family) {
        let begins = format!("{}-", family_word(family));
        let any = SocketAddr::new(unspecified(family), 0);
        for name in self.inheritance.names() {
            if matches!(&name, SocketName::Gate(label) if label.starts_with(&begins)) {
                drop(self.inheritance.bind(&name, any, false));
            }
        }
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<ListenerId, String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, id: ListenerId) {
        self.names().remove(&id);
        self.relay.remove(id);
    }
}

// === impl RelayLayer ===

impl RelayLayer {
    pub(crate) fn new(family: Family, shared: SharedRelay, doors: Doors) -> Self {
        Self {
            family,
            shared,
            doors,
            ports: BTreeMap::new(),
            routes: BTreeMap::new(),
            tables: SCOPES.map(|_| Arc::new(Routes::new())),
            listeners: HashMap::new(),
            leaving: VecDeque::new(),
            next_look: None,
            listener_errors: 0,
        }
    }

    fn apply(&mut self, op: Op, object: &UserspaceObject) -> Result<(), Failure> {
        match (op, object) {
            (Op::Create | Op::Replace, UserspaceObject::Port(id, spec)) => self.serve(id, spec),
            (Op::Delete, UserspaceObject::Port(id, _)) => self.close_port(id),
            (Op::Create | Op::Replace, UserspaceObject::Route(_, at, id)) => self.route(*at, id)?,
            (Op::Delete, UserspaceObject::Route(scope, at, _)) => self.unroute(*scope, *at),
            (Op::Create | Op::Replace, UserspaceObject::Listener(door)) => return self.listen(door),
            (Op::Delete, UserspaceObject::Listener(door)) => {
                self.close_door(door);
                if let Some(id) = self.listeners.remove(door) {
                    self.shared.names().remove(&id);
                    self.leaving.push_back((Instant::now() + LINGER, id));
                }
            }
            (_, UserspaceObject::Table(_)) => return Err(io::Error::other("it is in the table").into()),
        }
        Ok(())
    }

    /// Serves a service port with these endpoints.
    fn serve(&mut self, id: &PortId, spec: &PortSpec) {
        let affinity = spec.affinity_seconds.map(|seconds| Duration::from_secs(seconds.get().into()));
        let (shared, family) = (&self.shared, self.family);
        let known = self.ports.entry(id.clone()).or_insert_with(|| {
            let balancer = Arc::new(Balancer::new(affinity, DEFAULT_PENALTY));
            let port = Arc::new(Port::new(id.to_string(), Arc::clone(&balancer) as _, shared.limit_per_port));
            shared.directory.insert(family, id, &port);
            ServicePort { spec: spec.clone(), port, balancer }
        });
        known.balancer.set_affinity(affinity);
        let addresses: Vec<SocketAddr> =
            spec.pool.iter().map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port)).collect();
        self.shared.relay.replace_endpoints(&known.balancer, &addresses);
        known.spec = spec.clone();
        self.note_datagrams(id);
    }

    /// Notes what is behind the listener for datagrams of a service port, if it has one.
    fn note_datagrams(&self, id: &PortId) {
        if let (Some(number), Some(port)) = (self.doors.port(&Door::Datagrams(id.clone())), self.ports.get(id)) {
            self.shared.datagrams.lead(self.family, number, &port.spec.pool);
        }
    }

    /// Connections of a scope that goes stay while the other one serves: their endpoints do. The last one's have the grace of a
    /// removed endpoint.
    fn close_port(&mut self, id: &PortId) {
        let Some(port) = self.ports.remove(id) else { return };
        self.shared.directory.remove(self.family, id);
        if !self.ports.contains_key(&PortId { scope: other(id.scope), ..id.clone() }) {
            self.shared.relay.replace_endpoints(&port.balancer, &[]);
        }
    }

    /// Leads connections elsewhere. A connection to this scope may have begun before the table changed, and is accepted afterwards:
    /// it is of the other scope, if that serves the destination.
    fn unroute(&mut self, scope: Scope, at: FrontendAddr) {
        self.routes.remove(&(scope, at));
        let other = self.routes.get(&(other(scope), at)).and_then(|id| self.ports.get(id));
        match other.map(|port| Arc::clone(&port.port)) {
            Some(port) => drop(self.table(scope).insert(destination(at), port)),
            None => self.tables.iter().for_each(|table| drop(table.remove(destination(at)))),
        }
    }

    fn route(&mut self, at: FrontendAddr, id: &PortId) -> io::Result<()> {
        let port = self.ports.get(id).ok_or_else(|| no_port(id))?;
        self.table(id.scope).insert(destination(at), Arc::clone(&port.port));
        self.routes.insert((id.scope, at), id.clone());
        Ok(())
    }

    /// Opens a listener: with the socket that the process before has left, or at a port of the preferred range, the same one each
    /// time, or else at a port that the system chooses.
    fn listen(&mut self, door: &Door) -> Result<(), Failure> {
        let label = label(self.family, door);
        let listener = ListenerId(self.shared.next_listener.fetch_add(1, Ordering::Relaxed));
        let inherited = self.shared.inheritance.bind(&SocketName::Gate(label.clone()), self.at(0), false);
        let binds = match inherited {
            inherited @ Bind::Inherited { .. } => vec![inherited],
            Bind::Address { .. } | Bind::Open(_) => self.candidates(door.protocol(), &label),
        };
        let mut failure = Failure::from(io::Error::other("no port to listen at"));
        for bind in binds {
            match self.add(listener, door, &label, bind)? {
                ListenerState::Open(address) => {
                    self.doors.open(door, address.port());
                    if let Door::Datagrams(id) = door {
                        self.note_datagrams(id);
                    }
                    self.shared.names().insert(listener, label);
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
                let port = Arc::clone(&self.ports.get(id).ok_or_else(|| no_port(id))?.port);
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
                self.ports.get(id).map(|port| UserspaceObject::Port(id.clone(), port.spec.clone()))
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
        self.ports.keys().for_each(|id| self.shared.directory.remove(self.family, id));
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
                let ports = self.ports.iter().map(|(id, port)| UserspaceObject::Port(id.clone(), port.spec.clone()));
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
                Err(Failure::Exhausted(error)) => {
                    return Err(CommitFailure::unknown(CommitError::Resources(error)));
                }
                Err(Failure::Refused(error)) => refused.push((op, index, error)),
            }
        }
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

/// The address of a socket for all addresses of the machine.
pub(crate) const fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

fn other(scope: Scope) -> Scope {
    match scope {
        Scope::Cluster => Scope::Local,
        Scope::Local => Scope::Cluster,
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

/// The beginning of the names of a family's listeners.
pub(crate) const fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    }
}

/// A number that depends on the name alone.
fn preferred(label: &str) -> u32 {
    let text = HashId::of(label.as_bytes()).to_string();
    text.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or_default()
}
