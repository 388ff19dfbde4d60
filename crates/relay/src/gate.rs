//! The target of a listener: one port for all connections, or the port that a gate's route returns for the original destination of each.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use crate::port::Port;
use crate::route::Route;
use crate::socket::Bind;
use crate::system;

/// A TCP listener for connections to many destinations, which netfilter redirects to it (`dnat`, `redirect`). The port of each
/// is found by its original destination.
#[derive(Debug)]
pub struct Gate {
    /// The name for logs.
    pub name: String,
    /// Where its socket comes from. With port 0 the system chooses one, which the state reports and which it keeps.
    pub bind: Bind,
    /// The ports of the destinations.
    pub route: Arc<dyn Route>,
}

/// The ports that a listener serves.
#[derive(Clone, Debug)]
pub(crate) enum ServedPorts {
    /// All connections and datagrams are of this port.
    Port(Arc<Port>),
    /// The port depends on the original destination.
    Gate(Arc<str>, Arc<dyn Route>),
}

// === impl ServedPorts ===

impl ServedPorts {
    /// The name for logs.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Port(port) => port.name(),
            Self::Gate(name, _) => name,
        }
    }

    /// The port of every connection; `None` of a gate.
    pub(crate) fn port(&self) -> Option<&Arc<Port>> {
        match self {
            Self::Port(port) => Some(port),
            Self::Gate(..) => None,
        }
    }

    /// The port of one connection. At a gate there is none if the original destination is unknown, is the gate itself, or has no
    /// route.
    pub(crate) fn port_of(&self, stream: &TcpStream) -> Option<Arc<Port>> {
        match self {
            Self::Port(port) => Some(Arc::clone(port)),
            Self::Gate(_, route) => {
                let destination = redirected_from(stream)?;
                route.route(destination)
            }
        }
    }
}

/// The original destination of a connection that was redirected.
fn redirected_from(stream: &TcpStream) -> Option<SocketAddr> {
    let local = stream.local_addr().ok()?;
    // Fails without connection tracking. With it, a connection that was not redirected has its local address here.
    let original = system::original_destination(stream, local.is_ipv6()).ok()?;
    ((original.ip(), original.port()) != (local.ip(), local.port())).then_some(original)
}
