//! Applies the defaults of a KubeProxyConfiguration: those of the API to every decoded file, those of the platform at start-up,
//! as upstream does.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::GoDuration;
use super::types::{
    CONTROL_SOCKET, ClientConnection, Conntrack, DetectLocal, FerryConfiguration, IpTables, Ipvs,
    KubeProxyConfiguration, LOCAL_MODE_CLUSTER_CIDR, LogOptions, Logging, MODE_NFTABLES, NODE_PORT_ADDRESSES_PRIMARY,
    NfTables, PAGE_LOOPBACK, SelfTest, Userspace, WinKernel,
};
use crate::wire::address::{parse_ip, split_host_port};

/// The port of healthzBindAddress.
const HEALTHZ_PORT: u16 = 10256;
/// The port of metricsBindAddress.
const METRICS_PORT: u16 = 10249;

impl KubeProxyConfiguration {
    /// The configuration of an empty file on Linux, platform defaults included. The mode stays blank.
    pub fn default_for_linux() -> Self {
        let mut config = Self::default();
        config.apply_platform_defaults();
        config
    }

    /// Applies the defaults that upstream sets at start-up on Linux rather than on reading: detectLocalMode, and
    /// nodePortAddresses in mode nftables. A blank mode stays blank: the caller chooses its default.
    pub fn apply_platform_defaults(&mut self) {
        if self.detect_local_mode.is_empty() {
            self.detect_local_mode = LOCAL_MODE_CLUSTER_CIDR.to_owned();
        }
        if self.mode == MODE_NFTABLES && self.node_port_addresses.is_empty() {
            self.node_port_addresses = vec![NODE_PORT_ADDRESSES_PRIMARY.to_owned()];
        }
    }

    /// The value before anything is read into it. Where zero is a value of its own (upstream's field is a pointer),
    /// the default is here already; everything else begins at zero and is filled by [`Self::apply_api_defaults`].
    pub(super) fn unread() -> Self {
        Self {
            feature_gates: BTreeMap::new(),
            client_connection: ClientConnection::default(),
            logging: Logging::default(),
            hostname_override: String::new(),
            bind_address: String::new(),
            healthz_bind_address: String::new(),
            metrics_bind_address: String::new(),
            bind_address_hard_fail: false,
            enable_profiling: false,
            show_hidden_metrics_for_version: String::new(),
            mode: String::new(),
            iptables: IpTables { masquerade_bit: 14, localhost_node_ports: true, ..IpTables::default() },
            ipvs: Ipvs::default(),
            nftables: NfTables { masquerade_bit: 14, ..NfTables::default() },
            winkernel: WinKernel::default(),
            detect_local_mode: String::new(),
            detect_local: DetectLocal::default(),
            cluster_cidr: String::new(),
            node_port_addresses: Vec::new(),
            oom_score_adj: -999,
            conntrack: Conntrack {
                max_per_core: 32 * 1024,
                min: 128 * 1024,
                tcp_established_timeout: GoDuration::from_secs(24 * 60 * 60),
                tcp_close_wait_timeout: GoDuration::from_secs(60 * 60),
                ..Conntrack::default()
            },
            config_sync_period: GoDuration::ZERO,
            port_range: String::new(),
            windows_run_as_service: false,
            ferry: FerryConfiguration::default(),
        }
    }

    /// Replaces zero values by the API's defaults; in a file zero means "not set".
    pub(super) fn apply_api_defaults(&mut self) {
        self.default_addresses();
        let seconds = GoDuration::from_secs;
        default_duration(&mut self.iptables.sync_period, seconds(30));
        default_duration(&mut self.iptables.min_sync_period, seconds(1));
        default_duration(&mut self.ipvs.sync_period, seconds(30));
        default_duration(&mut self.nftables.sync_period, seconds(30));
        default_duration(&mut self.nftables.min_sync_period, seconds(1));
        default_duration(&mut self.config_sync_period, seconds(15 * 60));
        if self.logging.flush_frequency.is_zero() {
            self.logging.flush_frequency = seconds(5);
            self.logging.flush_in_nanoseconds = false;
        }
        default_text(&mut self.logging.format, "text");
        default_text(&mut self.client_connection.content_type, "application/vnd.kubernetes.protobuf");
        if self.client_connection.qps == 0.0 {
            self.client_connection.qps = 5.0;
        }
        if self.client_connection.burst == 0 {
            self.client_connection.burst = 10;
        }
    }

    fn default_addresses(&mut self) {
        default_text(&mut self.bind_address, "0.0.0.0");
        // A malformed address counts as IPv6; validation refuses it anyway.
        let v4 = parse_ip(&self.bind_address).is_some_and(|address| address.is_ipv4());
        let (healthz, metrics) = if v4 { ("0.0.0.0", "127.0.0.1") } else { ("[::]", "[::1]") };
        default_bind_address(&mut self.healthz_bind_address, healthz, HEALTHZ_PORT);
        default_bind_address(&mut self.metrics_bind_address, metrics, METRICS_PORT);
    }
}

impl Default for KubeProxyConfiguration {
    /// The configuration of an empty file, before platform defaults.
    fn default() -> Self {
        let mut config = Self::unread();
        config.apply_api_defaults();
        config
    }
}

impl Default for FerryConfiguration {
    /// The settings of a file without this document.
    fn default() -> Self {
        Self {
            proxy_mode_fallback: Vec::new(),
            ipvs_termination_grace_period: GoDuration::from_secs(15 * 60),
            ipvs_ping_only_with_endpoints: false,
            accept_forward: false,
            snapshot: String::new(),
            snapshot_max_age: GoDuration::from_secs(24 * 60 * 60),
            control_socket: CONTROL_SOCKET.to_owned(),
            status_page: PAGE_LOOPBACK.to_owned(),
            self_test: SelfTest::default(),
            userspace: Userspace::default(),
        }
    }
}

impl Default for SelfTest {
    fn default() -> Self {
        Self { period: GoDuration::ZERO, ranges: Vec::new() }
    }
}

impl Default for Userspace {
    fn default() -> Self {
        Self {
            way: String::new(),
            interface: String::new(),
            udp_timeout: GoDuration::from_nanos(250_000_000),
            max_connections: 100_000,
            max_connections_per_port: 0,
            max_associations: 50_000,
            termination_grace_period: GoDuration::from_secs(15 * 60),
            drain_timeout: GoDuration::from_secs(2),
        }
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { split_stream: false, info_buffer_size: "0".to_owned() }
    }
}

fn default_duration(value: &mut GoDuration, default: GoDuration) {
    if value.is_zero() {
        *value = default;
    }
}

fn default_text(value: &mut String, default: &str) {
    if value.is_empty() {
        default.clone_into(value);
    }
}

/// Fills an empty address, and gives a bare IP address its port. Anything else is left to validation.
fn default_bind_address(value: &mut String, host: &str, port: u16) {
    if value.is_empty() {
        *value = format!("{host}:{port}");
    } else if split_host_port(value).is_none() {
        match parse_ip(value) {
            Some(IpAddr::V4(_)) => *value = format!("{value}:{port}"),
            Some(IpAddr::V6(_)) => *value = format!("[{value}]:{port}"),
            None => {}
        }
    }
}
