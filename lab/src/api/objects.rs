//! Builders of many objects with the fields of a real cluster's: owners, managed fields, labels, references to pods.
//!
//! Service `i` is `bench/service-i` with one TCP port and the cluster IP [`vip`]; its slice `bench/service-i-a` has ten
//! endpoints, of the sixteen addresses that [`endpoint`] gives it. A slice is about 4 kB of JSON.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use ferry_api::object::Kind;
use serde_json::Value;

use super::ApiObject;

/// The namespace of the services and slices.
pub const NAMESPACE: &str = "bench";
/// Endpoints of each service.
pub const ENDPOINTS: u32 = 10;

const CREATED: &str = "2026-01-02T03:04:05Z";

/// The cluster IP of a service.
pub fn vip(index: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a60_0001 + u32::try_from(index).expect("few enough"))
}

/// Address of one of a service's 16 possible endpoints.
pub fn endpoint(index: usize, number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0af4_0001 + 16 * u32::try_from(index).expect("few enough") + number)
}

/// The initial endpoints of a service.
pub fn first_endpoints(index: usize) -> Vec<Ipv4Addr> {
    (0..ENDPOINTS).map(|number| endpoint(index, number)).collect()
}

/// `count` services, each with its slice.
pub fn services(count: usize) -> impl Iterator<Item = ApiObject> {
    (0..count).flat_map(|index| [service(index), slice(index, &first_endpoints(index))])
}

/// The Service with this number.
pub fn service(index: usize) -> ApiObject {
    let vip = vip(index);
    let meta = meta(
        &format!("service-{index}"),
        NAMESPACE,
        1,
        index,
        &format!(
            r#"{{"app.kubernetes.io/name":"service-{index}","app.kubernetes.io/managed-by":"Helm","team":"bench"}}"#
        ),
        r#"{"meta.helm.sh/release-name":"bench","meta.helm.sh/release-namespace":"bench"}"#,
        "[]",
        &format!(
            r#"{{"manager":"helm","operation":"Update","apiVersion":"v1","time":"{CREATED}","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:annotations":{{".":{{}},"f:meta.helm.sh/release-name":{{}},"f:meta.helm.sh/release-namespace":{{}}}},"f:labels":{{".":{{}},"f:app.kubernetes.io/managed-by":{{}},"f:app.kubernetes.io/name":{{}},"f:team":{{}}}}}},"f:spec":{{"f:internalTrafficPolicy":{{}},"f:ports":{{".":{{}},"k:{{\"port\":80,\"protocol\":\"TCP\"}}":{{".":{{}},"f:name":{{}},"f:port":{{}},"f:protocol":{{}},"f:targetPort":{{}}}}}},"f:selector":{{}},"f:sessionAffinity":{{}},"f:type":{{}}}}}}}}"#
        ),
    );
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{meta},"spec":{{"clusterIP":"{vip}","clusterIPs":["{vip}"],"internalTrafficPolicy":"Cluster","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","ports":[{{"name":"http","port":80,"protocol":"TCP","targetPort":8080}}],"selector":{{"app.kubernetes.io/name":"service-{index}"}},"sessionAffinity":"None","type":"ClusterIP"}},"status":{{"loadBalancer":{{}}}}}}"#
    );
    ApiObject::new(Kind::Service, json)
}

/// The slice of a service with these endpoints, all ready.
pub fn slice(index: usize, endpoints: &[Ipv4Addr]) -> ApiObject {
    let owner = uid(1, index);
    let meta = meta(
        &format!("service-{index}-a"),
        NAMESPACE,
        2,
        index,
        &format!(
            r#"{{"app.kubernetes.io/managed-by":"Helm","app.kubernetes.io/name":"service-{index}","endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io","kubernetes.io/service-name":"service-{index}","team":"bench"}}"#
        ),
        &format!(r#"{{"endpoints.kubernetes.io/last-change-trigger-time":"{CREATED}"}}"#),
        &format!(
            r#"[{{"apiVersion":"v1","blockOwnerDeletion":true,"controller":true,"kind":"Service","name":"service-{index}","uid":"{owner}"}}]"#
        ),
        &format!(
            r#"{{"manager":"kube-controller-manager","operation":"Update","apiVersion":"discovery.k8s.io/v1","time":"{CREATED}","fieldsType":"FieldsV1","fieldsV1":{{"f:addressType":{{}},"f:endpoints":{{}},"f:metadata":{{"f:annotations":{{".":{{}},"f:endpoints.kubernetes.io/last-change-trigger-time":{{}}}},"f:generateName":{{}},"f:labels":{{".":{{}},"f:endpointslice.kubernetes.io/managed-by":{{}},"f:kubernetes.io/service-name":{{}},"f:team":{{}}}},"f:ownerReferences":{{".":{{}},"k:{{\"uid\":\"{owner}\"}}":{{}}}}}},"f:ports":{{}}}}}}"#
        ),
    );
    let mut items = String::new();
    for (number, address) in endpoints.iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        let node = number % 5;
        let zone = node % 3;
        let pod = uid(3, index * 16 + number);
        // Writing to a String can't fail.
        let _ = write!(
            items,
            r#"{comma}{{"addresses":["{address}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"nodeName":"node-{node}","targetRef":{{"kind":"Pod","name":"service-{index}-7d9c5b8f6-{number:05}","namespace":"{NAMESPACE}","uid":"{pod}"}},"zone":"zone-{zone}"}}"#
        );
    }
    let json = format!(
        r#"{{"addressType":"IPv4","apiVersion":"discovery.k8s.io/v1","endpoints":[{items}],"kind":"EndpointSlice","metadata":{meta},"ports":[{{"name":"http","port":8080,"protocol":"TCP"}}]}}"#
    );
    ApiObject::new(Kind::EndpointSlice, json)
}

/// The slice of a service after `round` replacements of its last endpoint: each round uses another of the spare addresses.
pub fn replaced(index: usize, round: u32) -> ApiObject {
    let mut endpoints = first_endpoints(index);
    if let (Some(last), true) = (endpoints.last_mut(), round > 0) {
        *last = endpoint(index, ENDPOINTS + (round - 1) % (16 - ENDPOINTS));
    }
    slice(index, &endpoints)
}

/// A ready node with an address and pod ranges, in a zone.
pub fn node(name: &str, address: Ipv4Addr, zone: &str) -> ApiObject {
    let meta = meta(
        name,
        "",
        4,
        0,
        &format!(
            r#"{{"beta.kubernetes.io/arch":"amd64","beta.kubernetes.io/os":"linux","kubernetes.io/arch":"amd64","kubernetes.io/hostname":"{name}","kubernetes.io/os":"linux","topology.kubernetes.io/region":"lab","topology.kubernetes.io/zone":"{zone}"}}"#
        ),
        r#"{"node.alpha.kubernetes.io/ttl":"0","volumes.kubernetes.io/controller-managed-attach-detach":"true"}"#,
        "[]",
        &format!(
            r#"{{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"{CREATED}","fieldsType":"FieldsV1","fieldsV1":{{"f:status":{{"f:conditions":{{"k:{{\"type\":\"Ready\"}}":{{"f:lastHeartbeatTime":{{}}}}}}}}}},"subresource":"status"}}"#
        ),
    );
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Node","metadata":{meta},"spec":{{"podCIDR":"10.244.0.0/16","podCIDRs":["10.244.0.0/16"],"providerID":"lab:///{name}"}},"status":{{"addresses":[{{"address":"{address}","type":"InternalIP"}},{{"address":"{name}","type":"Hostname"}}],"allocatable":{{"cpu":"2","memory":"4012345Ki","pods":"110"}},"capacity":{{"cpu":"2","memory":"4112345Ki","pods":"110"}},"conditions":[{{"lastHeartbeatTime":"{CREATED}","lastTransitionTime":"{CREATED}","message":"kubelet is posting ready status","reason":"KubeletReady","status":"True","type":"Ready"}}],"daemonEndpoints":{{"kubeletEndpoint":{{"Port":10250}}}},"images":[{{"names":["registry.example/pause:3.10"],"sizeBytes":320368}}],"nodeInfo":{{"architecture":"amd64","bootID":"b","containerRuntimeVersion":"containerd://2.1.0","kernelVersion":"6.12.0","kubeProxyVersion":"","kubeletVersion":"v1.36.2","machineID":"m","operatingSystem":"linux","osImage":"Lab","systemUUID":"s"}}}}}}"#
    );
    ApiObject::new(Kind::Node, json)
}

/// A ServiceCIDR with these ranges of cluster IPs.
pub fn service_cidr(name: &str, cidrs: &[&str]) -> ApiObject {
    let cidrs: Vec<_> = cidrs.iter().map(|cidr| format!("\"{cidr}\"")).collect();
    let meta = meta(name, "", 5, 0, "{}", "{}", "[]", "");
    let json = format!(
        r#"{{"apiVersion":"networking.k8s.io/v1","kind":"ServiceCIDR","metadata":{meta},"spec":{{"cidrs":[{}]}},"status":{{"conditions":[{{"lastTransitionTime":"{CREATED}","message":"Kubernetes Service CIDR is ready","reason":"","status":"True","type":"Ready"}}]}}}}"#,
        cidrs.join(",")
    );
    ApiObject::new(Kind::ServiceCidr, json)
}

/// A copy of an object of this module with an annotation of `bytes` bytes.
pub fn padded(object: &ApiObject, bytes: usize) -> ApiObject {
    let mut value: Value = serde_json::from_str(&object.text).expect("JSON of an object");
    let annotations = value.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    annotations.expect("the builders write annotations").insert("padding".to_owned(), "x".repeat(bytes).into());
    ApiObject::new(object.kind, value.to_string())
}

/// A uid; `family` distinguishes kinds of objects.
fn uid(family: usize, number: usize) -> String {
    format!("{:08x}-5b1c-4c6e-9f3a-{family:04x}{number:08x}", number.wrapping_mul(0x9e37_79b9) & 0xffff_ffff)
}

#[expect(clippy::too_many_arguments, reason = "one text with its gaps")]
fn meta(
    name: &str,
    namespace: &str,
    family: usize,
    number: usize,
    labels: &str,
    annotations: &str,
    owners: &str,
    managed_fields: &str,
) -> String {
    let uid = uid(family, number);
    let namespace = if namespace.is_empty() { String::new() } else { format!(r#","namespace":"{namespace}""#) };
    format!(
        r#"{{"annotations":{annotations},"creationTimestamp":"{CREATED}","generation":1,"labels":{labels},"managedFields":[{managed_fields}],"name":"{name}"{namespace},"ownerReferences":{owners},"uid":"{uid}"}}"#
    )
}
