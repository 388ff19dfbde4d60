//! Names of the table, its sets, maps and chains. Those that modes nftables and ipvs both have bear the same names.

use std::fmt;

use ferry_ruleset::names;
use ferry_ruleset::names::Name as _;
use ferry_ruleset::sources::SourcesId;

/// The name of the table, in either family: that of mode nftables, so that a change between these modes is one replaced table,
/// and that upstream's proxy deletes the table when it starts in mode ipvs or iptables.
pub const TABLE: &str = "kube-proxy";

/// The comment of the table: its maker and the layout of its contents. A table with another comment is replaced.
pub const TABLE_COMMENT: &str = "kube-proxy by Ferry, ipvs layout 1";

/// The device that holds the service addresses, as upstream's proxy names it.
pub const DEVICE: &str = "kube-ipvs0";

/// A set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName {
    /// part of the base: always present
    Fixed(FixedSet),
    /// source ranges; sorts last, as [`IpvsObject::Ranges`](crate::IpvsObject::Ranges) does
    Sources(SourcesId),
}

/// A chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// part of the base
    Fixed(FixedChain),
    /// drops packets from outside these source ranges
    Restricted(SourcesId),
}

names! {
    /// The sets and maps of the base.
    FixedSet {
        /// VIP, protocol, port → verdict
        ServiceIps = "service-ips",
        /// protocol, node port → verdict
        ServiceNodePorts = "service-nodeports",
        /// VIP, protocol, port → verdict after the source ranges have admitted the packet
        RestrictedIps = "restricted-ips",
        /// the addresses that are, or are about to be, on the device
        BoundIps = "bound-ips",
        /// the node's addresses that serve node ports
        NodePortIps = "nodeport-ips",
        /// with answers to pings only where there are endpoints: the addresses that have some
        PingedIps = "pinged-ips",
        /// ports of health checks, which load balancers reach on service addresses too
        HealthPorts = "health-ports",
        /// every octet, paired with itself: addresses are equal if all their octets are
        SameOctet = "same-octet",
    }
}

names! {
    /// The chains of the base.
    FixedChain {
        /// rejects: TCP with a reset, other protocols with port-unreachable
        Reject = "reject-chain",
        /// requests masquerading for packets to a cluster IP that don't come from pods of this node
        MasqueradeCluster = "masquerade-cluster",
        /// requests masquerading
        MasqueradeExternal = "masquerade-external",
        /// refuses packets to a service address that no Service's port has
        Bound = "bound",
        /// drops packets that leave for a service address, since no virtual server has taken them
        Unserved = "unserved",
        /// looks up the frontend of a packet
        Services = "services",
        /// received packets
        NatPrerouting = "nat-prerouting",
        /// packets to this node that IPVS has not taken
        NatInput = "nat-input",
        /// packets that this node sends
        NatOutput = "nat-output",
        /// packets that leave: masquerading
        NatPostrouting = "nat-postrouting",
    }
}

// === impl SetName ===

impl SetName {
    /// Parses a name; `None` for one that this mode never makes.
    pub fn parse(name: &str) -> Option<Self> {
        match name.strip_prefix("sources-") {
            Some(id) => SourcesId::parse(id).map(Self::Sources),
            None => FixedSet::parse(name).map(Self::Fixed),
        }
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(fixed) => fixed.fmt(f),
            Self::Sources(id) => write!(f, "sources-{id}"),
        }
    }
}

// === impl ChainName ===

impl ChainName {
    /// Parses a name; `None` for one that this mode never makes.
    pub fn parse(name: &str) -> Option<Self> {
        match name.strip_prefix("restricted-") {
            Some(id) => SourcesId::parse(id).map(Self::Restricted),
            None => FixedChain::parse(name).map(Self::Fixed),
        }
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(fixed) => fixed.fmt(f),
            Self::Restricted(id) => write!(f, "restricted-{id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_parsed_as_it_is_printed() {
        let id = SourcesId::of_digest(&[7; 32]);
        for set in FixedSet::ALL.iter().copied().map(SetName::Fixed).chain([SetName::Sources(id)]) {
            assert_eq!(SetName::parse(&set.to_string()), Some(set));
        }
        for chain in FixedChain::ALL.iter().copied().map(ChainName::Fixed).chain([ChainName::Restricted(id)]) {
            assert_eq!(ChainName::parse(&chain.to_string()), Some(chain));
        }
        assert_eq!((SetName::parse("sources-7"), SetName::parse("cluster-ips")), (None, None));
        assert_eq!((ChainName::parse("restricted-"), ChainName::parse("input")), (None, None));
    }
}
