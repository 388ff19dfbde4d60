//! networking.k8s.io/v1 ServiceCIDR: ranges from which cluster IPs are allocated.

use ipnet::IpNet;

use super::{ObjectName, Parsed};

/// Ranges from which cluster IPs are allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// metadata.name
    pub name: ObjectName,
    /// spec.cidrs
    pub cidrs: Box<[Parsed<IpNet>]>,
}
