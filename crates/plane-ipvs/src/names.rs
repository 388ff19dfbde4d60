//! Names of the table, its sets, maps and chains. Those that modes nftables and ipvs both have bear the same names.

use ferry_ruleset::names;

/// The name of the table, in either family: that of mode nftables, so that a change between these modes is one replaced table,
/// and that upstream's proxy deletes the table when it starts in mode ipvs or iptables.
pub const TABLE: &str = "kube-proxy";

/// The comment of the table: its maker and the layout of its contents. A table with another comment is replaced.
pub const TABLE_COMMENT: &str = "kube-proxy by Ferry, ipvs layout 1";

/// The device that holds the service addresses, as upstream's proxy names it.
pub const DEVICE: &str = "kube-ipvs0";

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
