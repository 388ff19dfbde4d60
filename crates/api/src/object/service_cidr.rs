//! networking.k8s.io/v1 ServiceCIDR.

use ipnet::IpNet;

use super::{ObjectName, Parsed};

/// Ranges that cluster IPs are taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// metadata.name
    pub name: ObjectName,
    /// spec.cidrs
    pub cidrs: Box<[Parsed<IpNet>]>,
}
