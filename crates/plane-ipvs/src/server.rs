//! Virtual servers: the identity, the settings and the weighted endpoints of each.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use ferry_api::object::Protocol;
use ferry_model::{Endpoint, Scheduler};

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

/// The settings of a virtual server and its endpoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualServer {
    /// the scheduler, and session affinity
    pub settings: Settings,
    /// the endpoints that get new connections, sorted by address and port. Shared by the servers of one service port
    pub endpoints: Arc<[Weighted]>,
}

/// The settings of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Settings {
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

// === impl Settings ===

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scheduler)?;
        self.persistence.map_or(Ok(()), |seconds| write!(f, " persistent {seconds}"))?;
        f.write_str(if self.altered { " altered" } else { "" })
    }
}
