//! Serves a situation's objects from an API server without validation, for a proxy that reads no manifests.

use std::collections::BTreeSet;
use std::path::Path;

use ferry_api::object::{Kind, Node};
use serde_json::{Value, json};

use crate::api::{ApiObject, ApiServer, ApiServerOptions};

/// An API server that stores objects without validation, with the defaults that a real one sets.
pub struct ObjectServer {
    server: ApiServer,
    held: BTreeSet<(Kind, String)>,
}

/// The label of a Node with its zone, as a JSON pointer.
const ZONE: &str = "/metadata/labels/topology.kubernetes.io~1zone";

// === impl ObjectServer ===

impl ObjectServer {
    /// Starts the server in the network namespace of the calling thread.
    pub fn start() -> Self {
        Self { server: ApiServer::start(ApiServerOptions::default()), held: BTreeSet::new() }
    }

    /// Writes a kubeconfig for the server.
    pub fn kubeconfig(&self, file: &Path) {
        self.server.kubeconfig(file);
    }

    /// Replaces all objects by these; the marker's are written last.
    pub fn put(&mut self, manifest: &str, marker: &str) {
        let [objects, marker] = [manifest, marker].map(decoded);
        let held: BTreeSet<_> = objects.iter().chain(&marker).map(|(kind, value)| (*kind, name_of(value))).collect();
        self.load(objects);
        for (kind, name) in self.held.difference(&held) {
            self.server.delete(*kind, name);
        }
        self.load(marker);
        self.held = held;
    }

    /// Writes the manifest's Nodes that have a zone, with this one instead, or with their own.
    pub(super) fn move_nodes(&self, manifest: &str, zone: Option<&str>) {
        let mut nodes = decoded(manifest);
        nodes.retain(|(kind, node)| *kind == Kind::Node && node.pointer(ZONE).is_some());
        for (label, zone) in nodes.iter_mut().filter_map(|(_, node)| Some((node.pointer_mut(ZONE)?, zone?))) {
            *label = json!(zone);
        }
        self.load(nodes);
    }

    fn load(&self, objects: Vec<(Kind, Value)>) {
        self.server.load(objects.into_iter().map(|(kind, value)| ApiObject::new(kind, value.to_string())));
    }
}

/// The objects of a manifest, with defaults.
fn decoded(manifest: &str) -> Vec<(Kind, Value)> {
    let objects = ApiObject::all(manifest).into_iter();
    let values = objects.map(|object| (object.kind(), serde_json::from_str(object.json()).expect("it is JSON")));
    values.map(|(kind, value)| (kind, with_defaults(kind, value))).collect()
}

fn name_of(value: &Value) -> String {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// Adds the defaults that a real API server sets, without which upstream's proxy exits.
fn with_defaults(kind: Kind, mut value: Value) -> Value {
    let ports = match kind {
        Kind::Service => "/spec/ports",
        Kind::EndpointSlice => "/ports",
        Kind::Node | Kind::ServiceCidr => return value,
    };
    for port in value.pointer_mut(ports).and_then(Value::as_array_mut).into_iter().flatten() {
        absent(port, "protocol", json!("TCP"));
        if kind == Kind::EndpointSlice {
            absent(port, "name", json!(""));
        }
    }
    let sticky = value.pointer("/spec/sessionAffinity").and_then(Value::as_str) == Some("ClientIP");
    if let Some(spec) = value.pointer_mut("/spec").filter(|_| kind == Kind::Service) {
        absent(spec, "internalTrafficPolicy", json!("Cluster"));
        if sticky {
            absent(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10800}}));
        }
    }
    let client = value.pointer_mut("/spec/sessionAffinityConfig/clientIP").filter(|_| sticky);
    if let Some(client) = client {
        absent(client, "timeoutSeconds", json!(10800));
    }
    value
}

fn absent(value: &mut Value, field: &str, default: Value) {
    if let Some(fields) = value.as_object_mut().filter(|fields| fields.get(field).is_none_or(Value::is_null)) {
        fields.insert(field.to_owned(), default);
    }
}

/// The manifest of a Node that is missing from a situation's objects.
pub(super) fn node_yaml(node: &Node) -> String {
    let addresses = node.addresses.iter().filter_map(|known| known.address.as_ref().ok());
    let addresses: Vec<_> = addresses.map(|address| json!({"type": "InternalIP", "address": address})).collect();
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name.name()}, "status": {"addresses": addresses},
    });
    format!("\n---\n{node}\n")
}
