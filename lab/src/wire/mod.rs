//! Encodes the objects that a service proxy reads from JSON into the Kubernetes protobuf format: with all fields of a real
//! cluster's objects, not only those that a proxy reads.
//!
//! Field numbers, and the fields that are written even if empty, follow the API's Go types: a non-pointer field is always
//! written, empty or not (`required` here). JSON fields beyond these types are left out.

mod envelope;
mod meta;
mod node;
mod service;
mod slice;

use ferry_api::object::Kind;
use prost::Message;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use envelope::TAIL;
pub use envelope::{ApiStatus, MAGIC, envelope, list_envelope, list_item, list_meta, watch_frame};

/// Encodes an object as a protobuf message (without its envelope).
///
/// # Errors
/// If a field has a type that the API doesn't accept, for example a text for a port.
pub fn encode(kind: Kind, object: &Value) -> Result<Vec<u8>, serde_json::Error> {
    let mut object = object.clone();
    without_nulls(&mut object);
    match kind {
        Kind::Service => message::<service::WireService>(object),
        Kind::EndpointSlice => message::<slice::EndpointSlice>(object),
        Kind::Node => message::<node::Node>(object),
        Kind::ServiceCidr => message::<service::ServiceCidr>(object),
    }
}

/// `apiVersion` of a kind.
pub fn api_version(kind: Kind) -> &'static str {
    match kind {
        Kind::Service | Kind::Node => "v1",
        Kind::EndpointSlice => "discovery.k8s.io/v1",
        Kind::ServiceCidr => "networking.k8s.io/v1",
    }
}

fn message<M: Message + DeserializeOwned>(object: Value) -> Result<Vec<u8>, serde_json::Error> {
    Ok(serde_json::from_value::<M>(object)?.encode_to_vec())
}

/// Removes nulls: JSON writes nil lists and times as null, which equals their absence.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests;
