//! Validates a KubeProxyConfiguration, with the error texts of upstream 1.36 in upstream's order.

mod own;

use std::fmt;

use super::types::{
    Ipvs, KubeProxyConfiguration, LOCAL_MODE_BRIDGE_INTERFACE, LOCAL_MODE_CLUSTER_CIDR,
    LOCAL_MODE_INTERFACE_NAME_PREFIX, LOCAL_MODE_NODE_CIDR, LogOptions, Logging, MODE_IPTABLES, MODE_IPVS,
    MODE_NFTABLES, MODE_USERSPACE, MODE_WINUSERSPACE, NODE_PORT_ADDRESSES_PRIMARY,
};
use super::{GoDuration, gates, place, quantity};
use crate::object::Family;
use crate::wire::address::{parse_cidr, parse_ip, split_host_port};

/// The minor version whose hidden metrics may be requested: the one before the version that this build reproduces.
const PREVIOUS_MINOR: &str = "1.35";

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const POSITIVE: &str = "must be greater than 0";
const BIT: &str = "must be within the range [0, 31]";
const CIDR: &str = "must be a valid CIDR";

/// The names of all modes.
const MODES: [&str; 4] = [MODE_IPTABLES, MODE_IPVS, MODE_NFTABLES, MODE_USERSPACE];

/// Everything that is wrong with a configuration: one error is printed plain, several as `[e1, e2]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationErrors(Vec<String>);

/// Collects errors.
#[derive(Default)]
struct ErrorCollector(Vec<String>);

// === impl ValidationErrors ===

impl ValidationErrors {
    /// One text per error, in upstream's order; at least one.
    pub fn messages(&self) -> &[String] {
        &self.0
    }

    /// The same errors, each with the line and the column of its value in this file, if it sets it.
    #[must_use]
    pub fn placed_in(&self, text: &str) -> Self {
        let placed = |message: &String| match place::of(message, text) {
            Some((line, column)) => format!("{message} (line {line}, column {column})"),
            None => message.clone(),
        };
        Self(self.0.iter().map(placed).collect())
    }
}

impl fmt::Display for ValidationErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [only] => f.write_str(only),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

impl std::error::Error for ValidationErrors {}

// === impl ErrorCollector ===

impl ErrorCollector {
    /// `value` as it is printed: texts quoted.
    fn invalid(&mut self, path: &str, value: impl fmt::Display, why: &str) {
        self.0.push(format!("{path}: Invalid value: {value}: {why}"));
    }

    fn invalid_text(&mut self, path: &str, value: &str, why: &str) {
        self.invalid(path, format_args!("{value:?}"), why);
    }

    fn forbidden(&mut self, path: &str, why: &str) {
        self.0.push(format!("{path}: Forbidden: {why}"));
    }

    fn at_least_zero(&mut self, path: &str, value: i32) {
        if value < 0 {
            self.invalid(path, value, NOT_NEGATIVE);
        }
    }

    fn in_range(&mut self, path: &str, value: i32, range: std::ops::RangeInclusive<i32>, why: &str) {
        if !range.contains(&value) {
            self.invalid(path, value, why);
        }
    }

    fn duration_at_least_zero(&mut self, path: &str, value: GoDuration) {
        if value < GoDuration::ZERO {
            self.invalid_text(path, &value.to_string(), NOT_NEGATIVE);
        }
    }

    fn duration_positive(&mut self, path: &str, value: GoDuration) {
        if value <= GoDuration::ZERO {
            self.invalid_text(path, &value.to_string(), POSITIVE);
        }
    }

    fn finish(self) -> Result<(), ValidationErrors> {
        if self.0.is_empty() { Ok(()) } else { Err(ValidationErrors(self.0)) }
    }
}

// === impl KubeProxyConfiguration ===

impl KubeProxyConfiguration {
    /// Checks everything, as upstream 1.36 does for Linux: of the settings that exist once per mode only those of the
    /// configured mode and its fallbacks are checked. Platform defaults should have been applied.
    pub fn validate(&self) -> Result<(), ValidationErrors> {
        let mut found = ErrorCollector::default();
        self.validate_gates(&mut found);
        self.validate_modes(&mut found);
        self.validate_linux(&mut found);
        validate_mode(&self.mode, &mut found);
        found.at_least_zero("KubeProxyConfiguration.ClientConnection.Burst", self.client_connection.burst);
        self.validate_periods(&mut found);
        self.validate_addresses(&mut found);
        self.validate_metrics_version(&mut found);
        self.validate_detect_local(&mut found);
        self.validate_logging_at("KubeProxyConfiguration.logging", &mut found);
        self.validate_ferry(&mut found);
        found.finish()
    }

    /// Checks the logging settings alone, for a program that sets up its log before it checks the rest.
    pub fn validate_logging(&self) -> Result<(), ValidationErrors> {
        let mut found = ErrorCollector::default();
        self.validate_logging_at("logging", &mut found);
        found.finish()
    }

    fn validate_gates(&self, found: &mut ErrorCollector) {
        if let Err(error) = gates::check(&self.feature_gates) {
            let gates: Vec<_> = self.feature_gates.iter().map(|(name, value)| format!("{name:?}:{value}")).collect();
            found.invalid(
                "KubeProxyConfiguration.featureGates",
                format_args!("{{{}}}", gates.join(",")),
                &error.to_string(),
            );
        }
    }

    fn validate_modes(&self, found: &mut ErrorCollector) {
        let path = "KubeProxyConfiguration.KubeProxyIPTablesConfiguration.MasqueradeBit";
        found.in_range(path, self.iptables.masquerade_bit, 0..=31, BIT);
        if self.mode == MODE_IPVS {
            validate_ipvs(&self.ipvs, found);
        }
        if self.mode == MODE_NFTABLES {
            let path = "KubeProxyConfiguration.KubeProxyNFTablesConfiguration.MasqueradeBit";
            found.in_range(path, self.nftables.masquerade_bit, 0..=31, BIT);
        }
    }

    fn validate_linux(&self, found: &mut ErrorCollector) {
        let linux = "KubeProxyConfiguration.KubeProxyLinuxConfiguration";
        let path = |field: &str| format!("{linux}.KubeProxyConntrackConfiguration.{field}");
        found.at_least_zero(&path("MaxPerCore"), self.conntrack.max_per_core);
        found.at_least_zero(&path("Min"), self.conntrack.min);
        found.duration_at_least_zero(&path("TCPEstablishedTimeout"), self.conntrack.tcp_established_timeout);
        found.duration_at_least_zero(&path("TCPCloseWaitTimeout"), self.conntrack.tcp_close_wait_timeout);
        found.duration_at_least_zero(&path("UDPTimeout"), self.conntrack.udp_timeout);
        found.duration_at_least_zero(&path("UDPStreamTimeout"), self.conntrack.udp_stream_timeout);
        let why = "must be within the range [-1000, 1000]";
        found.in_range(&format!("{linux}.OOMScoreAdj"), self.oom_score_adj, -1000..=1000, why);
    }

    fn validate_periods(&self, found: &mut ErrorCollector) {
        let (sync, min_sync) = self.sync_periods();
        found.duration_positive("KubeProxyConfiguration.ConfigSyncPeriod", self.config_sync_period);
        found.duration_positive("KubeProxyConfiguration.SyncPeriod", sync);
        found.duration_at_least_zero("KubeProxyConfiguration.MinSyncPeriod", min_sync);
        if min_sync > sync {
            let why = "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod";
            found.invalid_text("KubeProxyConfiguration.SyncPeriod", &min_sync.to_string(), why);
        }
    }

    fn validate_addresses(&self, found: &mut ErrorCollector) {
        if parse_ip(&self.bind_address).is_none() {
            let why = "not a valid textual representation of an IP address";
            found.invalid_text("KubeProxyConfiguration.BindAddress", &self.bind_address, why);
        }
        if !self.healthz_bind_address.is_empty() {
            validate_host_port("KubeProxyConfiguration.HealthzBindAddress", &self.healthz_bind_address, found);
        }
        validate_host_port("KubeProxyConfiguration.MetricsBindAddress", &self.metrics_bind_address, found);
        for (i, address) in self.node_port_addresses.iter().enumerate() {
            let path = format!("KubeProxyConfiguration.NodePortAddresses[{i}]");
            if address == NODE_PORT_ADDRESSES_PRIMARY {
                if self.node_port_addresses.len() > 1 {
                    found.invalid_text(&path, address, "can't use both 'primary' and CIDRs");
                }
                break;
            }
            if parse_cidr(address).is_none() {
                found.invalid_text(&path, address, CIDR);
            }
        }
    }

    fn validate_metrics_version(&self, found: &mut ErrorCollector) {
        let version = &self.show_hidden_metrics_for_version;
        if !version.is_empty() && version != PREVIOUS_MINOR {
            let why = format!(
                "invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: {version:?}: must be omitted or have \
                 the value '{PREVIOUS_MINOR}'; only the previous minor version is allowed"
            );
            found.invalid_text("KubeProxyConfiguration.ShowHiddenMetricsForVersion", version, &why);
        }
    }

    fn validate_detect_local(&self, found: &mut ErrorCollector) {
        let path = |field: &str| format!("KubeProxyConfiguration.DetectLocalConfiguration.{field}");
        let mut interface = |field: &str, value: &str| {
            if value.is_empty() {
                found.invalid_text(&path(field), value, "must not be empty");
            } else if !can_name_interface(value) {
                let why =
                    "must be at most 15 bytes, without blanks, quotes, '*', '/', ':' or '\\', as interface names are";
                found.invalid_text(&path(field), value, why);
            }
        };
        match self.detect_local_mode.as_str() {
            "" | LOCAL_MODE_NODE_CIDR => {}
            LOCAL_MODE_CLUSTER_CIDR => validate_cluster_cidr(&self.cluster_cidr, &path("ClusterCIDRs"), found),
            LOCAL_MODE_BRIDGE_INTERFACE => interface("InterfaceName", &self.detect_local.bridge_interface),
            LOCAL_MODE_INTERFACE_NAME_PREFIX => interface("InterfacePrefix", &self.detect_local.interface_name_prefix),
            unknown => found.0.push(format!(
                "KubeProxyConfiguration.DetectLocalMode: Unsupported value: {unknown:?}: supported values: \
                 \"{LOCAL_MODE_CLUSTER_CIDR}\", \"{LOCAL_MODE_NODE_CIDR}\", \"{LOCAL_MODE_BRIDGE_INTERFACE}\", \
                 \"{LOCAL_MODE_INTERFACE_NAME_PREFIX}\", \"\""
            )),
        }
    }

    /// Checks the settings that only this mode reads: an error in them must not be found in the moment of need.
    fn validate_fallback(&self, mode: &str, path: &str, found: &mut ErrorCollector) {
        let mut own = ErrorCollector::default();
        let config = self.in_mode(mode);
        config.validate_modes(&mut own);
        config.validate_periods(&mut own);
        for message in own.0 {
            if !found.0.contains(&message) {
                found.invalid_text(path, mode, &message);
            }
        }
    }

    fn validate_logging_at(&self, path: &str, found: &mut ErrorCollector) {
        validate_log_format(&self.logging, path, self.has_feature("LoggingBetaOptions"), found);
        if !self.has_feature("LoggingAlphaOptions") {
            validate_log_options(&self.logging.text, &format!("{path}.options.text"), found);
            validate_log_options(&self.logging.json, &format!("{path}.options.json"), found);
        }
    }
}

fn validate_ipvs(ipvs: &Ipvs, found: &mut ErrorCollector) {
    let path = |field: &str| format!("KubeProxyConfiguration.KubeProxyIPVSConfiguration.{field}");
    found.duration_at_least_zero(&path("TCPTimeout"), ipvs.tcp_timeout);
    found.duration_at_least_zero(&path("TCPFinTimeout"), ipvs.tcp_fin_timeout);
    found.duration_at_least_zero(&path("UDPTimeout"), ipvs.udp_timeout);
    for (i, range) in ipvs.exclude_cidrs.iter().enumerate() {
        if parse_cidr(range).is_none() {
            found.invalid_text(&path(&format!("ExcludeCidrs[{i}]")), range, CIDR);
        }
    }
}

fn validate_mode(mode: &str, found: &mut ErrorCollector) {
    // The choice of the mode says on which system it is.
    if !mode.is_empty() && mode != MODE_WINUSERSPACE && !MODES.contains(&mode) {
        let why = "must be iptables, ipvs, nftables, userspace or blank (blank means the best-available proxy [currently iptables])";
        found.invalid_text("KubeProxyConfiguration.Mode.ProxyMode", mode, why);
    }
}

fn validate_host_port(path: &str, text: &str, found: &mut ErrorCollector) {
    let Some((host, port)) = split_host_port(text) else {
        return found.invalid_text(path, text, "must be IP:port");
    };
    if parse_ip(host).is_none() {
        found.invalid_text(path, host, "must be a valid IP");
    }
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        found.invalid_text(path, port, "must be a valid port");
    }
}

/// True if an interface can have this name, or one with this prefix. Upstream doesn't check; an impossible name would never
/// match, and no pod would be detected.
fn can_name_interface(name: &str) -> bool {
    const LONGEST: usize = 15;
    let fits = |c: char| !c.is_whitespace() && !c.is_control() && !['"', '\'', '*', '/', ':', '\\'].contains(&c);
    name.len() <= LONGEST && name.chars().all(fits)
}

fn validate_cluster_cidr(text: &str, path: &str, found: &mut ErrorCollector) {
    if text.is_empty() {
        return;
    }
    let ranges: Vec<&str> = text.split(',').collect();
    let pair = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]";
    if ranges.len() > 2 {
        return found.invalid(path, format_args!("{ranges:?}"), pair);
    }
    let mut families = Vec::new();
    for (i, range) in ranges.iter().enumerate() {
        match parse_cidr(range) {
            Some(net) => families.push(Family::of_net(net)),
            None => {
                let why = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
                found.invalid_text(&format!("{path}[{i}]"), range, why);
            }
        }
    }
    if let [first, second] = families.as_slice()
        && first == second
    {
        found.invalid(path, format_args!("{ranges:?}"), pair);
    }
}

fn validate_log_format(logging: &Logging, path: &str, beta: bool, found: &mut ErrorCollector) {
    let largest = i32::MAX.unsigned_abs();
    let format = logging.format.as_str();
    if !["text", "json"].contains(&format) {
        found.invalid_text(&format!("{path}.format"), format, "Unsupported log format");
    } else if format == "json" && !beta {
        let why = "Log format json is disabled, see LoggingBetaOptions feature";
        found.forbidden(&format!("{path}.format"), why);
    }
    let too_verbose = format!("Must be <= {largest}");
    if logging.verbosity > largest {
        found.invalid(&format!("{path}.verbosity"), logging.verbosity, &too_verbose);
    }
    if logging.flush_frequency <= GoDuration::ZERO {
        let frequency = logging.flush_frequency.to_string();
        found.invalid_text(&format!("{path}.flushFrequency"), &frequency, "Must be greater than zero");
    }
    if !logging.vmodule.is_empty() && format != "text" {
        found.forbidden(&format!("{path}.vmodule"), "Only supported for text log format");
    }
    for (i, module) in logging.vmodule.iter().enumerate() {
        let path = format!("{path}.vmodule[{i}]");
        if module.file_pattern.is_empty() {
            found.0.push(format!("{path}: Required value: File pattern must not be empty"));
        }
        if module.file_pattern.contains(['=', ',']) {
            found.invalid_text(&path, &module.file_pattern, "File pattern must not contain equal sign or comma");
        }
        if module.verbosity > largest {
            found.invalid(&path, module.verbosity, &too_verbose);
        }
    }
}

/// `splitStream` of a file never counts (the flag's default is applied after it), the buffer size does.
fn validate_log_options(options: &LogOptions, path: &str, found: &mut ErrorCollector) {
    let why = "Feature LoggingAlphaOptions is disabled";
    if options.split_stream {
        found.forbidden(&format!("{path}.splitStream"), why);
    }
    if !quantity::is_zero(&options.info_buffer_size) {
        found.forbidden(&format!("{path}.infoBufferSize"), why);
    }
}
