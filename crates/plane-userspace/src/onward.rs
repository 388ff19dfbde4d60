//! Passes on the connections that wait in listening sockets of a process before, once another mode's rules serve.
//!
//! Between the end of that process and the first rules of this one, its table still leads to these sockets, or its routes do. Each
//! connection goes on to the destination that its client has dialled, as one of the node: the rules that are in force now lead it to an
//! endpoint.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_relay::{
    Balancer, Bind, DEFAULT_PENALTY, Destination, Gate, Listener, ListenerId, ListenerState, OpenSocket, Port,
    Protocol, Relay, RelayConfig, Route, SocketName,
};

use crate::shared::{is_of, unspecified};

/// Time after which nothing can wait in the sockets any more.
const WAITING: Duration = Duration::from_secs(60);
/// Interval of the looks for the end of the last connection.
const LOOK: Duration = Duration::from_secs(1);
/// The most connections that are passed on at a time.
const LIMIT: usize = 10_000;

/// The sockets of a process before, until the rules of their family are in force.
#[derive(Debug, Default)]
pub struct Onward {
    sockets: Vec<(SocketName, OpenSocket)>,
}

/// Leads each connection to its original destination.
#[derive(Debug)]
struct ToOriginal;

// === impl Onward ===

impl Onward {
    /// With these sockets, by the names of [`SharedRelay::sockets`](crate::SharedRelay::sockets). Those for UDP are closed: what waits in
    /// them is lost, as on any way.
    pub fn new(sockets: Vec<(String, OpenSocket)>) -> Self {
        let named = sockets.into_iter().filter_map(|(name, socket)| Some((name.parse().ok()?, socket)));
        Self { sockets: named.filter(|(name, _)| is_of_tcp(name)).collect() }
    }

    /// Starts to pass on the connections of a family, whose rules are in force. Without sockets this does nothing.
    ///
    /// # Errors
    /// The system's error if there is no thread or descriptor for it: the connections are reset.
    pub fn settled(&mut self, family: Family) -> io::Result<()> {
        let own: Vec<_> = self.sockets.extract_if(.., |(name, _)| is_of(name, family)).collect();
        if own.is_empty() {
            return Ok(());
        }
        let config = RelayConfig { workers: 1, max_connections: LIMIT, ..RelayConfig::default() };
        let (relay, workers) = Relay::new(config)?;
        for worker in workers {
            thread::Builder::new().name("onward".to_owned()).spawn(move || worker.run())?;
        }
        for (number, (name, socket)) in (0..).zip(own) {
            let state = add(&relay, ListenerId(number), family, name, socket);
            if !matches!(state, ListenerState::Open(_)) {
                tracing::debug!(?state, "A socket of the process before can't be used");
            }
        }
        thread::Builder::new().name("onward-end".to_owned()).spawn(move || end(&relay))?;
        Ok(())
    }
}

/// Accepts what waits in a socket.
fn add(relay: &Relay, id: ListenerId, family: Family, name: SocketName, socket: OpenSocket) -> ListenerState {
    let bind = |address| Bind::Inherited { socket, address, reuse_port: false };
    match name {
        SocketName::Listener(protocol, Destination::Address(address, port)) => {
            let at = SocketAddr::new(address, port);
            relay.add(id, Listener { protocol, bind: bind(at), port: to(at) })
        }
        SocketName::Gate(_) | SocketName::Listener(_, Destination::AnyAddress(_)) => {
            let bind = bind(SocketAddr::new(unspecified(family), 0));
            relay.add_gate(id, Gate { name: name.to_string(), bind, route: Arc::new(ToOriginal) })
        }
    }
}

/// A port that leads to this destination.
fn to(destination: SocketAddr) -> Arc<Port> {
    let balancer = Balancer::new(None, DEFAULT_PENALTY);
    balancer.replace(&[destination], []);
    Arc::new(Port::new(format!("onward to {destination}"), Arc::new(balancer), LIMIT))
}

/// Ends the relay once nothing waits any more and the last connection has ended.
fn end(relay: &Relay) {
    let until = Instant::now() + WAITING;
    while Instant::now() < until || relay.totals().open_connections.value() > 0 {
        thread::sleep(LOOK);
    }
    relay.drain(Duration::ZERO);
}

fn is_of_tcp(name: &SocketName) -> bool {
    match name {
        SocketName::Gate(label) => !label.contains("-udp-"),
        SocketName::Listener(protocol, _) => *protocol == Protocol::Tcp,
    }
}

// === impl ToOriginal ===

impl Route for ToOriginal {
    fn route(&self, destination: SocketAddr) -> Option<Arc<Port>> {
        Some(to(destination))
    }
}
