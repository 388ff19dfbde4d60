//! Flags laid over the default configuration, where there is no configuration file.

use std::net::IpAddr;

use ferry_api::config::KubeProxyConfiguration;
use ferry_api::wire::address::parse_ip;

use super::Flags;

/// Sets every field whose flag was given. To be called before platform defaults are applied.
pub fn apply(flags: &Flags, config: &mut KubeProxyConfiguration) {
    texts(flags, config);
    if let Some(masquerade_all) = flags.boolean("masquerade-all") {
        config.iptables.masquerade_all = masquerade_all;
        config.nftables.masquerade_all = masquerade_all;
    }
    // In spite of their names these two count in every mode but ipvs.
    if let Some(period) = flags.duration("iptables-sync-period") {
        config.iptables.sync_period = period;
        config.nftables.sync_period = period;
    }
    if let Some(period) = flags.duration("iptables-min-sync-period") {
        config.iptables.min_sync_period = period;
        config.nftables.min_sync_period = period;
    }
    if let Some(score) = flags.number("oom-score-adj") {
        config.oom_score_adj = score;
    }
    if let Some(hard_fail) = flags.boolean("bind-address-hard-fail") {
        config.bind_address_hard_fail = hard_fail;
    }
    if let Some(addresses) = flags.list("nodeport-addresses") {
        config.node_port_addresses = addresses;
    }
}

fn texts(flags: &Flags, config: &mut KubeProxyConfiguration) {
    let set = |name: &str, field: &mut String| {
        if let Some(text) = flags.text(name) {
            text.clone_into(field);
        }
    };
    set("proxy-mode", &mut config.mode);
    set("cluster-cidr", &mut config.cluster_cidr);
    set("detect-local-mode", &mut config.detect_local_mode);
    set("pod-bridge-interface", &mut config.detect_local.bridge_interface);
    set("pod-interface-name-prefix", &mut config.detect_local.interface_name_prefix);
    // An empty address leaves the default in force.
    if let Some(address) = flags.path("bind-address") {
        address.clone_into(&mut config.bind_address);
    }
    if let Some(address) = flags.path("healthz-bind-address") {
        config.healthz_bind_address = with_port(address, 10256);
    }
    if let Some(address) = flags.path("metrics-bind-address") {
        config.metrics_bind_address = with_port(address, 10249);
    }
}

/// A bare IP address gets the port.
fn with_port(address: &str, port: u16) -> String {
    match parse_ip(address) {
        Some(IpAddr::V4(_)) => format!("{address}:{port}"),
        Some(IpAddr::V6(_)) => format!("[{address}]:{port}"),
        None => address.to_owned(),
    }
}
