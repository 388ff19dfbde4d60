//! The objects of the fleet's cluster in the form that controllers write, and an hour's changes.

use std::net::Ipv4Addr;

use ferry_lab::kubernetes::ApiRequest;
use serde_json::{Value, json};

use super::network::{HUB, address};

/// Namespace of all objects, created by the lab.
pub(super) use ferry_lab::objects::NAMESPACE;

const SERVICES: &str = "/api/v1/namespaces/demo/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices";
const NODES: &str = "/api/v1/nodes";
/// The name of the marker's Service and EndpointSlice.
const MARKER: &str = "marker";
/// The cluster IP of the marker.
pub(super) const MARKER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 255, 1);
/// Interval of a kubelet's Node status updates without a change: 12 an hour.
pub(super) const NODE_REPORTS: usize = 12;

/// The name of a node.
pub(super) fn node_name(node: usize) -> String {
    format!("fleet-{node}")
}

/// The initial objects.
pub(super) fn all(nodes: usize, services: usize, endpoints: usize) -> Vec<ApiRequest> {
    let mut requests: Vec<_> = (0..nodes).map(|node| post(NODES, &self::node(node))).collect();
    for index in 0..services {
        requests.push(post(SERVICES, &service(&name(index), cluster_ip(index), 80)));
        requests.push(post(SLICES, &slice(index, endpoints, nodes, 0)));
    }
    requests.push(post(SERVICES, &service(MARKER, MARKER_IP, marker_port(0))));
    requests.push(post(SLICES, &marker_slice(0)));
    requests
}

/// The addresses of the nodes, which the API server accepts only in separate status updates.
pub(super) fn node_addresses(nodes: usize) -> Vec<ApiRequest> {
    let addresses = |node| json!([{"type": "InternalIP", "address": address(node)}]);
    (0..nodes).map(|node| node_status(node, &json!({"addresses": addresses(node)}))).collect()
}

/// Undoes the changes of an hour, so that the next run starts from the same state.
pub(super) fn reset(nodes: usize, services: usize, endpoints: usize) -> Vec<ApiRequest> {
    (0..services).map(|index| put(&name(index), &slice(index, endpoints, nodes, 0))).collect()
}

/// The changes of an hour, in chronological order: rolling updates replace one endpoint of a service after the other, and
/// each kubelet reports 12 times.
pub(super) fn hour(changes: usize, nodes: usize, services: usize, endpoints: usize) -> Vec<ApiRequest> {
    let reports = NODE_REPORTS * nodes;
    let mut requests = Vec::new();
    for change in 0..changes {
        // All services in turn: one changes again only after all others.
        let (index, generation) = (change % services, change / services + 1);
        requests.push(put(&name(index), &slice(index, endpoints, nodes, generation)));
        let due = |change: usize| reports * change / changes;
        requests.extend((due(change)..due(change + 1)).map(|report| node_report(report % nodes, report)));
    }
    requests
}

/// The requests that write a version of the marker: its endpoint's port, then its Service's.
pub(super) fn mark(version: u16) -> [ApiRequest; 2] {
    let service = service(MARKER, MARKER_IP, marker_port(version));
    let service = ApiRequest { method: "PUT", ..request(format!("{SERVICES}/{MARKER}"), &service) };
    [put(MARKER, &marker_slice(version)), service]
}

/// Service port of a version of the marker.
pub(super) fn marker_port(version: u16) -> u16 {
    1000 + version
}

/// Endpoint port of a version of the marker.
pub(super) fn marker_target(version: u16) -> u16 {
    20_000 + version
}

fn name(index: usize) -> String {
    format!("service-{index}")
}

/// Cluster IP of a service, outside of the range's static part, which is reserved for Services with a specified address.
fn cluster_ip(index: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a60_0400 + u32::try_from(index).unwrap_or(0))
}

fn service(name: &str, address: Ipv4Addr, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": name, "team": "fleet"}},
        "spec": {
            "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "http", "protocol": "TCP", "port": port, "targetPort": "http"}],
        },
    })
}

/// The slice of a service. Each generation replaces one endpoint, like a rolling update.
fn slice(index: usize, endpoints: usize, nodes: usize, generation: usize) -> Value {
    let endpoints: Vec<Value> = (0..endpoints)
        .map(|number| {
            // The number of replacements of endpoint `number` so far.
            let replaced = (generation + endpoints - 1 - number) / endpoints;
            let node = (index + number + replaced) % nodes;
            endpoint(index, number, replaced, node)
        })
        .collect();
    slice_of(&name(index), &endpoints, 8080)
}

fn endpoint(index: usize, number: usize, replaced: usize, node: usize) -> Value {
    let pod = format!("{}-{:010x}-{:05x}", name(index), index * 7_919 + 1, number * 31 + replaced);
    json!({
        "addresses": [pod_ip(index, number, replaced)],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": node_name(node),
        "zone": format!("zone-{}", node % 3),
        "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": pod,
            "uid": format!("{index:08x}-{number:04x}-4000-8000-{replaced:012x}")},
    })
}

/// Address of an endpoint, which alternates between two with each replacement.
fn pod_ip(index: usize, number: usize, replaced: usize) -> Ipv4Addr {
    let offset = (index * 512 + number * 2 + replaced % 2) % 0x40_0000;
    Ipv4Addr::from_bits(0x0a80_0000 + u32::try_from(offset).unwrap_or(0))
}

fn marker_slice(version: u16) -> Value {
    let endpoint = json!({"addresses": [HUB], "conditions": {"ready": true, "serving": true, "terminating": false}});
    slice_of(MARKER, &[endpoint], marker_target(version))
}

fn slice_of(service: &str, endpoints: &[Value], port: u16) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": service, "namespace": NAMESPACE, "labels": {
            "kubernetes.io/service-name": service,
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            "app.kubernetes.io/name": service,
        }},
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": port}],
        "endpoints": endpoints,
    })
}

fn node(node: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node_name(node), "labels": {"topology.kubernetes.io/zone": format!("zone-{}", node % 3)}},
    })
}

/// A kubelet's Node status update without a change (heartbeat).
fn node_report(node: usize, report: usize) -> ApiRequest {
    let time = format!("2030-01-01T{:02}:{:02}:00Z", report / 60 % 24, report % 60);
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "Reported", "message": "kubelet reports",
            "lastHeartbeatTime": time, "lastTransitionTime": "2030-01-01T00:00:00Z"})
    };
    let conditions =
        [condition("MemoryPressure", "False"), condition("DiskPressure", "False"), condition("Ready", "True")];
    node_status(node, &json!({"conditions": conditions}))
}

fn node_status(node: usize, status: &Value) -> ApiRequest {
    ApiRequest::patch(&format!("{NODES}/{}/status", node_name(node)), &json!({"status": status}))
}

fn post(collection: &str, object: &Value) -> ApiRequest {
    request(collection.to_owned(), object)
}

fn put(name: &str, slice: &Value) -> ApiRequest {
    ApiRequest { method: "PUT", ..request(format!("{SLICES}/{name}"), slice) }
}

fn request(path: String, object: &Value) -> ApiRequest {
    ApiRequest { method: "POST", path, content_type: "application/json", body: object.to_string() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn addresses(slice: &Value) -> BTreeSet<String> {
        let endpoints = slice["endpoints"].as_array().unwrap();
        endpoints.iter().map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_generation_replaces_one_endpoint() {
        for generation in 0..40 {
            let (before, after) = (slice(3, 10, 50, generation), slice(3, 10, 50, generation + 1));
            let (before, after) = (addresses(&before), addresses(&after));
            assert_eq!((before.len(), after.len()), (10, 10));
            assert_eq!(before.difference(&after).count(), 1, "generation {generation}");
        }
    }

    #[test]
    fn an_hour_has_all_its_changes() {
        let requests = hour(1000, 50, 200, 10);
        let reports = requests.iter().filter(|request| request.path.ends_with("/status")).count();
        assert_eq!((requests.len(), reports), (1600, 600));
    }

    #[test]
    fn services_have_addresses_of_their_own() {
        let all: BTreeSet<_> = (0..10_000).map(cluster_ip).chain([MARKER_IP]).collect();
        assert_eq!(all.len(), 10_001);
    }
}
