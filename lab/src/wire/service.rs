//! Protobuf messages of core/v1 Service and networking.k8s.io/v1 ServiceCIDR.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::meta::{ObjectMeta, WireCondition};

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct WireService {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub(super) spec: ServiceSpec,
    #[prost(message, required, tag = "3")]
    pub(super) status: ServiceStatus,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ServiceSpec {
    #[prost(message, repeated, tag = "1")]
    pub(super) ports: Vec<ServicePort>,
    #[prost(btree_map = "string, string", tag = "2")]
    selector: BTreeMap<String, String>,
    #[prost(string, required, tag = "3")]
    #[serde(rename = "clusterIP")]
    pub(super) cluster_ip: String,
    #[prost(string, required, tag = "4")]
    #[serde(rename = "type")]
    kind: String,
    #[prost(string, repeated, tag = "5")]
    #[serde(rename = "externalIPs")]
    external_ips: Vec<String>,
    #[prost(string, required, tag = "7")]
    session_affinity: String,
    #[prost(string, required, tag = "8")]
    #[serde(rename = "loadBalancerIP")]
    load_balancer_ip: String,
    #[prost(string, repeated, tag = "9")]
    load_balancer_source_ranges: Vec<String>,
    #[prost(string, required, tag = "10")]
    external_name: String,
    #[prost(string, required, tag = "11")]
    external_traffic_policy: String,
    #[prost(int32, required, tag = "12")]
    health_check_node_port: i32,
    #[prost(bool, required, tag = "13")]
    publish_not_ready_addresses: bool,
    #[prost(message, optional, tag = "14")]
    session_affinity_config: Option<SessionAffinityConfig>,
    #[prost(string, optional, tag = "17")]
    ip_family_policy: Option<String>,
    #[prost(string, repeated, tag = "18")]
    #[serde(rename = "clusterIPs")]
    cluster_ips: Vec<String>,
    #[prost(string, repeated, tag = "19")]
    ip_families: Vec<String>,
    #[prost(bool, optional, tag = "20")]
    allocate_load_balancer_node_ports: Option<bool>,
    #[prost(string, optional, tag = "21")]
    load_balancer_class: Option<String>,
    #[prost(string, optional, tag = "22")]
    internal_traffic_policy: Option<String>,
    #[prost(string, optional, tag = "23")]
    traffic_distribution: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ServicePort {
    #[prost(string, required, tag = "1")]
    pub(super) name: String,
    #[prost(string, required, tag = "2")]
    protocol: String,
    #[prost(int32, required, tag = "3")]
    pub(super) port: i32,
    #[prost(message, required, tag = "4")]
    pub(super) target_port: IntOrString,
    #[prost(int32, required, tag = "5")]
    node_port: i32,
    #[prost(string, optional, tag = "6")]
    app_protocol: Option<String>,
}

/// A number (type 0) or a name (type 1).
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct IntOrString {
    #[prost(int64, required, tag = "1")]
    pub(super) kind: i64,
    #[prost(int32, required, tag = "2")]
    pub(super) int: i32,
    #[prost(string, required, tag = "3")]
    pub(super) text: String,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
pub(super) struct SessionAffinityConfig {
    #[prost(message, optional, tag = "1")]
    #[serde(rename = "clientIP")]
    client_ip: Option<ClientIpConfig>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClientIpConfig {
    #[prost(int32, optional, tag = "1")]
    timeout_seconds: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ServiceStatus {
    #[prost(message, required, tag = "1")]
    load_balancer: LoadBalancerStatus,
    #[prost(message, repeated, tag = "2")]
    conditions: Vec<WireCondition>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct LoadBalancerStatus {
    #[prost(message, repeated, tag = "1")]
    ingress: Vec<LoadBalancerIngress>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LoadBalancerIngress {
    #[prost(string, required, tag = "1")]
    ip: String,
    #[prost(string, required, tag = "2")]
    hostname: String,
    #[prost(string, optional, tag = "3")]
    ip_mode: Option<String>,
    #[prost(message, repeated, tag = "4")]
    ports: Vec<PortStatus>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct PortStatus {
    #[prost(int32, required, tag = "1")]
    port: i32,
    #[prost(string, required, tag = "2")]
    protocol: String,
    #[prost(string, optional, tag = "3")]
    error: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct ServiceCidr {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    spec: ServiceCidrSpec,
    #[prost(message, required, tag = "3")]
    status: ServiceCidrStatus,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct ServiceCidrSpec {
    #[prost(string, repeated, tag = "1")]
    cidrs: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct ServiceCidrStatus {
    #[prost(message, repeated, tag = "1")]
    conditions: Vec<WireCondition>,
}

impl<'de> Deserialize<'de> for IntOrString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self { kind: 1, int: 0, text }),
            other => {
                let int = other.as_i64().and_then(|int| i32::try_from(int).ok());
                let int = int.ok_or_else(|| D::Error::custom(format!("neither a port nor a name: {other}")))?;
                Ok(Self { kind: 0, int, text: String::new() })
            }
        }
    }
}
