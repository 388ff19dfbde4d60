//! Protobuf messages that all kinds share: metadata, conditions, times.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ObjectMeta {
    #[prost(string, required, tag = "1")]
    pub(super) name: String,
    #[prost(string, required, tag = "2")]
    pub(super) generate_name: String,
    #[prost(string, required, tag = "3")]
    pub(super) namespace: String,
    #[prost(string, required, tag = "4")]
    pub(super) self_link: String,
    #[prost(string, required, tag = "5")]
    pub(super) uid: String,
    #[prost(string, required, tag = "6")]
    pub(super) resource_version: String,
    #[prost(int64, required, tag = "7")]
    pub(super) generation: i64,
    #[prost(message, required, tag = "8")]
    pub(super) creation_timestamp: Time,
    #[prost(message, optional, tag = "9")]
    pub(super) deletion_timestamp: Option<Time>,
    #[prost(int64, optional, tag = "10")]
    pub(super) deletion_grace_period_seconds: Option<i64>,
    #[prost(btree_map = "string, string", tag = "11")]
    pub(super) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(super) annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    pub(super) owner_references: Vec<OwnerReference>,
    #[prost(string, repeated, tag = "14")]
    pub(super) finalizers: Vec<String>,
    #[prost(message, repeated, tag = "17")]
    pub(super) managed_fields: Vec<ManagedFieldsEntry>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct OwnerReference {
    #[prost(string, required, tag = "1")]
    kind: String,
    #[prost(string, required, tag = "3")]
    name: String,
    #[prost(string, required, tag = "4")]
    uid: String,
    #[prost(string, required, tag = "5")]
    api_version: String,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    block_owner_deletion: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ManagedFieldsEntry {
    #[prost(string, required, tag = "1")]
    manager: String,
    #[prost(string, required, tag = "2")]
    operation: String,
    #[prost(string, required, tag = "3")]
    api_version: String,
    #[prost(message, optional, tag = "4")]
    time: Option<Time>,
    #[prost(string, required, tag = "6")]
    fields_type: String,
    #[prost(message, optional, tag = "7")]
    #[serde(deserialize_with = "fields")]
    fields_v1: Option<FieldsV1>,
    #[prost(string, required, tag = "8")]
    subresource: String,
}

/// JSON within protobuf.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FieldsV1 {
    #[prost(bytes = "vec", required, tag = "1")]
    raw: Vec<u8>,
}

/// An absent time has neither field.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Time {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    nanos: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireCondition {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "type")]
    kind: String,
    #[prost(string, required, tag = "2")]
    status: String,
    #[prost(int64, required, tag = "3")]
    observed_generation: i64,
    #[prost(message, required, tag = "4")]
    last_transition_time: Time,
    #[prost(string, required, tag = "5")]
    reason: String,
    #[prost(string, required, tag = "6")]
    message: String,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ObjectReference {
    #[prost(string, required, tag = "1")]
    kind: String,
    #[prost(string, required, tag = "2")]
    namespace: String,
    #[prost(string, required, tag = "3")]
    name: String,
    #[prost(string, required, tag = "4")]
    uid: String,
    #[prost(string, required, tag = "5")]
    api_version: String,
    #[prost(string, required, tag = "6")]
    resource_version: String,
    #[prost(string, required, tag = "7")]
    field_path: String,
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: jiff::Timestamp = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self { seconds: Some(time.as_second()), nanos: Some(time.subsec_nanosecond()) })
    }
}

fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FieldsV1>, D::Error> {
    Ok(Some(FieldsV1 { raw: Value::deserialize(deserializer)?.to_string().into_bytes() }))
}
