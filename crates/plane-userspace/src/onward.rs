//! Passes on the connections that wait in listening sockets of a process before, once another mode's rules serve.
//!
//! Between the end of that process and the first rules of this one, its table still leads to these sockets. Each connection goes on to
//! the destination that its client has dialled, as one of the node: the rules that are in force now lead it to an endpoint.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_relay::{
    Balancer, Bind, Config, DEFAULT_PENALTY, Gate, ListenerId, ListenerState, Port, Relay, Route, SocketName,
};

use crate::relay::{family_word, unspecified};

/// Time after which nothing can wait in the sockets any more.
const WAITING: Duration = Duration::from_secs(60);
/// Interval of the looks for the end of the last connection.
const LOOK: Duration = Duration::from_secs(1);
/// The most connections that are passed on at a time.
const LIMIT: usize = 10_000;

/// The sockets of a process before, until the rules of their family are in force.
#[derive(Debug, Default)]
pub struct Onward {
    sockets: Vec<(String, OwnedFd)>,
}

/// Leads each connection to its original destination.
#[derive(Debug)]
struct ToOriginal;

// === impl Onward ===

impl Onward {
    /// With these sockets, by the names of [`SharedRelay::sockets`](crate::SharedRelay::sockets). Those for UDP are closed: what waits in
    /// them is lost, as on any way.
    pub fn new(sockets: Vec<(String, OwnedFd)>) -> Self {
        let of_tcp = |(name, _): &(String, OwnedFd)| label(name).is_some_and(|label| !label.contains("-udp-"));
        Self { sockets: sockets.into_iter().filter(of_tcp).collect() }
    }

    /// Starts to pass on the connections of a family, whose rules are in force. Without sockets this does nothing.
    ///
    /// # Errors
    /// The system's error if there is no thread or descriptor for it: the connections are reset.
    pub fn settled(&mut self, family: Family) -> io::Result<()> {
        let begins = format!("{}-", family_word(family));
        let is_of_family = |(name, _): &mut (String, OwnedFd)| label(name).is_some_and(|l| l.starts_with(&begins));
        let own: Vec<(String, OwnedFd)> = self.sockets.extract_if(.., is_of_family).collect();
        if own.is_empty() {
            return Ok(());
        }
        let config = Config { workers: 1, max_connections: LIMIT, ..Config::default() };
        let (relay, workers) = Relay::new(config)?;
        for worker in workers {
            thread::Builder::new().name("onward".to_owned()).spawn(move || worker.run())?;
        }
        for (number, (name, socket)) in (0..).zip(own) {
            let bind = Bind::Inherited { socket, address: SocketAddr::new(unspecified(family), 0), reuse_port: false };
            let state = relay.add_gate(ListenerId(number), Gate { name, bind, route: Arc::new(ToOriginal) });
            if !matches!(state, ListenerState::Open(_)) {
                tracing::debug!(?state, "A socket of the process before can't be used");
            }
        }
        thread::Builder::new().name("onward-end".to_owned()).spawn(move || end(&relay))?;
        Ok(())
    }
}

/// Ends the relay once nothing waits any more and the last connection has ended.
fn end(relay: &Relay) {
    let until = Instant::now() + WAITING;
    while Instant::now() < until || relay.totals().open_connections.value() > 0 {
        thread::sleep(LOOK);
    }
    relay.drain(Duration::ZERO);
}

/// The label in a socket's name.
fn label(name: &str) -> Option<String> {
    match name.parse() {
        Ok(SocketName::Gate(label)) => Some(label),
        Ok(SocketName::Listener(..)) | Err(_) => None,
    }
}

// === impl ToOriginal ===

impl Route for ToOriginal {
    fn route(&self, destination: SocketAddr) -> Option<Arc<Port>> {
        let balancer = Balancer::new(None, DEFAULT_PENALTY);
        balancer.replace(&[destination]);
        Some(Arc::new(Port::new(format!("onward to {destination}"), Arc::new(balancer), LIMIT)))
    }

    /// Each has one connection.
    fn ports(&self) -> Vec<Arc<Port>> {
        Vec::new()
    }
}
