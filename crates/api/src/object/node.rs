//! core/v1 Node: its addresses, pod ranges and zone, and the signs that it is about to be deleted, so that load balancers
//! should not send to it.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{ObjectName, Parsed};

/// The node this proxy runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// metadata.name
    pub name: ObjectName,
    /// label `topology.kubernetes.io/zone`; `None` if absent or empty
    pub zone: Option<Box<str>>,
    /// status.addresses that are addresses (host names are left out), in order
    pub addresses: Box<[NodeAddress]>,
    /// spec.podCIDRs, or spec.podCIDR if the former is absent
    pub pod_cidrs: Box<[Parsed<IpNet>]>,
    /// metadata.deletionTimestamp is set
    pub deleting: bool,
    /// carries the taint `ToBeDeletedByClusterAutoscaler`
    pub to_be_deleted: bool,
}

/// One entry of status.addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// type
    pub kind: AddressKind,
    /// address
    pub address: Parsed<IpAddr>,
}

/// The types of node addresses that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// InternalIP, preferred
    Internal,
    /// ExternalIP
    External,
}
