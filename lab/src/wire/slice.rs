//! Protobuf messages of discovery.k8s.io/v1 EndpointSlice.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::meta::{ObjectMeta, ObjectReference};

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EndpointSlice {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ObjectMeta,
    #[prost(message, repeated, tag = "2")]
    pub(super) endpoints: Vec<WireEndpoint>,
    #[prost(message, repeated, tag = "3")]
    ports: Vec<EndpointPort>,
    #[prost(string, required, tag = "4")]
    pub(super) address_type: String,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireEndpoint {
    #[prost(string, repeated, tag = "1")]
    pub(super) addresses: Vec<String>,
    #[prost(message, required, tag = "2")]
    conditions: EndpointConditions,
    #[prost(string, optional, tag = "3")]
    hostname: Option<String>,
    #[prost(message, optional, tag = "4")]
    target_ref: Option<ObjectReference>,
    #[prost(btree_map = "string, string", tag = "5")]
    deprecated_topology: BTreeMap<String, String>,
    #[prost(string, optional, tag = "6")]
    node_name: Option<String>,
    #[prost(string, optional, tag = "7")]
    zone: Option<String>,
    #[prost(message, optional, tag = "8")]
    hints: Option<EndpointHints>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct EndpointConditions {
    #[prost(bool, optional, tag = "1")]
    ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    terminating: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EndpointHints {
    #[prost(message, repeated, tag = "1")]
    for_zones: Vec<Named>,
    #[prost(message, repeated, tag = "2")]
    for_nodes: Vec<Named>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    #[prost(string, required, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EndpointPort {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    protocol: Option<String>,
    #[prost(int32, optional, tag = "3")]
    port: Option<i32>,
    #[prost(string, optional, tag = "4")]
    app_protocol: Option<String>,
}
