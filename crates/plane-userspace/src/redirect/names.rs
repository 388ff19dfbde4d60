//! Names of the table, its sets, maps and chains. Those that other modes have, too, bear the same names.

use ferry_model::Scope;
use ferry_ruleset::names;

/// The name of the table, in either family: that of mode nftables, so that a change between these modes is one replaced table,
/// and that upstream's proxy deletes the table when it starts in mode ipvs or iptables.
pub const TABLE: &str = "kube-proxy";

/// The comment of the table: its maker and the layout of its contents. A table with another comment is replaced.
pub const TABLE_COMMENT: &str = "kube-proxy by Ferry, userspace layout 1";

names! {
    /// The sets and maps of the base.
    FixedSet {
        /// VIP, protocol, port → verdict
        ServiceIps = "service-ips",
        /// protocol, node port → verdict
        ServiceNodePorts = "service-nodeports",
        /// VIP, protocol, port → verdict after the source ranges have admitted the packet
        RestrictedIps = "restricted-ips",
        /// every cluster IP
        ClusterIps = "cluster-ips",
        /// the addresses that serve node ports, if those are not all local ones
        NodePortIps = "nodeport-ips",
        /// TCP → the listener for connections to all endpoints
        GateCluster = "gate-cluster",
        /// TCP → the listener for connections to endpoints on this node
        GateLocal = "gate-local",
        /// VIP, UDP, port → the listener of its service port, to all endpoints
        DatagramsCluster = "datagrams-cluster",
        /// VIP, UDP, port → the listener of its service port, to endpoints on this node
        DatagramsLocal = "datagrams-local",
        /// UDP, node port → the listener of its service port, to all endpoints
        DatagramsNodePortsCluster = "datagrams-nodeports-cluster",
        /// UDP, node port → the listener of its service port, to endpoints on this node
        DatagramsNodePortsLocal = "datagrams-nodeports-local",
        /// the protocols and ports of all listeners
        Listeners = "listeners",
    }
}

names! {
    /// The chains of the base.
    FixedChain {
        /// rejects: TCP with a reset, other protocols with port-unreachable
        Reject = "reject-chain",
        /// leads to the listener for all endpoints
        RelayCluster = "relay-cluster",
        /// leads to the listener for endpoints on this node
        RelayLocal = "relay-local",
        /// policy Local: this node and its pods reach all endpoints, others those on this node
        ByOrigin = "by-origin",
        /// policy Local without an endpoint on this node: only this node and its pods reach endpoints
        InsideOnly = "inside-only",
        /// policy Local without an endpoint for this node and its pods: only others reach endpoints
        OutsideOnly = "outside-only",
        /// refuses packets to a cluster IP without such a port, drops those to an address of a service range without a service
        Unknown = "unknown",
        /// looks up the frontend of a packet
        Services = "services",
        /// received packets
        NatPrerouting = "nat-prerouting",
        /// received packets that are not translated: second lookup, refusal of unknown addresses
        NatPreroutingLate = "nat-prerouting-late",
        /// packets that arrive at a local socket: nobody reaches a listener by its own port
        NatInput = "nat-input",
        /// packets that this node sends
        NatOutput = "nat-output",
        /// untranslated packets that this node sends: second lookup, refusal of unknown addresses
        NatOutputLate = "nat-output-late",
    }
}

// === impl FixedSet ===

impl FixedSet {
    /// The map of TCP's listener for a scope.
    pub(crate) const fn gate(scope: Scope) -> Self {
        match scope {
            Scope::Cluster => Self::GateCluster,
            Scope::Local => Self::GateLocal,
        }
    }

    /// The map of UDP's listeners for a scope, by service address or by node port.
    pub(crate) const fn datagrams(scope: Scope, at_node_port: bool) -> Self {
        match (scope, at_node_port) {
            (Scope::Cluster, false) => Self::DatagramsCluster,
            (Scope::Local, false) => Self::DatagramsLocal,
            (Scope::Cluster, true) => Self::DatagramsNodePortsCluster,
            (Scope::Local, true) => Self::DatagramsNodePortsLocal,
        }
    }
}
