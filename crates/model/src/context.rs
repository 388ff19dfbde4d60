//! Node facts and policy in one IP family, read by `resolve` and by compilers.

use std::net::IpAddr;
use std::sync::Arc;

use ferry_api::object::{Family, IpNet};

use crate::scheduler::{MissingSchedulers, Scheduler};

/// Node facts and policy that determine the state of services in one IP family. Facts that only the base objects of a plane
/// depend on are in [`BaseState`](crate::BaseState).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// this node's name: an endpoint with this nodeName is local
    pub node_name: String,
    /// this node's zone
    pub zone: Option<String>,
    /// this node's primary address: does a source range hold it?
    pub node_ip: Option<IpAddr>,
    /// the addresses of the machine that serve node ports, sorted; empty unless the profile
    /// [lists them](crate::Profile::lists_node_addresses)
    pub node_addresses: Arc<[IpAddr]>,
    /// the addresses of the machine on interfaces other than the proxy's own devices, sorted, without those that no Service can
    /// have; empty unless the profile [binds addresses](crate::Profile::binds_addresses)
    pub local_addresses: Arc<[IpAddr]>,
    /// the address of the machine at which rules hand connections to the proxy's own listeners; `None` unless the profile
    /// [relays](crate::Profile::relays). Loopback, which only the node itself reaches, while no other one is known
    pub relay_address: Option<IpAddr>,
    /// the detector of packets from pods of this node; `None` detects none
    pub local: Option<LocalDetector>,
    /// every connection to a cluster IP is masqueraded
    pub masquerade_all: bool,
    /// the bit of the packet mark that requests masquerading
    pub masquerade_mark: u32,
    /// the configured scheduler, of Services that choose none
    pub scheduler: Scheduler,
    /// schedulers that the kernel doesn't have: a Service that chooses one gets the configured one
    pub missing_schedulers: MissingSchedulers,
}

/// The detector of traffic from this node's pods: detectLocalMode with its ranges resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetector {
    /// the source is in this range
    Cidr(IpNet),
    /// the packet came in through this interface
    Bridge(String),
    /// the name of the interface it came in through begins with this
    InterfacePrefix(String),
}

/// One value per IP family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    /// for IPv4
    pub v4: T,
    /// for IPv6
    pub v6: T,
}

// === impl PerFamily ===

impl<T> PerFamily<T> {
    /// Makes each value from its family.
    pub fn from_fn(mut make: impl FnMut(Family) -> T) -> Self {
        Self { v4: make(Family::V4), v6: make(Family::V6) }
    }

    /// The value of a family.
    pub fn of(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// The value of a family, to change.
    pub fn of_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}
