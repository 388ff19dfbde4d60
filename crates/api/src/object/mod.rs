//! The Kubernetes objects that a service proxy reads, reduced to the fields it reads. Compact, since a node holds a hundred
//! thousand endpoints.
//!
//! A value that doesn't parse is kept as its text ([`Parsed`]), so that the model can report object and field, and use the rest.

mod dns;
mod endpoint_slice;
mod node;
mod service;
mod service_cidr;
mod uid;

use std::fmt;
use std::sync::Arc;

pub use dns::{is_dns_label, is_dns_subdomain};
pub use endpoint_slice::{
    AddressType, Conditions, EndpointSlice, EndpointSliceBuilder, Hints, SliceEndpoint, SlicePort,
};
pub use ferry_family::Family;
pub use ipnet::IpNet;
pub use node::{AddressKind, Node, NodeAddress};
pub use service::{
    BalancingAnnotations, DEFAULT_AFFINITY_SECONDS, LoadBalancerIngress, MAX_AFFINITY_SECONDS, OddField, OddValue,
    SCHEDULER_ANNOTATION, Service, ServicePort, ServiceType, TrafficPolicy, WEIGHT_LOCAL_ANNOTATION,
    WEIGHT_ZONES_ANNOTATION,
};
pub use service_cidr::ServiceCidr;
pub use uid::Uid;

/// A value of the API, or its text where that doesn't parse.
pub type Parsed<T> = Result<T, Box<str>>;

/// Namespace and name of an object; a cluster-wide object has an empty namespace. Decoders let through only names that an
/// API server would accept ([`is_dns_label`], [`is_dns_subdomain`]).
///
/// Kept as one text `namespace/name`, which orders by namespace first and costs one allocation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(Arc<str>);

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01T00:00:00Z.
    pub seconds: i64,
    /// The rest, 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// Kinds of API objects, for events about a whole collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// core/v1 Service
    Service,
    /// discovery.k8s.io/v1 EndpointSlice
    EndpointSlice,
    /// core/v1 Node
    Node,
    /// networking.k8s.io/v1 ServiceCIDR
    ServiceCidr,
}

/// Any object that a source delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeObject {
    /// core/v1 Service
    Service(Service),
    /// discovery.k8s.io/v1 EndpointSlice
    EndpointSlice(EndpointSlice),
    /// core/v1 Node
    Node(Node),
    /// networking.k8s.io/v1 ServiceCIDR
    ServiceCidr(ServiceCidr),
}

/// A transport protocol that a service port may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// IP protocol 6
    Tcp,
    /// IP protocol 17
    Udp,
    /// IP protocol 132
    Sctp,
}

// === impl ObjectName ===

impl ObjectName {
    /// Makes the name of a namespaced object.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// Makes the name of a cluster-wide object.
    pub fn cluster_wide(name: &str) -> Self {
        Self::new("", name)
    }

    /// The namespace; empty for a cluster-wide object.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name within its namespace.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(_, name)| name)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.namespace().is_empty() { self.name() } else { &self.0 })
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Kind ===

impl Kind {
    /// True if its objects have no namespace.
    pub fn is_cluster_wide(self) -> bool {
        match self {
            Self::Service | Self::EndpointSlice => false,
            Self::Node | Self::ServiceCidr => true,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        })
    }
}

// === impl KubeObject ===

impl KubeObject {
    /// The object's kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::Node(_) => Kind::Node,
            Self::ServiceCidr(_) => Kind::ServiceCidr,
        }
    }

    /// The object's namespace and name.
    pub fn name(&self) -> &ObjectName {
        match self {
            Self::Service(object) => &object.name,
            Self::EndpointSlice(object) => &object.name,
            Self::Node(object) => &object.name,
            Self::ServiceCidr(object) => &object.name,
        }
    }
}

// === impl Protocol ===

impl Protocol {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The protocol number in an IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// Lower-case name, as nft and iptables print it.
    pub fn lower(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_has_its_number_of_ip_and_its_lower_case_name() {
        let all = Protocol::ALL.map(|protocol| (protocol.number(), protocol.lower()));
        assert_eq!(all, [(6, "tcp"), (17, "udp"), (132, "sctp")]);
    }

    #[test]
    fn a_name_is_shown_with_its_namespace_if_it_has_one() {
        for (name, wanted) in [(ObjectName::new("shop", "web"), "shop/web"), (ObjectName::cluster_wide("n1"), "n1")] {
            assert_eq!([name.to_string(), format!("{name:?}")], [wanted, wanted]);
        }
    }
}
