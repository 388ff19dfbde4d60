//! Encodes a KubeProxyConfiguration as YAML, byte for byte like upstream 1.36: keys sorted, empty lists as null, durations in
//! Go's format, and of the settings that exist once per mode only those of the configured one. Ferry's own settings follow as a
//! document of their own. The same values as JSON are the body of `/configz`.

use super::scalar::{INDENT, YamlPage};
use super::types::{
    ClientConnection, Conntrack, FerryConfiguration, IpTables, Ipvs, KubeProxyConfiguration, LogOptions, Logging,
    MODE_IPVS, MODE_NFTABLES, NfTables, VModule, WinKernel,
};
use super::{GoDuration, ferry};

#[cfg(test)]
mod tests;

/// A value to write.
enum ConfigValue<'a> {
    /// numbers and booleans, as they are
    Plain(String),
    Text(&'a str),
    Duration(GoDuration),
    /// null if there are none
    Texts(&'a [String]),
    Map(Map<'a>),
    Maps(Vec<Map<'a>>),
}

/// Entries in the order of their keys.
type Map<'a> = Vec<(&'a str, ConfigValue<'a>)>;

/// The API group of KubeProxyConfiguration.
const GROUP: &str = "kubeproxy.config.k8s.io";

impl KubeProxyConfiguration {
    /// The document that upstream's `--write-config-to` would write, and a FerryConfiguration if it differs from the default.
    ///
    /// In the sections of other modes than the configured one (iptables, where it is neither ipvs nor nftables) the
    /// periods are zero and masqueradeAll is false, which reads as the default: upstream keeps one of each.
    pub fn to_yaml(&self) -> String {
        let mut page = YamlPage::default();
        map(&mut page, self.entries(), 0);
        if self.ferry != FerryConfiguration::default() {
            page.line(0);
            page.raw("---");
            map(&mut page, own(&self.ferry), 0);
        }
        page.finish()
    }

    /// The effective configuration as JSON, as upstream serves it at `/configz`: an object with the document of
    /// [`Self::to_yaml`] under its API group, and Ferry's own settings under theirs.
    pub fn to_configz(&self) -> String {
        let documents = [(GROUP, self.entries()), (ferry::API_GROUP, own(&self.ferry))];
        json(documents.into_iter().map(|(group, entries)| (group, ConfigValue::Map(entries))).collect()).to_string()
    }

    fn entries(&self) -> Map<'_> {
        let mut entries = vec![
            ("apiVersion", ConfigValue::Text("kubeproxy.config.k8s.io/v1alpha1")),
            ("bindAddress", ConfigValue::Text(&self.bind_address)),
            ("bindAddressHardFail", plain(self.bind_address_hard_fail)),
            ("clientConnection", client_connection(&self.client_connection)),
            ("clusterCIDR", ConfigValue::Text(&self.cluster_cidr)),
            ("configSyncPeriod", ConfigValue::Duration(self.config_sync_period)),
            ("conntrack", conntrack(&self.conntrack)),
            ("detectLocal", self.detect_local()),
            ("detectLocalMode", ConfigValue::Text(&self.detect_local_mode)),
            ("enableProfiling", plain(self.enable_profiling)),
        ];
        if !self.feature_gates.is_empty() {
            let gates = self.feature_gates.iter().map(|(name, value)| (name.as_str(), plain(value)));
            entries.push(("featureGates", ConfigValue::Map(gates.collect())));
        }
        entries.extend([
            ("healthzBindAddress", ConfigValue::Text(&self.healthz_bind_address)),
            ("hostnameOverride", ConfigValue::Text(&self.hostname_override)),
            ("iptables", iptables(&self.iptables, self.mode != MODE_IPVS, self.mode != MODE_NFTABLES)),
            ("ipvs", ipvs(&self.ipvs, self.mode == MODE_IPVS)),
            ("kind", ConfigValue::Text("KubeProxyConfiguration")),
            ("logging", logging(&self.logging)),
            ("metricsBindAddress", ConfigValue::Text(&self.metrics_bind_address)),
            ("mode", ConfigValue::Text(&self.mode)),
            ("nftables", nftables(&self.nftables, self.mode == MODE_NFTABLES)),
            ("nodePortAddresses", ConfigValue::Texts(&self.node_port_addresses)),
            ("oomScoreAdj", plain(self.oom_score_adj)),
            ("portRange", ConfigValue::Text(&self.port_range)),
            ("showHiddenMetricsForVersion", ConfigValue::Text(&self.show_hidden_metrics_for_version)),
        ]);
        if self.windows_run_as_service {
            entries.push(("windowsRunAsService", plain(true)));
        }
        entries.push(("winkernel", winkernel(&self.winkernel)));
        entries
    }

    fn detect_local(&self) -> ConfigValue<'_> {
        ConfigValue::Map(vec![
            ("bridgeInterface", ConfigValue::Text(&self.detect_local.bridge_interface)),
            ("interfaceNamePrefix", ConfigValue::Text(&self.detect_local.interface_name_prefix)),
        ])
    }
}

fn own(from: &FerryConfiguration) -> Map<'_> {
    vec![
        ("acceptForward", plain(from.accept_forward)),
        ("apiVersion", ConfigValue::Text(ferry::API_VERSION)),
        ("controlSocket", ConfigValue::Text(&from.control_socket)),
        ("ipvsPingOnlyWithEndpoints", plain(from.ipvs_ping_only_with_endpoints)),
        ("ipvsTerminationGracePeriod", ConfigValue::Duration(from.ipvs_termination_grace_period)),
        ("kind", ConfigValue::Text(ferry::KIND)),
        ("proxyModeFallback", ConfigValue::Texts(&from.proxy_mode_fallback)),
        ("selfTestPeriod", ConfigValue::Duration(from.self_test.period)),
        ("selfTestRanges", ConfigValue::Texts(&from.self_test.ranges)),
        ("snapshot", ConfigValue::Text(&from.snapshot)),
        ("snapshotMaxAge", ConfigValue::Duration(from.snapshot_max_age)),
        ("statusPage", ConfigValue::Text(&from.status_page)),
        ("userspaceDrainTimeout", ConfigValue::Duration(from.userspace.drain_timeout)),
        ("userspaceInterface", ConfigValue::Text(&from.userspace.interface)),
        ("userspaceMaxAssociations", plain(from.userspace.max_associations)),
        ("userspaceMaxConnections", plain(from.userspace.max_connections)),
        ("userspaceMaxConnectionsPerPort", plain(from.userspace.max_connections_per_port)),
        ("userspaceTerminationGracePeriod", ConfigValue::Duration(from.userspace.termination_grace_period)),
        ("userspaceUDPTimeout", ConfigValue::Duration(from.userspace.udp_timeout)),
        ("userspaceWay", ConfigValue::Text(&from.userspace.way)),
    ]
}

fn client_connection(from: &ClientConnection) -> ConfigValue<'_> {
    ConfigValue::Map(vec![
        ("acceptContentTypes", ConfigValue::Text(&from.accept_content_types)),
        ("burst", plain(from.burst)),
        ("contentType", ConfigValue::Text(&from.content_type)),
        ("kubeconfig", ConfigValue::Text(&from.kubeconfig)),
        ("qps", ConfigValue::Plain(float(from.qps))),
    ])
}

fn conntrack(from: &Conntrack) -> ConfigValue<'_> {
    ConfigValue::Map(vec![
        ("maxPerCore", plain(from.max_per_core)),
        ("min", plain(from.min)),
        ("tcpBeLiberal", plain(from.tcp_be_liberal)),
        ("tcpCloseWaitTimeout", ConfigValue::Duration(from.tcp_close_wait_timeout)),
        ("tcpEstablishedTimeout", ConfigValue::Duration(from.tcp_established_timeout)),
        ("udpStreamTimeout", ConfigValue::Duration(from.udp_stream_timeout)),
        ("udpTimeout", ConfigValue::Duration(from.udp_timeout)),
    ])
}

/// The periods hold in any mode but ipvs and nftables, masqueradeAll in any but nftables.
fn iptables(from: &IpTables, not_ipvs: bool, not_nftables: bool) -> ConfigValue<'_> {
    let is_active = not_ipvs && not_nftables;
    ConfigValue::Map(vec![
        ("localhostNodePorts", plain(from.localhost_node_ports)),
        ("masqueradeAll", plain(from.masquerade_all && not_nftables)),
        ("masqueradeBit", plain(from.masquerade_bit)),
        ("minSyncPeriod", period(from.min_sync_period, is_active)),
        ("syncPeriod", period(from.sync_period, is_active)),
    ])
}

fn ipvs(from: &Ipvs, is_active: bool) -> ConfigValue<'_> {
    ConfigValue::Map(vec![
        ("excludeCIDRs", ConfigValue::Texts(&from.exclude_cidrs)),
        ("minSyncPeriod", period(from.min_sync_period, is_active)),
        ("scheduler", ConfigValue::Text(&from.scheduler)),
        ("strictARP", plain(from.strict_arp)),
        ("syncPeriod", period(from.sync_period, is_active)),
        ("tcpFinTimeout", ConfigValue::Duration(from.tcp_fin_timeout)),
        ("tcpTimeout", ConfigValue::Duration(from.tcp_timeout)),
        ("udpTimeout", ConfigValue::Duration(from.udp_timeout)),
    ])
}

fn nftables(from: &NfTables, is_active: bool) -> ConfigValue<'_> {
    ConfigValue::Map(vec![
        ("masqueradeAll", plain(from.masquerade_all && is_active)),
        ("masqueradeBit", plain(from.masquerade_bit)),
        ("minSyncPeriod", period(from.min_sync_period, is_active)),
        ("syncPeriod", period(from.sync_period, is_active)),
    ])
}

fn logging(from: &Logging) -> ConfigValue<'_> {
    let flush_frequency = if from.flush_in_nanoseconds {
        plain(from.flush_frequency.as_nanos())
    } else {
        ConfigValue::Duration(from.flush_frequency)
    };
    let options = vec![("json", log_options(&from.json)), ("text", log_options(&from.text))];
    let mut entries = vec![
        ("flushFrequency", flush_frequency),
        ("format", ConfigValue::Text(&from.format)),
        ("options", ConfigValue::Map(options)),
        ("verbosity", plain(from.verbosity)),
    ];
    if !from.vmodule.is_empty() {
        entries.push(("vmodule", ConfigValue::Maps(from.vmodule.iter().map(vmodule).collect())));
    }
    ConfigValue::Map(entries)
}

fn vmodule(from: &VModule) -> Map<'_> {
    vec![("filePattern", ConfigValue::Text(&from.file_pattern)), ("verbosity", plain(from.verbosity))]
}

fn log_options(from: &LogOptions) -> ConfigValue<'_> {
    let mut entries = vec![("infoBufferSize", ConfigValue::Text(&from.info_buffer_size))];
    if from.split_stream {
        entries.push(("splitStream", plain(true)));
    }
    ConfigValue::Map(entries)
}

fn winkernel(from: &WinKernel) -> ConfigValue<'_> {
    ConfigValue::Map(vec![
        ("enableDSR", plain(from.enable_dsr)),
        ("forwardHealthCheckVip", plain(from.forward_health_check_vip)),
        ("networkName", ConfigValue::Text(&from.network_name)),
        ("rootHnsEndpointName", ConfigValue::Text(&from.root_hns_endpoint_name)),
        ("sourceVip", ConfigValue::Text(&from.source_vip)),
    ])
}

fn plain<'a>(value: impl ToString) -> ConfigValue<'a> {
    ConfigValue::Plain(value.to_string())
}

fn period<'a>(period: GoDuration, is_active: bool) -> ConfigValue<'a> {
    ConfigValue::Duration(if is_active { period } else { GoDuration::ZERO })
}

/// A number of 32 bits, on the way through JSON and YAML: what is whole and fits into 64 bits keeps all its digits, the
/// rest has as many as it needs, with an exponent from a million and below a ten-thousandth.
fn float(value: f32) -> String {
    let shortest = value.to_string();
    if let Ok(whole) = shortest.parse::<i64>() {
        return whole.to_string();
    }
    let is_whole = shortest.parse::<u64>().is_ok();
    let Ok(wide) = shortest.parse::<f64>() else { return shortest };
    let magnitude = wide.abs();
    if is_whole || (1e-4..1e6).contains(&magnitude) {
        return shortest;
    }
    let scientific = format!("{wide:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn json(entries: Map<'_>) -> serde_json::Value {
    entries.into_iter().map(|(name, value)| (name.to_owned(), json_value(value))).collect()
}

fn json_value(value: ConfigValue<'_>) -> serde_json::Value {
    match value {
        // Numbers and booleans are written alike in both formats.
        ConfigValue::Plain(text) => serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text)),
        ConfigValue::Text(text) => text.into(),
        ConfigValue::Duration(duration) => duration.to_string().into(),
        ConfigValue::Texts([]) => serde_json::Value::Null,
        ConfigValue::Texts(texts) => texts.into(),
        ConfigValue::Map(entries) => json(entries),
        ConfigValue::Maps(maps) => maps.into_iter().map(json).collect(),
    }
}

fn map(page: &mut YamlPage, entries: Map<'_>, indent: usize) {
    for (name, value) in entries {
        page.line(indent);
        entry(page, name, value, indent);
    }
}

/// A key with its value; the line has begun.
fn entry(page: &mut YamlPage, name: &str, value: ConfigValue<'_>, indent: usize) {
    page.key(name);
    page.raw(":");
    match value {
        ConfigValue::Plain(text) => {
            page.raw(" ");
            page.raw(&text);
        }
        ConfigValue::Text(text) => {
            page.raw(" ");
            page.value(text, indent + INDENT);
        }
        ConfigValue::Duration(duration) => {
            page.raw(" ");
            page.raw(&duration.to_string());
        }
        ConfigValue::Texts([]) => page.raw(" null"),
        ConfigValue::Texts(texts) => {
            for text in texts {
                page.line(indent);
                page.raw("- ");
                page.value(text, indent + INDENT);
            }
        }
        ConfigValue::Map(entries) => map(page, entries, indent + INDENT),
        ConfigValue::Maps(maps) => {
            for entries in maps {
                page.line(indent);
                page.raw("-");
                for (at, (name, value)) in entries.into_iter().enumerate() {
                    if at == 0 {
                        page.raw(" ");
                    } else {
                        page.line(indent + INDENT);
                    }
                    entry(page, name, value, indent + INDENT);
                }
            }
        }
    }
}
