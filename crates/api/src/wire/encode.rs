//! Encodes objects as Kubernetes JSON that decodes to equal objects ([`super::decode_object`]): the fields of [`crate::object`],
//! and none else, so no secret of another field or annotation can get into the text.

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::time::format_timestamp;
use crate::object::{
    AddressKind, AddressType, BalancingAnnotations, EndpointSlice, Hints, Kind, KubeObject, Node, ObjectName, OddField,
    Parsed, Protocol, SCHEDULER_ANNOTATION, Service, ServiceCidr, ServicePort, ServiceType, SliceEndpoint, SlicePort,
    Timestamp, TrafficPolicy, WEIGHT_LOCAL_ANNOTATION, WEIGHT_ZONES_ANNOTATION,
};

/// The fields of one JSON object; those that are absent are left out.
#[derive(Default)]
struct JsonFields(Map<String, Value>);

/// Encodes an object on one line.
///
/// A creation time outside the years 0 to 9999 has no text and is left out.
pub fn encode_object(object: &KubeObject) -> String {
    let fields = match object {
        KubeObject::Service(service) => encode_service(service),
        KubeObject::EndpointSlice(slice) => encode_slice(slice),
        KubeObject::Node(node) => encode_node(node),
        KubeObject::ServiceCidr(cidr) => encode_service_cidr(cidr),
    };
    Value::Object(fields.0).to_string()
}

// === impl JsonFields ===

impl JsonFields {
    /// The fields that every object has.
    fn of(kind: Kind, metadata: Self) -> Self {
        let version = match kind {
            Kind::Service | Kind::Node => "v1",
            Kind::EndpointSlice => "discovery.k8s.io/v1",
            Kind::ServiceCidr => "networking.k8s.io/v1",
        };
        Self::default().with("apiVersion", version).with("kind", kind.to_string()).with_object("metadata", metadata)
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    fn with_some(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds a list that isn't empty.
    fn with_list(self, name: &str, items: impl IntoIterator<Item = Value>) -> Self {
        let items: Vec<Value> = items.into_iter().collect();
        if items.is_empty() { self } else { self.with(name, items) }
    }

    /// Adds an object that isn't empty.
    fn with_object(self, name: &str, fields: Self) -> Self {
        if fields.0.is_empty() { self } else { self.with(name, fields.0) }
    }
}

impl From<JsonFields> for Value {
    fn from(fields: JsonFields) -> Self {
        Self::Object(fields.0)
    }
}

fn metadata(name: &ObjectName) -> JsonFields {
    let namespace = Some(name.namespace()).filter(|namespace| !namespace.is_empty());
    JsonFields::default().with("name", name.name()).with_some("namespace", namespace)
}

fn encode_service(service: &Service) -> JsonFields {
    let proxy = service.foreign_proxy.then_some("");
    let labels = JsonFields::default().with_some("service.kubernetes.io/service-proxy-name", proxy);
    let metadata = metadata(&service.name)
        .with_some("uid", service.uid.map(|uid| uid.to_string()))
        .with_some("creationTimestamp", service.created.and_then(format_timestamp))
        .with_object("labels", labels)
        .with_object("annotations", balancing(service.balancing.as_deref()));
    let ingress = service.ingress.iter().map(|entry| {
        let mode = entry.proxy_mode.then_some("Proxy");
        Value::from(JsonFields::default().with("ip", text_of(&entry.ip)).with_some("ipMode", mode))
    });
    let balancer = JsonFields::default().with_list("ingress", ingress);
    let status = JsonFields::default().with_object("loadBalancer", balancer);
    JsonFields::of(Kind::Service, metadata).with_object("spec", service_spec(service)).with_object("status", status)
}

fn service_spec(service: &Service) -> JsonFields {
    let kind = match service.kind {
        ServiceType::ClusterIp => None,
        ServiceType::NodePort => Some("NodePort"),
        ServiceType::LoadBalancer => Some("LoadBalancer"),
        ServiceType::ExternalName => Some("ExternalName"),
    };
    let timeout = odd_number(service, OddField::NegativeTimeout)
        .or_else(|| odd_number(service, OddField::LongTimeout))
        .or_else(|| service.affinity_seconds.map(Value::from));
    let affinity = timeout.as_ref().map(|_| "ClientIP").or_else(|| odd(service, OddField::SessionAffinity));
    let config = timeout.map(|seconds| json!({ "clientIP": { "timeoutSeconds": seconds } }));
    let health_check_node_port = odd_number(service, OddField::HealthCheckNodePort)
        .or_else(|| Some(service.health_check_node_port).filter(|port| *port != 0).map(Value::from));
    let internal = odd(service, OddField::InternalTrafficPolicy).or_else(|| policy(service.internal_policy));
    let external = odd(service, OddField::ExternalTrafficPolicy).or_else(|| policy(service.external_policy));
    with_cluster_ips(JsonFields::default(), service)
        .with_some("type", odd(service, OddField::Type).or(kind))
        .with_list("ports", service.ports.iter().map(service_port))
        .with_list("externalIPs", service.external_ips.iter().map(text_of))
        .with_list("loadBalancerSourceRanges", service.source_ranges.iter().map(text_of))
        .with_some("sessionAffinity", affinity)
        .with_some("sessionAffinityConfig", config)
        .with_some("internalTrafficPolicy", internal)
        .with_some("externalTrafficPolicy", external)
        .with_some("healthCheckNodePort", health_check_node_port)
}

/// Adds clusterIP, clusterIPs and ipFamilies.
fn with_cluster_ips(fields: JsonFields, service: &Service) -> JsonFields {
    let mut ips: Vec<Value> = service.cluster_ips.iter().map(text_of).collect();
    let mut families: Vec<Value> = service.families.iter().map(|family| family.to_string().into()).collect();
    if ips.is_empty() && service.cluster_ip.is_some() {
        // Absent clusterIPs would be decoded as clusterIP. `None` is left out with the family at its position.
        ips.push("None".into());
        if !families.is_empty() {
            families.insert(0, "".into());
        }
    }
    fields
        .with_some("clusterIP", service.cluster_ip.as_ref().map(text_of))
        .with_list("clusterIPs", ips)
        .with_list("ipFamilies", families)
}

fn service_port(port: &ServicePort) -> Value {
    let node_port = if port.node_port == Ok(0) { None } else { Some(number_of(&port.node_port)) };
    JsonFields::default()
        .with_some("name", Some(&*port.name).filter(|name| !name.is_empty()))
        .with_some("protocol", protocol(&port.protocol))
        .with("port", number_of(&port.port))
        .with_some("nodePort", node_port)
        .into()
}

fn balancing(annotations: Option<&BalancingAnnotations>) -> JsonFields {
    let Some(annotations) = annotations else { return JsonFields::default() };
    JsonFields::default()
        .with_some(SCHEDULER_ANNOTATION, annotations.scheduler.as_deref())
        .with_some(WEIGHT_ZONES_ANNOTATION, annotations.weight_zones.as_deref())
        .with_some(WEIGHT_LOCAL_ANNOTATION, annotations.weight_local.as_deref())
}

fn encode_slice(slice: &EndpointSlice) -> JsonFields {
    let labels = JsonFields::default()
        .with_some("kubernetes.io/service-name", slice.service.as_ref().map(ObjectName::name))
        .with_some("service.kubernetes.io/headless", slice.headless.then_some(""));
    let trigger: Option<String> = slice.trigger_time.and_then(|time: Timestamp| format_timestamp(time));
    let annotations = JsonFields::default().with_some("endpoints.kubernetes.io/last-change-trigger-time", trigger);
    let metadata = metadata(&slice.name).with_object("labels", labels).with_object("annotations", annotations);
    let address_type = match slice.address_type {
        AddressType::Ipv4 => "IPv4",
        AddressType::Ipv6 => "IPv6",
        AddressType::Other => "FQDN",
    };
    let bad = slice.bad_addresses.iter().map(|text| json!({ "addresses": [text] }));
    JsonFields::of(Kind::EndpointSlice, metadata)
        .with("addressType", address_type)
        .with_list("ports", slice.ports.iter().map(slice_port))
        .with_list("endpoints", slice.endpoints.iter().map(|one| endpoint(slice, one)).chain(bad))
}

fn slice_port(port: &SlicePort) -> Value {
    JsonFields::default()
        .with_some("name", port.name.as_deref().filter(|name| !name.is_empty()))
        .with_some("protocol", protocol(&port.protocol))
        .with_some("port", port.port.as_ref().map(number_of))
        .into()
}

fn endpoint(slice: &EndpointSlice, endpoint: &SliceEndpoint) -> Value {
    let conditions = endpoint.conditions;
    let conditions = JsonFields::default()
        .with_some("ready", (!conditions.ready).then_some(false))
        .with_some("serving", (!conditions.serving).then_some(false))
        .with_some("terminating", conditions.terminating.then_some(true));
    let names = |names: &[Box<str>]| names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
    let hints = slice.hints_of(endpoint).map_or_else(JsonFields::default, |Hints { zones, nodes }| {
        JsonFields::default().with_list("forZones", names(zones)).with_list("forNodes", names(nodes))
    });
    JsonFields::default()
        .with("addresses", vec![endpoint.address.to_string()])
        .with_object("conditions", conditions)
        .with_some("nodeName", slice.node_of(endpoint))
        .with_some("zone", slice.zone_of(endpoint))
        .with_object("hints", hints)
        .into()
}

fn encode_node(node: &Node) -> JsonFields {
    // Only its presence is read.
    let deletion = node.deleting.then_some("1970-01-01T00:00:00Z");
    let labels = JsonFields::default().with_some("topology.kubernetes.io/zone", node.zone.as_deref());
    let metadata = metadata(&node.name).with_some("deletionTimestamp", deletion).with_object("labels", labels);
    let taint = json!({ "key": super::convert::TO_BE_DELETED, "effect": "NoSchedule" });
    let spec = JsonFields::default()
        .with_list("podCIDRs", node.pod_cidrs.iter().map(text_of))
        .with_list("taints", node.to_be_deleted.then_some(taint));
    let addresses = node.addresses.iter().map(|entry| {
        let kind = match entry.kind {
            AddressKind::Internal => "InternalIP",
            AddressKind::External => "ExternalIP",
        };
        json!({ "type": kind, "address": text_of(&entry.address) })
    });
    let status = JsonFields::default().with_list("addresses", addresses);
    JsonFields::of(Kind::Node, metadata).with_object("spec", spec).with_object("status", status)
}

fn encode_service_cidr(cidr: &ServiceCidr) -> JsonFields {
    let spec = JsonFields::default().with_list("cidrs", cidr.cidrs.iter().map(text_of));
    JsonFields::of(Kind::ServiceCidr, metadata(&cidr.name)).with_object("spec", spec)
}

fn text_of<T: Display>(value: &Parsed<T>) -> Value {
    match value {
        Ok(value) => value.to_string().into(),
        Err(text) => (**text).into(),
    }
}

/// A port; one that isn't valid is kept as the text of an integer.
fn number_of(port: &Parsed<u16>) -> Value {
    match port {
        Ok(port) => (*port).into(),
        Err(text) => integer(text),
    }
}

/// The text of an integer as a number.
fn integer(text: &str) -> Value {
    text.parse::<i64>().map_or_else(|_| text.into(), Value::from)
}

/// `None` for the default, TCP.
fn protocol(protocol: &Parsed<Protocol>) -> Option<Value> {
    (*protocol != Ok(Protocol::Tcp)).then(|| text_of(protocol))
}

/// `None` for the default, Cluster.
fn policy(policy: TrafficPolicy) -> Option<&'static str> {
    (policy == TrafficPolicy::Local).then_some("Local")
}

/// The text of a value that an API server would reject.
fn odd(service: &Service, field: OddField) -> Option<&str> {
    service.odd.iter().find(|value| value.field == field).map(|value| &*value.text)
}

/// The same for a number.
fn odd_number(service: &Service, field: OddField) -> Option<Value> {
    odd(service, field).map(integer)
}

#[cfg(test)]
mod tests;
