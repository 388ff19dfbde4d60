//! Maps a document's fields to the configuration. Each function names the fields of one section; others are unknown and only
//! reported, a wrong type is an error with the text of Go's JSON decoder.

use std::collections::BTreeMap;

use super::tree::{Node, YamlValue};
use super::types::{
    ClientConnection, Conntrack, DetectLocal, IpTables, Ipvs, KubeProxyConfiguration, LogOptions, Logging, NfTables,
    VModule, WinKernel,
};
use super::{GoDuration, quantity};

/// A value that can't be read; the place is within the document.
#[derive(Debug)]
pub(super) struct FieldError {
    pub(super) location: serde_saphyr::Location,
    pub(super) message: String,
}

/// The entries of one map, taken out one by one.
struct Section<'a> {
    /// the name of upstream's type, which errors begin with
    type_name: &'static str,
    /// from the root, joined by points; empty for the root
    path: String,
    entries: BTreeMap<&'a str, &'a Node>,
}

/// Reads a whole document; `unknown` receives the paths of unknown fields.
pub(super) fn read(
    root: &Node,
    config: &mut KubeProxyConfiguration,
    unknown: &mut Vec<String>,
) -> Result<(), FieldError> {
    let mut section = Section::new("KubeProxyConfiguration", String::new(), root)?;
    // Looked at before anything else was read.
    section.entries.remove("apiVersion");
    section.entries.remove("kind");
    section.gates("featureGates", &mut config.feature_gates)?;
    section.text("hostnameOverride", &mut config.hostname_override)?;
    section.text("bindAddress", &mut config.bind_address)?;
    section.text("healthzBindAddress", &mut config.healthz_bind_address)?;
    section.text("metricsBindAddress", &mut config.metrics_bind_address)?;
    section.boolean("bindAddressHardFail", &mut config.bind_address_hard_fail)?;
    section.boolean("enableProfiling", &mut config.enable_profiling)?;
    section.text("showHiddenMetricsForVersion", &mut config.show_hidden_metrics_for_version)?;
    section.text("mode", &mut config.mode)?;
    section.text("detectLocalMode", &mut config.detect_local_mode)?;
    section.text("clusterCIDR", &mut config.cluster_cidr)?;
    section.texts("nodePortAddresses", &mut config.node_port_addresses)?;
    section.int32("oomScoreAdj", &mut config.oom_score_adj)?;
    section.duration("configSyncPeriod", &mut config.config_sync_period)?;
    section.text("portRange", &mut config.port_range)?;
    section.boolean("windowsRunAsService", &mut config.windows_run_as_service)?;
    section.below("clientConnection", "ClientConnectionConfiguration", unknown, |below, _| {
        client_connection(below, &mut config.client_connection)
    })?;
    section.below("logging", "LoggingConfiguration", unknown, |below, unknown| {
        logging(below, &mut config.logging, unknown)
    })?;
    section.below("iptables", "KubeProxyIPTablesConfiguration", unknown, |below, _| {
        iptables(below, &mut config.iptables)
    })?;
    section.below("ipvs", "KubeProxyIPVSConfiguration", unknown, |below, _| ipvs(below, &mut config.ipvs))?;
    section.below("nftables", "KubeProxyNFTablesConfiguration", unknown, |below, _| {
        nftables(below, &mut config.nftables)
    })?;
    section.below("winkernel", "KubeProxyWinkernelConfiguration", unknown, |below, _| {
        winkernel(below, &mut config.winkernel)
    })?;
    section.below("detectLocal", "DetectLocalConfiguration", unknown, |below, _| {
        detect_local(below, &mut config.detect_local)
    })?;
    section.below("conntrack", "KubeProxyConntrackConfiguration", unknown, |below, _| {
        conntrack(below, &mut config.conntrack)
    })?;
    section.finish(unknown);
    Ok(())
}

fn client_connection(section: &mut Section<'_>, to: &mut ClientConnection) -> Result<(), FieldError> {
    section.text("kubeconfig", &mut to.kubeconfig)?;
    section.text("acceptContentTypes", &mut to.accept_content_types)?;
    section.text("contentType", &mut to.content_type)?;
    section.float32("qps", &mut to.qps)?;
    section.int32("burst", &mut to.burst)
}

fn logging(section: &mut Section<'_>, to: &mut Logging, unknown: &mut Vec<String>) -> Result<(), FieldError> {
    section.text("format", &mut to.format)?;
    to.flush_in_nanoseconds = section.duration_or_nanoseconds("flushFrequency", &mut to.flush_frequency)?;
    section.uint32("verbosity", &mut to.verbosity)?;
    section.list("vmodule", "[]VModuleItem", |path, item| {
        let mut module = VModule::default();
        let mut entry = Section::new("VModuleItem", path, item)?;
        entry.text("filePattern", &mut module.file_pattern)?;
        entry.uint32("verbosity", &mut module.verbosity)?;
        entry.finish(unknown);
        to.vmodule.push(module);
        Ok(())
    })?;
    section.below("options", "FormatOptions", unknown, |options, unknown| {
        options.below("text", "TextOptions", unknown, |below, _| log_options(below, &mut to.text))?;
        options.below("json", "JSONOptions", unknown, |below, _| log_options(below, &mut to.json))
    })
}

fn log_options(section: &mut Section<'_>, to: &mut LogOptions) -> Result<(), FieldError> {
    section.boolean("splitStream", &mut to.split_stream)?;
    section.quantity("infoBufferSize", &mut to.info_buffer_size)
}

fn iptables(section: &mut Section<'_>, to: &mut IpTables) -> Result<(), FieldError> {
    section.int32("masqueradeBit", &mut to.masquerade_bit)?;
    section.boolean("masqueradeAll", &mut to.masquerade_all)?;
    section.boolean("localhostNodePorts", &mut to.localhost_node_ports)?;
    section.duration("syncPeriod", &mut to.sync_period)?;
    section.duration("minSyncPeriod", &mut to.min_sync_period)
}

fn ipvs(section: &mut Section<'_>, to: &mut Ipvs) -> Result<(), FieldError> {
    section.duration("syncPeriod", &mut to.sync_period)?;
    section.duration("minSyncPeriod", &mut to.min_sync_period)?;
    section.text("scheduler", &mut to.scheduler)?;
    section.texts("excludeCIDRs", &mut to.exclude_cidrs)?;
    section.boolean("strictARP", &mut to.strict_arp)?;
    section.duration("tcpTimeout", &mut to.tcp_timeout)?;
    section.duration("tcpFinTimeout", &mut to.tcp_fin_timeout)?;
    section.duration("udpTimeout", &mut to.udp_timeout)
}

fn nftables(section: &mut Section<'_>, to: &mut NfTables) -> Result<(), FieldError> {
    section.int32("masqueradeBit", &mut to.masquerade_bit)?;
    section.boolean("masqueradeAll", &mut to.masquerade_all)?;
    section.duration("syncPeriod", &mut to.sync_period)?;
    section.duration("minSyncPeriod", &mut to.min_sync_period)
}

fn winkernel(section: &mut Section<'_>, to: &mut WinKernel) -> Result<(), FieldError> {
    section.text("networkName", &mut to.network_name)?;
    section.text("sourceVip", &mut to.source_vip)?;
    section.boolean("enableDSR", &mut to.enable_dsr)?;
    section.text("rootHnsEndpointName", &mut to.root_hns_endpoint_name)?;
    section.boolean("forwardHealthCheckVip", &mut to.forward_health_check_vip)
}

fn detect_local(section: &mut Section<'_>, to: &mut DetectLocal) -> Result<(), FieldError> {
    section.text("bridgeInterface", &mut to.bridge_interface)?;
    section.text("interfaceNamePrefix", &mut to.interface_name_prefix)
}

fn conntrack(section: &mut Section<'_>, to: &mut Conntrack) -> Result<(), FieldError> {
    section.int32("maxPerCore", &mut to.max_per_core)?;
    section.int32("min", &mut to.min)?;
    section.duration("tcpEstablishedTimeout", &mut to.tcp_established_timeout)?;
    section.duration("tcpCloseWaitTimeout", &mut to.tcp_close_wait_timeout)?;
    section.boolean("tcpBeLiberal", &mut to.tcp_be_liberal)?;
    section.duration("udpTimeout", &mut to.udp_timeout)?;
    section.duration("udpStreamTimeout", &mut to.udp_stream_timeout)
}

// === impl Section ===

impl<'a> Section<'a> {
    /// A null stands for an empty map; of repeated keys the last counts.
    fn new(type_name: &'static str, path: String, node: &'a Node) -> Result<Self, FieldError> {
        match &node.value {
            YamlValue::Map(entries) => {
                let entries = entries.iter().map(|(key, node)| (key.value.as_str(), node)).collect();
                Ok(Self { type_name, path, entries })
            }
            YamlValue::Null => Ok(Self { type_name, path, entries: BTreeMap::new() }),
            other => {
                let field = if path.is_empty() { String::new() } else { format!(" field {path}") };
                let message =
                    format!("json: cannot unmarshal {} into Go struct{field} of type {type_name}", other.json_kind());
                Err(FieldError { location: node.referenced, message })
            }
        }
    }

    /// Reports the fields that are left as unknown.
    fn finish(self, unknown: &mut Vec<String>) {
        unknown.extend(self.entries.keys().map(|name| join(&self.path, name)));
    }

    /// Takes a field; an absent one and null leave the default in force.
    fn take(&mut self, name: &'static str) -> Option<&'a Node> {
        self.entries.remove(name).filter(|node| node.value != YamlValue::Null)
    }

    fn mismatch(&self, name: &str, node: &Node, what: &str, go_type: &str) -> FieldError {
        let message = format!(
            "json: cannot unmarshal {what} into Go struct field {}.{} of type {go_type}",
            self.type_name,
            join(&self.path, name)
        );
        FieldError { location: node.referenced, message }
    }

    fn wrong_type(&self, name: &str, node: &Node, go_type: &str) -> FieldError {
        self.mismatch(name, node, &node.value.json_kind(), go_type)
    }

    fn below(
        &mut self,
        name: &'static str,
        type_name: &'static str,
        unknown: &mut Vec<String>,
        read: impl FnOnce(&mut Section<'a>, &mut Vec<String>) -> Result<(), FieldError>,
    ) -> Result<(), FieldError> {
        let Some(node) = self.take(name) else { return Ok(()) };
        if !matches!(node.value, YamlValue::Map(_)) {
            return Err(self.wrong_type(name, node, type_name));
        }
        let mut section = Section::new(type_name, join(&self.path, name), node)?;
        read(&mut section, unknown)?;
        section.finish(unknown);
        Ok(())
    }

    fn list(
        &mut self,
        name: &'static str,
        go_type: &str,
        mut read: impl FnMut(String, &'a Node) -> Result<(), FieldError>,
    ) -> Result<(), FieldError> {
        let Some(node) = self.take(name) else { return Ok(()) };
        let YamlValue::List(items) = &node.value else { return Err(self.wrong_type(name, node, go_type)) };
        let path = join(&self.path, name);
        items.iter().enumerate().try_for_each(|(i, item)| read(format!("{path}[{i}]"), item))
    }

    fn text(&mut self, name: &'static str, to: &mut String) -> Result<(), FieldError> {
        if let Some(node) = self.take(name) {
            *to = text_of(&node.value).ok_or_else(|| self.wrong_type(name, node, "string"))?;
        }
        Ok(())
    }

    fn texts(&mut self, name: &'static str, to: &mut Vec<String>) -> Result<(), FieldError> {
        let Some(node) = self.take(name) else { return Ok(()) };
        let YamlValue::List(items) = &node.value else { return Err(self.wrong_type(name, node, "[]string")) };
        for item in items {
            to.push(text_of(&item.value).ok_or_else(|| self.wrong_type(name, item, "string"))?);
        }
        Ok(())
    }

    fn boolean(&mut self, name: &'static str, to: &mut bool) -> Result<(), FieldError> {
        let Some(node) = self.take(name) else { return Ok(()) };
        let YamlValue::Bool(value) = node.value else { return Err(self.wrong_type(name, node, "bool")) };
        *to = value;
        Ok(())
    }

    fn int32(&mut self, name: &'static str, to: &mut i32) -> Result<(), FieldError> {
        if let Some(node) = self.take(name) {
            *to = self.integer(name, node, "int32")?;
        }
        Ok(())
    }

    fn uint32(&mut self, name: &'static str, to: &mut u32) -> Result<(), FieldError> {
        if let Some(node) = self.take(name) {
            *to = self.integer(name, node, "uint32")?;
        }
        Ok(())
    }

    fn integer<T: TryFrom<i128>>(&self, name: &str, node: &Node, go_type: &str) -> Result<T, FieldError> {
        match &node.value {
            YamlValue::Integer(number) => {
                T::try_from(*number).map_err(|_| self.mismatch(name, node, &format!("number {number}"), go_type))
            }
            // `1.0` is 1 once YAML has become JSON. A larger number than this saturates and is refused as too large.
            YamlValue::Float(number) if number.fract() == 0.0 => T::try_from(*number as i128)
                .map_err(|_| self.mismatch(name, node, &format!("number {number}"), go_type)),
            YamlValue::Float(number) => Err(self.mismatch(name, node, &format!("number {number}"), go_type)),
            _ => Err(self.wrong_type(name, node, go_type)),
        }
    }

    fn float32(&mut self, name: &'static str, to: &mut f32) -> Result<(), FieldError> {
        let Some(node) = self.take(name) else { return Ok(()) };
        let value = match node.value {
            YamlValue::Integer(number) => number as f32,
            YamlValue::Float(number) => number as f32,
            _ => return Err(self.wrong_type(name, node, "float32")),
        };
        if !value.is_finite() {
            return Err(self.wrong_type(name, node, "float32"));
        }
        *to = value;
        Ok(())
    }

    fn duration(&mut self, name: &'static str, to: &mut GoDuration) -> Result<(), FieldError> {
        let Some(node) = self.take(name) else { return Ok(()) };
        let YamlValue::Text(text) = &node.value else {
            let message = format!("json: cannot unmarshal {} into Go value of type string", node.value.json_kind());
            return Err(FieldError { location: node.referenced, message });
        };
        *to = text.parse().map_err(|error: super::DurationError| FieldError {
            location: node.referenced,
            message: error.to_string(),
        })?;
        Ok(())
    }

    /// logging.flushFrequency may be a number of nanoseconds, too; whether it was.
    fn duration_or_nanoseconds(&mut self, name: &'static str, to: &mut GoDuration) -> Result<bool, FieldError> {
        match self.entries.get(name).map(|node| &node.value) {
            Some(YamlValue::Integer(_) | YamlValue::Float(_)) => {
                if let Some(node) = self.take(name) {
                    *to = GoDuration::from_nanos(self.integer(name, node, "int64")?);
                }
                Ok(true)
            }
            _ => self.duration(name, to).map(|()| false),
        }
    }

    fn quantity(&mut self, name: &'static str, to: &mut String) -> Result<(), FieldError> {
        let Some(node) = self.take(name) else { return Ok(()) };
        let text = match &node.value {
            YamlValue::Text(text) => text.clone(),
            YamlValue::Integer(number) => number.to_string(),
            YamlValue::Float(number) => number.to_string(),
            _ => return Err(self.wrong_type(name, node, "Quantity")),
        };
        if !quantity::is_valid(&text) {
            let message = format!("quantities must be a number with a unit such as Ki or M, not {text:?}");
            return Err(FieldError { location: node.referenced, message });
        }
        *to = quantity::canonical(&text);
        Ok(())
    }

    fn gates(&mut self, name: &'static str, to: &mut BTreeMap<String, bool>) -> Result<(), FieldError> {
        let Some(node) = self.take(name) else { return Ok(()) };
        let YamlValue::Map(entries) = &node.value else { return Err(self.wrong_type(name, node, "map[string]bool")) };
        for (key, node) in entries {
            match node.value {
                YamlValue::Bool(value) => to.insert(key.value.clone(), value),
                YamlValue::Null => to.insert(key.value.clone(), false),
                _ => return Err(self.wrong_type(name, node, "bool")),
            };
        }
        Ok(())
    }
}

/// A value where a text is due. Numbers and booleans become texts on the way from YAML to JSON, null an empty one.
fn text_of(value: &YamlValue) -> Option<String> {
    match value {
        YamlValue::Text(text) => Some(text.clone()),
        YamlValue::Integer(number) => Some(number.to_string()),
        YamlValue::Float(number) => Some(number.to_string()),
        YamlValue::Bool(value) => Some(value.to_string()),
        YamlValue::Null => Some(String::new()),
        YamlValue::List(_) | YamlValue::Map(_) => None,
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
