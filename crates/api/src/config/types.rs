//! The types of KubeProxyConfiguration, `kubeproxy.config.k8s.io/v1alpha1`: every field of upstream 1.36, with Rust names; and of
//! FerryConfiguration, `ferry.io/v1alpha1`.
//!
//! Fields whose values form a closed set (mode, detectLocalMode …) are strings: any string decodes, and the error of validation
//! lists the valid ones.

use std::collections::BTreeMap;
use std::time::Duration;

use super::GoDuration;

/// mode: iptables, upstream's default where mode is blank.
pub const MODE_IPTABLES: &str = "iptables";
/// mode: ipvs.
pub const MODE_IPVS: &str = "ipvs";
/// mode: nftables.
pub const MODE_NFTABLES: &str = "nftables";
/// The mode in which the proxy relays connections itself.
pub const MODE_USERSPACE: &str = "userspace";
/// userspaceWay: an nf_tables table leads connections to the proxy's listeners.
pub const WAY_REDIRECT: &str = "redirect";
/// userspaceWay: the proxy listens at the addresses of Services.
pub const WAY_BIND: &str = "bind";
/// The default of statusPage: this machine alone.
pub const PAGE_LOOPBACK: &str = "loopback";
/// The value of statusPage that serves every client of the metrics address.
pub const PAGE_EVERYONE: &str = "everyone";
/// The value of statusPage for no page.
pub const PAGE_NOBODY: &str = "nobody";
/// The ranges of the self-test where none are configured: parts of ranges for documentation (RFC 5737, RFC 3849), which no network routes.
pub const SELF_TEST_RANGES: [&str; 2] = ["192.0.2.248/29", "2001:db8:7e57::/125"];
/// The default of controlSocket.
pub const CONTROL_SOCKET: &str = "/run/kube-proxy/control.sock";
/// Of Windows; `mode` if it is `userspace` or blank there. Upstream has removed it.
pub const MODE_WINUSERSPACE: &str = "winuserspace";

/// detectLocalMode: the source is in clusterCIDR; the default.
pub const LOCAL_MODE_CLUSTER_CIDR: &str = "ClusterCIDR";
/// detectLocalMode: the source is in one of the node's podCIDRs.
pub const LOCAL_MODE_NODE_CIDR: &str = "NodeCIDR";
/// detectLocalMode: the packet came in through a bridge.
pub const LOCAL_MODE_BRIDGE_INTERFACE: &str = "BridgeInterface";
/// detectLocalMode: the packet came in through an interface whose name begins so.
pub const LOCAL_MODE_INTERFACE_NAME_PREFIX: &str = "InterfaceNamePrefix";

/// The keyword of nodePortAddresses for the node's primary addresses.
pub const NODE_PORT_ADDRESSES_PRIMARY: &str = "primary";

/// The configuration of a kube-proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeProxyConfiguration {
    /// featureGates
    pub feature_gates: BTreeMap<String, bool>,
    /// clientConnection: kubeconfig, content types and rate limit of the API client
    pub client_connection: ClientConnection,
    /// logging
    pub logging: Logging,
    /// hostnameOverride: the node's name where it isn't the host's; used trimmed and in lower case
    pub hostname_override: String,
    /// bindAddress: the node's address where it isn't the Node object's; binds nothing
    pub bind_address: String,
    /// healthzBindAddress, `IP:port`
    pub healthz_bind_address: String,
    /// metricsBindAddress, `IP:port`
    pub metrics_bind_address: String,
    /// bindAddressHardFail: failing to bind one of these two is fatal
    pub bind_address_hard_fail: bool,
    /// enableProfiling
    pub enable_profiling: bool,
    /// showHiddenMetricsForVersion: blank, or the previous minor version
    pub show_hidden_metrics_for_version: String,
    /// mode; blank means upstream's default, iptables
    pub mode: String,
    /// iptables
    pub iptables: IpTables,
    /// ipvs
    pub ipvs: Ipvs,
    /// nftables
    pub nftables: NfTables,
    /// winkernel
    pub winkernel: WinKernel,
    /// detectLocalMode
    pub detect_local_mode: String,
    /// detectLocal
    pub detect_local: DetectLocal,
    /// clusterCIDR: one range, or one of each family joined by a comma
    pub cluster_cidr: String,
    /// nodePortAddresses: CIDRs, or the keyword `primary` alone
    pub node_port_addresses: Vec<String>,
    /// oomScoreAdj, -1000 to 1000
    pub oom_score_adj: i32,
    /// conntrack
    pub conntrack: Conntrack,
    /// configSyncPeriod: upstream's interval for processing all known objects again
    pub config_sync_period: GoDuration,
    /// portRange: the ports that listeners of mode userspace prefer, such as `61000-61999`; empty for the default
    pub port_range: String,
    /// windowsRunAsService
    pub windows_run_as_service: bool,
    /// Ferry's own settings, from a document of their own
    pub ferry: FerryConfiguration,
}

/// clientConnection
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientConnection {
    /// kubeconfig: path of the file; blank means in-cluster
    pub kubeconfig: String,
    /// acceptContentTypes
    pub accept_content_types: String,
    /// contentType
    pub content_type: String,
    /// qps: requests a second; negative for no limit
    pub qps: f32,
    /// burst: requests at once
    pub burst: i32,
}

/// logging
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logging {
    /// format: text or json
    pub format: String,
    /// flushFrequency
    pub flush_frequency: GoDuration,
    /// flushFrequency stood as a number of nanoseconds, and is written so again
    pub flush_in_nanoseconds: bool,
    /// verbosity
    pub verbosity: u32,
    /// vmodule
    pub vmodule: Vec<VModule>,
    /// options.text
    pub text: LogOptions,
    /// options.json
    pub json: LogOptions,
}

/// One entry of logging.vmodule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VModule {
    /// filePattern
    pub file_pattern: String,
    /// verbosity
    pub verbosity: u32,
}

/// logging.options of one format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// splitStream
    pub split_stream: bool,
    /// infoBufferSize: a quantity, as text
    pub info_buffer_size: String,
}

/// iptables
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpTables {
    /// masqueradeBit: the bit of the packet mark that requests masquerading, 0 to 31
    pub masquerade_bit: i32,
    /// masqueradeAll: every connection to a cluster IP is masqueraded; ipvs mode reads it here too
    pub masquerade_all: bool,
    /// localhostNodePorts
    pub localhost_node_ports: bool,
    /// syncPeriod
    pub sync_period: GoDuration,
    /// minSyncPeriod
    pub min_sync_period: GoDuration,
}

/// ipvs
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipvs {
    /// syncPeriod
    pub sync_period: GoDuration,
    /// minSyncPeriod
    pub min_sync_period: GoDuration,
    /// scheduler; blank means rr
    pub scheduler: String,
    /// excludeCIDRs: virtual servers in these ranges are foreign
    pub exclude_cidrs: Vec<String>,
    /// strictARP
    pub strict_arp: bool,
    /// tcpTimeout; zero leaves the kernel's
    pub tcp_timeout: GoDuration,
    /// tcpFinTimeout; zero leaves the kernel's
    pub tcp_fin_timeout: GoDuration,
    /// udpTimeout; zero leaves the kernel's
    pub udp_timeout: GoDuration,
}

/// nftables
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NfTables {
    /// masqueradeBit: the bit of the packet mark that requests masquerading, 0 to 31
    pub masquerade_bit: i32,
    /// masqueradeAll: every connection to a cluster IP is masqueraded
    pub masquerade_all: bool,
    /// syncPeriod
    pub sync_period: GoDuration,
    /// minSyncPeriod
    pub min_sync_period: GoDuration,
}

/// winkernel
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WinKernel {
    /// networkName
    pub network_name: String,
    /// sourceVip
    pub source_vip: String,
    /// enableDSR
    pub enable_dsr: bool,
    /// rootHnsEndpointName
    pub root_hns_endpoint_name: String,
    /// forwardHealthCheckVip
    pub forward_health_check_vip: bool,
}

/// detectLocal
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DetectLocal {
    /// bridgeInterface
    pub bridge_interface: String,
    /// interfaceNamePrefix
    pub interface_name_prefix: String,
}

/// conntrack
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// maxPerCore: entries per processor; zero leaves the kernel's limit
    pub max_per_core: i32,
    /// min: entries at least
    pub min: i32,
    /// tcpEstablishedTimeout; zero leaves the kernel's
    pub tcp_established_timeout: GoDuration,
    /// tcpCloseWaitTimeout; zero leaves the kernel's
    pub tcp_close_wait_timeout: GoDuration,
    /// tcpBeLiberal
    pub tcp_be_liberal: bool,
    /// udpTimeout; zero leaves the kernel's
    pub udp_timeout: GoDuration,
    /// udpStreamTimeout; zero leaves the kernel's
    pub udp_stream_timeout: GoDuration,
}

/// Ferry's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FerryConfiguration {
    /// proxyModeFallback: the modes that are tried, in this order, where the configured one can't start on this machine. The
    /// configured mode in it is passed over. Empty, the default: such a start fails, as upstream's
    pub proxy_mode_fallback: Vec<String>,
    /// ipvsTerminationGracePeriod: how long an endpoint that left its slices may keep its established TCP connections, in mode
    /// ipvs
    pub ipvs_termination_grace_period: GoDuration,
    /// ipvsPingOnlyWithEndpoints: in mode ipvs, a service address answers pings only while a Service has endpoints there
    pub ipvs_ping_only_with_endpoints: bool,
    /// acceptForward: modes nftables and ipvs write a rule that accepts packets of Services to chains of other programs whose
    /// policy drops forwarded packets
    pub accept_forward: bool,
    /// snapshot: the file that keeps the last objects of the API server over a restart of the machine; empty, the default, for
    /// none
    pub snapshot: String,
    /// snapshotMaxAge: the longest time since the API server has confirmed the objects of a snapshot that a start still uses;
    /// zero for no limit
    pub snapshot_max_age: GoDuration,
    /// controlSocket: the Unix socket on which the proxy answers its own subcommands; empty for none
    pub control_socket: String,
    /// statusPage: the clients that the status page is served to, at the metrics address: [`PAGE_LOOPBACK`], [`PAGE_EVERYONE`] or [`PAGE_NOBODY`]
    pub status_page: String,
    /// the test of the data path
    pub self_test: SelfTest,
    /// the settings of mode userspace
    pub userspace: Userspace,
}

/// The settings of the self-test: connections through a Service of its own, from a network namespace of its own to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfTest {
    /// selfTestPeriod: the interval of the tests that are part of health; zero, the default, for none
    pub period: GoDuration,
    /// selfTestRanges: an IP range for each family that is tested, whose second to fourth addresses the test uses; empty, the default:
    /// [`SELF_TEST_RANGES`]
    pub ranges: Vec<String>,
}

/// The settings of mode userspace, each a field of the FerryConfiguration that begins with `userspace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Userspace {
    /// userspaceWay: [`WAY_REDIRECT`] or [`WAY_BIND`]; empty, the default: the first of them that can be used
    pub way: String,
    /// userspaceInterface: the interface of Windows that gets the addresses of Services; empty, the default: loopback's, or that of HNS
    pub interface: String,
    /// userspaceUDPTimeout: time without a datagram either way after which a client's association ends
    pub udp_timeout: GoDuration,
    /// userspaceMaxConnections: the most open TCP connections
    pub max_connections: i32,
    /// userspaceMaxConnectionsPerPort: the most open TCP connections, and the most UDP associations, of one port of a Service; zero,
    /// the default: as many as of all together
    pub max_connections_per_port: i32,
    /// userspaceMaxAssociations: the most UDP associations
    pub max_associations: i32,
    /// userspaceTerminationGracePeriod: how long an endpoint that left its slices may keep its established TCP connections; zero: not
    /// at all
    pub termination_grace_period: GoDuration,
    /// userspaceDrainTimeout: how long established TCP connections may last when the proxy is asked to end
    pub drain_timeout: GoDuration,
}

/// The effective values of settings that exist once per mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effective {
    /// longest delay of a retry after an error or a foreign change
    pub sync_period: Duration,
    /// the least time between two syncs
    pub min_sync_period: Duration,
    /// every connection to a cluster IP is masqueraded
    pub masquerade_all: bool,
    /// the bit of the packet mark that requests masquerading, 0 to 31
    pub masquerade_bit: u8,
}

// === impl KubeProxyConfiguration ===

impl KubeProxyConfiguration {
    /// The configured mode: iptables where it is blank.
    pub fn configured_mode(&self) -> &str {
        if self.mode.is_empty() { MODE_IPTABLES } else { &self.mode }
    }

    /// The modes that a start tries, in order: the configured one, then those of proxyModeFallback that differ from it.
    pub fn modes_to_try(&self) -> Vec<&str> {
        let configured = self.configured_mode();
        let fallbacks = self.ferry.proxy_mode_fallback.iter().map(String::as_str).filter(|mode| *mode != configured);
        std::iter::once(configured).chain(fallbacks).collect()
    }

    /// This configuration with another mode, whose section counts then ([`Self::effective`]). All other settings stay, also
    /// nodePortAddresses where its default depends on the mode: a fallback neither serves node ports at more addresses than
    /// the configured mode nor at fewer.
    pub fn in_mode(&self, mode: &str) -> Self {
        Self { mode: mode.to_owned(), ..self.clone() }
    }

    /// The settings of the configured mode's section: the periods come from `ipvs` or `nftables` in these modes, and
    /// from `iptables` in any other; masqueradeAll and the bit come from `nftables` in that mode, else from `iptables`.
    ///
    /// Only for a valid configuration: a negative period counts as zero, a bit that doesn't exist as 14.
    pub fn effective(&self) -> Effective {
        let (sync_period, min_sync_period) = self.sync_periods();
        let (masquerade_all, masquerade_bit) = if self.mode == MODE_NFTABLES {
            (self.nftables.masquerade_all, self.nftables.masquerade_bit)
        } else {
            (self.iptables.masquerade_all, self.iptables.masquerade_bit)
        };
        Effective {
            sync_period: sync_period.to_std(),
            min_sync_period: min_sync_period.to_std(),
            masquerade_all,
            masquerade_bit: u8::try_from(masquerade_bit).ok().filter(|bit| *bit < 32).unwrap_or(14),
        }
    }

    /// syncPeriod and minSyncPeriod of the configured mode.
    pub(super) fn sync_periods(&self) -> (GoDuration, GoDuration) {
        match self.mode.as_str() {
            MODE_IPVS => (self.ipvs.sync_period, self.ipvs.min_sync_period),
            MODE_NFTABLES => (self.nftables.sync_period, self.nftables.min_sync_period),
            _ => (self.iptables.sync_period, self.iptables.min_sync_period),
        }
    }
}
