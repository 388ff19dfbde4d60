//! The open connections of one listener: one more than the limit ends the idlest of the client with the most.

use std::cell::Cell;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// The open connections, oldest first.
pub(super) struct Connections {
    tasks: JoinSet<()>,
    open: Vec<ServedConnection>,
    limit: usize,
}

struct ServedConnection {
    task: AbortHandle,
    client: IpAddr,
    activity: Activity,
}

/// The time of a connection's last request, or of its start.
#[derive(Clone)]
pub(super) struct Activity(Rc<Cell<Instant>>);

// === impl Connections ===

impl Connections {
    pub(super) fn new(limit: usize) -> Self {
        Self { tasks: JoinSet::new(), open: Vec::new(), limit }
    }

    /// Runs a connection of this client. If there are too many then, one ends: the idlest of the client that has the most, so
    /// that a client that opens many, idle or busy, only closes its own.
    pub(super) async fn add(
        &mut self,
        client: IpAddr,
        activity: Activity,
        connection: impl Future<Output = ()> + 'static,
    ) {
        self.forget_ended();
        let task = self.tasks.spawn_local(connection);
        self.open.push(ServedConnection { task, client: network(client), activity });
        if self.open.len() > self.limit
            && let Some(idlest) = self.idlest()
        {
            self.open.remove(idlest).task.abort();
            // Lets the aborted task close its connection before the next accept.
            tokio::task::yield_now().await;
        }
    }

    /// Waits until a connection has ended, and frees its resources.
    pub(super) async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(_) => self.forget_ended(),
            None => std::future::pending().await,
        }
    }

    /// The position of the idlest connection among those of the client that has the most; among equals, the oldest.
    fn idlest(&self) -> Option<usize> {
        let count = |open: &ServedConnection| self.open.iter().filter(|other| other.client == open.client).count();
        let most = self.open.iter().map(count).max()?;
        let candidates = self.open.iter().enumerate().filter(|(_, open)| count(open) == most);
        candidates.min_by_key(|(_, open)| open.activity.0.get()).map(|(at, _)| at)
    }

    /// Drops the handles of ended tasks, since a handle keeps its task's memory.
    fn forget_ended(&mut self) {
        self.open.retain(|open| !open.task.is_finished());
    }
}

// === impl Activity ===

impl Activity {
    /// A connection that has just been opened.
    pub(super) fn new() -> Self {
        Self(Rc::new(Cell::new(Instant::now())))
    }

    /// Notes a request.
    pub(super) fn note(&self) {
        self.0.set(Instant::now());
    }
}

/// The part of an address that identifies a client: one may have all addresses of an IPv6 network of 64 bits.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_by_their_network() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8::1"));
    }
}
