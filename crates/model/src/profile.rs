//! What a mode can express: the only place where modes differ.

/// Where modes differ, and nothing else.
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
    /// a source outside the source ranges is dropped before missing endpoints are looked at (nftables)
    pub filters_sources_before_reject: bool,
}

impl Profile {
    /// The nftables mode.
    pub const NFTABLES: Self = Self {
        short_circuit: true,
        local_falls_back: false,
        masquerades_host_on_local: true,
        rejects_unknown_ports: true,
        rejects_host_to_external: true,
        filters_sources_before_reject: true,
    };
}
