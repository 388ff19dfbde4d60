//! Protobuf messages of core/v1 Node.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::meta::{ObjectMeta, Time};

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    spec: NodeSpec,
    #[prost(message, required, tag = "3")]
    status: NodeStatus,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeSpec {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "podCIDR")]
    pod_cidr: String,
    #[prost(string, required, tag = "2")]
    #[serde(rename = "externalID")]
    external_id: String,
    #[prost(string, required, tag = "3")]
    #[serde(rename = "providerID")]
    provider_id: String,
    #[prost(bool, required, tag = "4")]
    unschedulable: bool,
    #[prost(message, repeated, tag = "5")]
    taints: Vec<Taint>,
    #[prost(string, repeated, tag = "7")]
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Taint {
    #[prost(string, required, tag = "1")]
    key: String,
    #[prost(string, required, tag = "2")]
    value: String,
    #[prost(string, required, tag = "3")]
    effect: String,
    #[prost(message, optional, tag = "4")]
    time_added: Option<Time>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeStatus {
    #[prost(btree_map = "string, message", tag = "1")]
    capacity: BTreeMap<String, Quantity>,
    #[prost(btree_map = "string, message", tag = "2")]
    allocatable: BTreeMap<String, Quantity>,
    #[prost(string, required, tag = "3")]
    phase: String,
    #[prost(message, repeated, tag = "4")]
    conditions: Vec<NodeCondition>,
    #[prost(message, repeated, tag = "5")]
    addresses: Vec<NodeAddress>,
    #[prost(message, required, tag = "6")]
    daemon_endpoints: NodeDaemonEndpoints,
    #[prost(message, required, tag = "7")]
    node_info: NodeSystemInfo,
    #[prost(message, repeated, tag = "8")]
    images: Vec<ContainerImage>,
    #[prost(string, repeated, tag = "9")]
    volumes_in_use: Vec<String>,
}

/// A quantity, as its text.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Quantity {
    #[prost(string, required, tag = "1")]
    text: String,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeCondition {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "type")]
    kind: String,
    #[prost(string, required, tag = "2")]
    status: String,
    #[prost(message, required, tag = "3")]
    last_heartbeat_time: Time,
    #[prost(message, required, tag = "4")]
    last_transition_time: Time,
    #[prost(string, required, tag = "5")]
    reason: String,
    #[prost(string, required, tag = "6")]
    message: String,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct NodeAddress {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "type")]
    kind: String,
    #[prost(string, required, tag = "2")]
    address: String,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeDaemonEndpoints {
    #[prost(message, required, tag = "1")]
    kubelet_endpoint: DaemonEndpoint,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct DaemonEndpoint {
    #[prost(int32, required, tag = "1")]
    port: i32,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeSystemInfo {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "machineID")]
    machine_id: String,
    #[prost(string, required, tag = "2")]
    #[serde(rename = "systemUUID")]
    system_uuid: String,
    #[prost(string, required, tag = "3")]
    #[serde(rename = "bootID")]
    boot_id: String,
    #[prost(string, required, tag = "4")]
    kernel_version: String,
    #[prost(string, required, tag = "5")]
    os_image: String,
    #[prost(string, required, tag = "6")]
    container_runtime_version: String,
    #[prost(string, required, tag = "7")]
    kubelet_version: String,
    #[prost(string, required, tag = "8")]
    kube_proxy_version: String,
    #[prost(string, required, tag = "9")]
    operating_system: String,
    #[prost(string, required, tag = "10")]
    architecture: String,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerImage {
    #[prost(string, repeated, tag = "1")]
    names: Vec<String>,
    #[prost(int64, required, tag = "2")]
    size_bytes: i64,
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self {
            text: match Value::deserialize(deserializer)? {
                Value::String(text) => text,
                other => other.to_string(),
            },
        })
    }
}
