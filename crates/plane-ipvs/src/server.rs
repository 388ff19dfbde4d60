//! Virtual servers: the identity, the settings and the weighted endpoints of each.

use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use ferry_api::object::Protocol;
use ferry_model::{Endpoint, Pool, PortState, Scheduler};

/// Identity of a virtual server: where clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId {
    /// protocol
    pub protocol: Protocol,
    /// service address, or address of the node
    pub address: IpAddr,
    /// port
    pub port: u16,
}

/// The settings of a virtual server and its endpoints. Two that serve the same are equal, whatever is listed.
#[derive(Clone, Debug)]
pub struct VirtualServer {
    /// the scheduler, and session affinity
    pub settings: ServerSettings,
    /// the endpoints that get new connections, sorted by address and port. Shared by the servers of one service port
    pub endpoints: Arc<[Weighted]>,
    /// the endpoints in the Service's slices: nothing is written for them, but those that drain keep their connections. None of a
    /// server that was read back
    pub listed: Listed,
}

/// The endpoints of a service port over TCP that are in the slices of its Service, whether they get new connections or not.
/// Shared by the servers of the port.
#[derive(Clone, Debug, Default)]
pub struct Listed(Option<Arc<[Pool; 3]>>);

/// The settings of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerSettings {
    /// the scheduler that picks the endpoint of a new connection
    pub scheduler: Scheduler,
    /// session affinity: seconds for which a client keeps its endpoint
    pub persistence: Option<NonZeroU32>,
    /// true for settings that this mode never makes, of the server or of a destination: another program has changed them
    pub altered: bool,
}

/// An endpoint with its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weighted {
    /// the endpoint
    pub endpoint: Endpoint,
    /// its weight, at least 1
    pub weight: u32,
}

// === impl ServerId ===

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.lower().to_ascii_uppercase();
        write!(f, "{protocol} {}", SocketAddr::new(self.address, self.port))
    }
}

// === impl VirtualServer ===

impl VirtualServer {
    /// The parts that the kernel has.
    fn served(&self) -> (ServerSettings, &[Weighted]) {
        (self.settings, &self.endpoints)
    }
}

impl PartialEq for VirtualServer {
    fn eq(&self, other: &Self) -> bool {
        self.served() == other.served()
    }
}

impl Eq for VirtualServer {}

impl PartialOrd for VirtualServer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for VirtualServer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.served().cmp(&other.served())
    }
}

/// As `ipvsadm -ln` prints it, without forwarding method and connections.
impl fmt::Display for VirtualServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.settings)?;
        for Weighted { endpoint, weight } in self.endpoints.iter() {
            write!(f, " -> {} weight {weight}", SocketAddr::new(endpoint.address, endpoint.port))?;
        }
        Ok(())
    }
}

// === impl Listed ===

impl Listed {
    /// Those of a port; none for UDP and SCTP, whose endpoints never drain.
    pub(crate) fn of(port: &PortState) -> Self {
        let pools = || Arc::new([&port.cluster, &port.local, &port.lingering].map(Pool::clone));
        Self((port.protocol == Protocol::Tcp).then(pools))
    }

    /// True if the endpoint is in the slices.
    pub fn contains(&self, endpoint: &Endpoint) -> bool {
        self.0.iter().flat_map(|pools| pools.iter()).any(|pool| pool.0.binary_search(endpoint).is_ok())
    }
}

// === impl ServerSettings ===

impl fmt::Display for ServerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scheduler)?;
        self.persistence.map_or(Ok(()), |seconds| write!(f, " persistent {seconds}"))?;
        f.write_str(if self.altered { " altered" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use ferry_conformance::states;
    use ferry_model::Pool;

    use super::*;

    #[test]
    fn what_is_listed_makes_no_difference() {
        let pool = |last| states::pool(ferry_api::object::Family::V4, &[last]);
        let endpoint = |last| pool(last).0[0];
        let port = |protocol| PortState { lingering: pool(3), ..states::port(protocol, pool(1), pool(2), Vec::new()) };
        let listed = Listed::of(&port(Protocol::Tcp));
        assert!((1..=3).all(|last| listed.contains(&endpoint(last))) && !listed.contains(&endpoint(4)));
        for protocol in [Protocol::Udp, Protocol::Sctp] {
            assert!(!(1..=3).any(|last| Listed::of(&port(protocol)).contains(&endpoint(last))), "{protocol}");
        }
        let settings = ServerSettings { scheduler: Scheduler::Rr, persistence: None, altered: false };
        let server = |endpoints: &Pool, listed| {
            let weighted = |endpoint: &Endpoint| Weighted { endpoint: *endpoint, weight: 1 };
            VirtualServer { settings, endpoints: endpoints.0.iter().map(weighted).collect(), listed }
        };
        assert_eq!(server(&pool(1), listed.clone()), server(&pool(1), Listed::default()));
        assert_ne!(server(&pool(1), listed.clone()), server(&pool(2), listed));
    }
    #[test]
    fn servers_are_in_the_order_of_their_settings_and_then_of_their_endpoints() {
        let settings = |scheduler| ServerSettings { scheduler, persistence: None, altered: false };
        let server = |scheduler, weights: &[u32]| {
            let endpoint = Endpoint { address: [10, 244, 0, 1].into(), port: 8080 };
            let endpoints = weights.iter().map(|weight| Weighted { endpoint, weight: *weight }).collect();
            VirtualServer { settings: settings(scheduler), endpoints, listed: Listed::default() }
        };
        let (first, last) = (Scheduler::Rr.min(Scheduler::Wrr), Scheduler::Rr.max(Scheduler::Wrr));
        let ascending = [server(first, &[]), server(first, &[1]), server(first, &[2]), server(last, &[])];
        for (index, one) in ascending.iter().enumerate() {
            for (other_index, other) in ascending.iter().enumerate() {
                assert_eq!(one.partial_cmp(other), Some(index.cmp(&other_index)), "{one}, {other}");
            }
        }
    }
}
