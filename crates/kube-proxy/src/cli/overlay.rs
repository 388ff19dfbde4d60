//! Applies flags to a configuration: all flags to the default one if there is no configuration file; logging flags and Ferry's
//! own to a file's, too.

use std::net::IpAddr;

use ferry_api::config::{
    Conntrack, FerryConfiguration, GoDuration, Ipvs, KubeProxyConfiguration, LogOptions, Logging, MODE_IPVS,
};
use ferry_api::wire::address::parse_ip;

use super::Flags;

/// Sets every field whose flag was given, except for logging. To be called before platform defaults are applied.
pub fn apply(flags: &Flags, config: &mut KubeProxyConfiguration) {
    texts(flags, config);
    addresses(flags, config);
    if let Some(gates) = flags.gates("feature-gates") {
        config.feature_gates = gates;
    }
    if let Some(addresses) = flags.list("nodeport-addresses") {
        config.node_port_addresses = addresses;
    }
    set(&mut config.client_connection.burst, flags.number("kube-api-burst"));
    set(&mut config.client_connection.qps, flags.float("kube-api-qps"));
    set(&mut config.bind_address_hard_fail, flags.boolean("bind-address-hard-fail"));
    set(&mut config.enable_profiling, flags.boolean("profiling"));
    set(&mut config.oom_score_adj, flags.number("oom-score-adj"));
    set(&mut config.config_sync_period, flags.duration("config-sync-period"));
    let masquerade_all = flags.boolean("masquerade-all");
    set(&mut config.iptables.masquerade_all, masquerade_all);
    set(&mut config.nftables.masquerade_all, masquerade_all);
    set(&mut config.iptables.masquerade_bit, flags.number("iptables-masquerade-bit"));
    set(&mut config.iptables.localhost_node_ports, flags.boolean("iptables-localhost-nodeports"));
    // In spite of their names, these two apply to every mode but ipvs.
    let (sync_period, min_sync_period) =
        (flags.duration("iptables-sync-period"), flags.duration("iptables-min-sync-period"));
    set(&mut config.iptables.sync_period, sync_period);
    set(&mut config.nftables.sync_period, sync_period);
    set(&mut config.iptables.min_sync_period, min_sync_period);
    set(&mut config.nftables.min_sync_period, min_sync_period);
    let is_ipvs = config.mode == MODE_IPVS;
    ipvs(flags, &mut config.ipvs, is_ipvs);
    conntrack(flags, &mut config.conntrack);
}

/// Applies the logging flags; patterns of vmodule come before those of the configuration.
pub fn apply_logging(flags: &Flags, logging: &mut Logging) {
    set_text(&mut logging.format, flags.text("logging-format"));
    set(&mut logging.flush_frequency, flags.duration("log-flush-frequency"));
    set(&mut logging.verbosity, flags.level("v"));
    let mut vmodule = flags.vmodule("vmodule");
    vmodule.append(&mut logging.vmodule);
    logging.vmodule = vmodule;
    log_options(flags, &mut logging.text, "log-text-split-stream", "log-text-info-buffer-size");
    log_options(flags, &mut logging.json, "log-json-split-stream", "log-json-info-buffer-size");
}

/// Applies Ferry's own flags.
pub fn apply_own(flags: &Flags, own: &mut FerryConfiguration) {
    if let Some(modes) = flags.list("proxy-mode-fallback") {
        own.proxy_mode_fallback = modes;
    }
    set_text(&mut own.control_socket, flags.text("control-socket"));
    set(&mut own.userspace.udp_timeout, flags.duration("udp-timeout"));
}

/// Upstream ignores a file's splitStream: the flag's default overrides it.
fn log_options(flags: &Flags, options: &mut LogOptions, split_stream: &str, info_buffer_size: &str) {
    options.split_stream = flags.is_true(split_stream);
    if let Some(size) = flags.quantity(info_buffer_size) {
        options.info_buffer_size = size;
    }
}

/// Without a file upstream begins with the periods of mode iptables, and in mode ipvs they apply to that.
fn ipvs(flags: &Flags, ipvs: &mut Ipvs, is_mode: bool) {
    if is_mode {
        ipvs.sync_period = flags.duration("ipvs-sync-period").unwrap_or(GoDuration::from_secs(30));
        ipvs.min_sync_period = flags.duration("ipvs-min-sync-period").unwrap_or(GoDuration::from_secs(1));
    }
    set_text(&mut ipvs.scheduler, flags.text("ipvs-scheduler"));
    if let Some(ranges) = flags.list("ipvs-exclude-cidrs") {
        ipvs.exclude_cidrs = ranges;
    }
    set(&mut ipvs.strict_arp, flags.boolean("ipvs-strict-arp"));
    set(&mut ipvs.tcp_timeout, flags.duration("ipvs-tcp-timeout"));
    set(&mut ipvs.tcp_fin_timeout, flags.duration("ipvs-tcpfin-timeout"));
    set(&mut ipvs.udp_timeout, flags.duration("ipvs-udp-timeout"));
}

fn conntrack(flags: &Flags, conntrack: &mut Conntrack) {
    set(&mut conntrack.max_per_core, flags.number("conntrack-max-per-core"));
    set(&mut conntrack.min, flags.number("conntrack-min"));
    set(&mut conntrack.tcp_established_timeout, flags.duration("conntrack-tcp-timeout-established"));
    set(&mut conntrack.tcp_close_wait_timeout, flags.duration("conntrack-tcp-timeout-close-wait"));
    set(&mut conntrack.tcp_be_liberal, flags.boolean("conntrack-tcp-be-liberal"));
    set(&mut conntrack.udp_timeout, flags.duration("conntrack-udp-timeout"));
    set(&mut conntrack.udp_stream_timeout, flags.duration("conntrack-udp-timeout-stream"));
}

fn texts(flags: &Flags, config: &mut KubeProxyConfiguration) {
    set_text(&mut config.client_connection.kubeconfig, flags.text("kubeconfig"));
    set_text(&mut config.client_connection.content_type, flags.text("kube-api-content-type"));
    set_text(&mut config.show_hidden_metrics_for_version, flags.text("show-hidden-metrics-for-version"));
    set_text(&mut config.mode, flags.text("proxy-mode"));
    set_text(&mut config.port_range, flags.text("proxy-port-range"));
    set_text(&mut config.cluster_cidr, flags.text("cluster-cidr"));
    set_text(&mut config.detect_local_mode, flags.text("detect-local-mode"));
    set_text(&mut config.detect_local.bridge_interface, flags.text("pod-bridge-interface"));
    set_text(&mut config.detect_local.interface_name_prefix, flags.text("pod-interface-name-prefix"));
}

/// Applies the address flags. An empty address keeps the default. A bare one gets the port of its own flag, and with port 0 there
/// is no address, except with `--write-config-to`: upstream leaves it bare then, and rejects it.
fn addresses(flags: &Flags, config: &mut KubeProxyConfiguration) {
    set_text(&mut config.bind_address, flags.path("bind-address"));
    set_text(&mut config.healthz_bind_address, flags.path("healthz-bind-address"));
    set_text(&mut config.metrics_bind_address, flags.path("metrics-bind-address"));
    if flags.path("write-config-to").is_none() {
        let complete = |address: &mut String, port| {
            *address = if port == 0 { String::new() } else { with_port(address, port) };
        };
        complete(&mut config.healthz_bind_address, flags.number("healthz-port").unwrap_or(10256));
        complete(&mut config.metrics_bind_address, flags.number("metrics-port").unwrap_or(10249));
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn set_text(field: &mut String, text: Option<&str>) {
    if let Some(text) = text {
        text.clone_into(field);
    }
}

/// Adds the port to a bare IP address.
fn with_port(address: &str, port: i32) -> String {
    match parse_ip(address) {
        Some(IpAddr::V4(_)) => format!("{address}:{port}"),
        Some(IpAddr::V6(_)) => format!("[{address}]:{port}"),
        None => address.to_owned(),
    }
}
