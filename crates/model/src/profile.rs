//! Profiles: the capabilities of each mode. What the model decides depends on them, and not on the mode's name.

use ferry_api::object::Protocol;

use crate::state::MAX_COPIES;

/// The sender of a translated flow's replies, by which stale flows are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyOwner {
    /// from the endpoint: packets are translated by rules
    Endpoint,
    /// from a socket of the proxy, which relays them and ends its flows itself (userspace)
    Proxy,
}

/// The capabilities in which modes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// pods and the host ignore policy Local on the way to an external frontend (not ipvs)
    pub short_circuit: bool,
    /// an empty Local pool is replaced by the Cluster pool (ipvs)
    pub local_falls_back: bool,
    /// the host is masqueraded on the way to an external frontend with policy Local (not ipvs)
    pub masquerades_host_on_local: bool,
    /// an undefined port of a known cluster IP is rejected (not iptables)
    pub rejects_unknown_ports: bool,
    /// the host is rejected at an external frontend without endpoints (not iptables)
    pub rejects_host_to_external: bool,
    /// a source outside the source ranges is dropped even if the frontend has no endpoints to reject for (not iptables)
    pub filters_sources_before_reject: bool,
    /// only what no frontend has translated is refused, and each kind of frontend refuses in some hooks only: a cluster IP
    /// in forward and output, the others in input and forward; a node port on every address of the node (iptables)
    pub refuses_by_hook: bool,
    /// node ports are served on 127.0.0.1 too, if configured (iptables, userspace)
    pub serves_localhost: bool,
    /// a node port is an object for each address that serves it, so the context carries those addresses, and the base state
    /// names the same (ipvs)
    pub lists_node_addresses: bool,
    /// every address of a Service is bound on the node, unless another interface has it: what goes to an undefined port of it
    /// is refused and not forwarded, whatever kind of address it is, and the node's own connections to it have it as their
    /// source. So the context carries the addresses of the other interfaces (ipvs)
    pub binds_addresses: bool,
    /// connections into the ranges of cluster IPs, to an address that no Service has, are dropped (nftables, userspace)
    pub drops_unassigned_cluster_ips: bool,
    /// connections are balanced by a [`Scheduler`](crate::Scheduler) with weights, which a Service's annotations choose, among the
    /// endpoints that each frontend has for itself (ipvs)
    pub balances: bool,
    /// an established TCP connection ends some time after its endpoint has left the slices: so the state of a TCP port names the
    /// endpoints that are listed and in neither pool (ipvs, userspace)
    pub ends_connections: bool,
    /// the proxy listens at each address and port that a Service is served at, and has no rules: what nobody listens at is refused by
    /// the kernel, and a client that its listener doesn't serve gets a reset, or with UDP no answer. It sees a client's address and
    /// not the interface (userspace, way bind)
    pub listens: bool,
    /// a translated flow keeps its client's port. So an entry of the connection table that leads from an endpoint to that port, as
    /// one that an endpoint's late answer makes, blocks the flow's packets to that endpoint; rules would choose another port (ipvs)
    pub keeps_client_ports: bool,
    /// where the answers of a translated flow come from
    pub reply_owner: ReplyOwner,
}

impl Profile {
    /// Of every mode, and of every way of one.
    pub const ALL: &[Self] = &[Self::IPTABLES, Self::IPVS, Self::NFTABLES, Self::USERSPACE, Self::USERSPACE_BIND];

    /// The number of copies of its endpoints that a port with so many frontends has: up to [`MAX_COPIES`], and one for each where a
    /// frontend is a virtual server.
    pub const fn copies(self, frontends: usize) -> usize {
        if self.balances || frontends < MAX_COPIES { frontends } else { MAX_COPIES }
    }

    /// True if the proxy itself accepts connections and makes others to endpoints: an endpoint sees an address of the node, and
    /// SCTP is not served.
    pub const fn relays(self) -> bool {
        matches!(self.reply_owner, ReplyOwner::Proxy)
    }

    /// True if ports of this protocol are served: SCTP is not relayed.
    pub(crate) const fn serves(self, protocol: Protocol) -> bool {
        !(self.relays() && matches!(protocol, Protocol::Sctp))
    }

    /// The nftables mode.
    pub const NFTABLES: Self = Self {
        short_circuit: true,
        local_falls_back: false,
        masquerades_host_on_local: true,
        rejects_unknown_ports: true,
        rejects_host_to_external: true,
        filters_sources_before_reject: true,
        refuses_by_hook: false,
        serves_localhost: false,
        lists_node_addresses: false,
        binds_addresses: false,
        drops_unassigned_cluster_ips: true,
        balances: false,
        ends_connections: false,
        listens: false,
        keeps_client_ports: false,
        reply_owner: ReplyOwner::Endpoint,
    };

    /// The iptables mode.
    pub const IPTABLES: Self = Self {
        short_circuit: true,
        local_falls_back: false,
        masquerades_host_on_local: true,
        rejects_unknown_ports: false,
        rejects_host_to_external: false,
        filters_sources_before_reject: false,
        refuses_by_hook: true,
        serves_localhost: true,
        lists_node_addresses: false,
        binds_addresses: false,
        drops_unassigned_cluster_ips: false,
        balances: false,
        ends_connections: false,
        listens: false,
        keeps_client_ports: false,
        reply_owner: ReplyOwner::Endpoint,
    };

    /// The ipvs mode.
    pub const IPVS: Self = Self {
        short_circuit: false,
        local_falls_back: true,
        masquerades_host_on_local: false,
        rejects_unknown_ports: true,
        rejects_host_to_external: true,
        filters_sources_before_reject: true,
        refuses_by_hook: false,
        serves_localhost: false,
        lists_node_addresses: true,
        binds_addresses: true,
        drops_unassigned_cluster_ips: false,
        balances: true,
        ends_connections: true,
        listens: false,
        keeps_client_ports: true,
        reply_owner: ReplyOwner::Endpoint,
    };

    /// The userspace mode, way redirect.
    pub const USERSPACE: Self = Self {
        short_circuit: true,
        local_falls_back: false,
        masquerades_host_on_local: true,
        rejects_unknown_ports: true,
        rejects_host_to_external: true,
        filters_sources_before_reject: true,
        refuses_by_hook: false,
        serves_localhost: true,
        lists_node_addresses: false,
        binds_addresses: false,
        drops_unassigned_cluster_ips: true,
        balances: false,
        ends_connections: true,
        listens: false,
        keeps_client_ports: false,
        reply_owner: ReplyOwner::Proxy,
    };

    /// The userspace mode, way bind.
    pub const USERSPACE_BIND: Self = Self {
        serves_localhost: false,
        lists_node_addresses: true,
        binds_addresses: true,
        drops_unassigned_cluster_ips: false,
        listens: true,
        ..Self::USERSPACE
    };
}
