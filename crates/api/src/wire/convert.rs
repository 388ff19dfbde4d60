//! Converts decoded fields (`raw`) to the types of [`crate::object`]: applies the API server's defaults, and parses addresses,
//! ports and names.

use std::net::IpAddr;

use super::address::{cidr, ip, source_range};
use super::raw::{
    RawAnnotations, RawEndpoint, RawEndpointSlice, RawHint, RawMeta, RawNode, RawNodeAddress, RawService,
    RawServiceCidr, RawServicePort, RawServiceSpec, RawSlicePort, RawTime,
};
use super::scalar::{Flag, Int, LooseText, Text};
use super::time::parse_timestamp;
use crate::object::{
    AddressKind, AddressType, BalancingAnnotations, Conditions, DEFAULT_AFFINITY_SECONDS, EndpointSlice,
    EndpointSliceBuilder, Family, Hints, Kind, LoadBalancerIngress, MAX_AFFINITY_SECONDS, Node, NodeAddress,
    ObjectName, OddField, OddValue, Parsed, Protocol, Service, ServiceCidr, ServicePort, ServiceType, SlicePort,
    TrafficPolicy, Uid, is_dns_label, is_dns_subdomain,
};

/// The taint of a node that is about to go.
pub(super) const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// The rule for names, in errors about malformed ones.
const LABEL: &str = "at most 63 lower-case letters, digits and '-', with a letter or digit at both ends";
const SUBDOMAIN: &str = "lower-case letters, digits, '-' and '.', with a letter or digit at the ends of all parts";

/// Makes a Service. Fails if it has no usable name.
pub(super) fn service(raw: RawService<'_>) -> Result<Service, String> {
    let meta = raw.metadata.unwrap_or_default();
    let spec = raw.spec.unwrap_or_default();
    let (families, cluster_ips) = families_and_ips(&spec);
    let mut odd = Vec::new();
    let ingress = raw.status.and_then(|status| status.load_balancer).and_then(|balancer| balancer.ingress);
    Ok(Service {
        name: namespaced(Kind::Service, &meta)?,
        uid: meta.uid.as_ref().and_then(|uid| Uid::parse(uid.0.as_deref()?)),
        created: meta.creation_timestamp.as_ref().and_then(RawTime::timestamp),
        foreign_proxy: meta.labels.is_some_and(|labels| labels.service_proxy_name),
        kind: service_type(&spec, &mut odd),
        cluster_ip: spec.cluster_ip.as_deref().filter(|text| is_address(text)).map(ip),
        cluster_ips: cluster_ips.into(),
        families: families.into(),
        external_ips: spec.external_ips.iter().flatten().map(|text| ip(text)).collect(),
        ingress: ingress
            .iter()
            .flatten()
            .filter(|entry| !text(&entry.ip).is_empty())
            .map(|entry| LoadBalancerIngress {
                ip: ip(text(&entry.ip)),
                proxy_mode: !matches!(text(&entry.ip_mode), "" | "VIP"),
            })
            .collect(),
        source_ranges: spec.load_balancer_source_ranges.iter().flatten().map(|text| source_range(text)).collect(),
        affinity_seconds: affinity(&spec, &mut odd),
        internal_policy: policy(OddField::InternalTrafficPolicy, &spec.internal_traffic_policy, &mut odd),
        external_policy: policy(OddField::ExternalTrafficPolicy, &spec.external_traffic_policy, &mut odd),
        health_check_node_port: health_check_node_port(&spec, &mut odd),
        odd: odd.into(),
        balancing: meta.annotations.and_then(balancing).map(Box::new),
        ports: spec.ports.into_iter().flatten().map(service_port).collect(),
    })
}

/// Makes an EndpointSlice. Fails if it has no usable name.
pub(super) fn endpoint_slice(raw: RawEndpointSlice<'_>) -> Result<EndpointSlice, String> {
    let meta = raw.metadata.unwrap_or_default();
    let name = namespaced(Kind::EndpointSlice, &meta)?;
    let trigger_time = meta.annotations.and_then(|annotations| annotations.trigger_time);
    let labels = meta.labels.unwrap_or_default();
    let service = labels
        .service_name
        .as_deref()
        .filter(|service| is_dns_label(service))
        .map(|service| ObjectName::new(name.namespace(), service));
    let mut builder = EndpointSliceBuilder::default();
    for endpoint in raw.endpoints.into_iter().flatten() {
        push_endpoint(&mut builder, endpoint);
    }
    let address_type = match text(&raw.address_type) {
        "IPv4" => AddressType::Ipv4,
        "IPv6" => AddressType::Ipv6,
        _ => AddressType::Other,
    };
    let ports = raw.ports.into_iter().flatten().map(slice_port).collect();
    let mut slice = builder.build(name, service, address_type, ports);
    slice.headless = labels.headless;
    slice.trigger_time = trigger_time.as_deref().and_then(parse_timestamp);
    Ok(slice)
}

/// Makes a Node. Fails if it has no usable name.
pub(super) fn node(raw: RawNode<'_>) -> Result<Node, String> {
    let meta = raw.metadata.unwrap_or_default();
    let spec = raw.spec.unwrap_or_default();
    let addresses = raw.status.and_then(|status| status.addresses);
    let pod_cidrs = spec.pod_cidrs.filter(|list| !list.is_empty());
    let pod_cidrs = pod_cidrs.or_else(|| spec.pod_cidr.filter(|range| !range.is_empty()).map(|range| vec![range]));
    Ok(Node {
        name: cluster_wide(Kind::Node, &meta)?,
        zone: meta.labels.and_then(|labels| labels.zone).filter(|zone| !zone.is_empty()).map(|zone| (*zone).into()),
        addresses: addresses.iter().flatten().filter_map(node_address).collect(),
        pod_cidrs: pod_cidrs.iter().flatten().map(|range| cidr(range)).collect(),
        deleting: meta.deletion_timestamp.is_some(),
        to_be_deleted: spec.taints.iter().flatten().any(|taint| text(&taint.key) == TO_BE_DELETED),
    })
}

/// Makes a ServiceCIDR. Fails if it has no usable name.
pub(super) fn service_cidr(raw: RawServiceCidr<'_>) -> Result<ServiceCidr, String> {
    let meta = raw.metadata.unwrap_or_default();
    let cidrs = raw.spec.and_then(|spec| spec.cidrs);
    Ok(ServiceCidr {
        name: cluster_wide(Kind::ServiceCidr, &meta)?,
        cidrs: cidrs.iter().flatten().map(|range| cidr(range)).collect(),
    })
}

fn namespaced(kind: Kind, meta: &RawMeta<'_>) -> Result<ObjectName, String> {
    object_name(kind, text(&meta.namespace), text(&meta.name))
}

fn cluster_wide(kind: Kind, meta: &RawMeta<'_>) -> Result<ObjectName, String> {
    object_name(kind, "", text(&meta.name))
}

/// Names are keys, and parts of what is written to the kernel and to logs, where two that differ must not look the same:
/// only what an API server accepts passes.
fn object_name(kind: Kind, namespace: &str, name: &str) -> Result<ObjectName, String> {
    let is_name = match kind {
        Kind::Service => is_dns_label(name),
        Kind::EndpointSlice | Kind::Node | Kind::ServiceCidr => is_dns_subdomain(name),
    };
    if name.is_empty() {
        return Err("metadata.name is missing".to_owned());
    }
    if !is_name {
        let form = if kind == Kind::Service { LABEL } else { SUBDOMAIN };
        return Err(format!("metadata.name: {name:?} can't be the name of a {kind}: {form}"));
    }
    if kind.is_cluster_wide() {
        return Ok(ObjectName::cluster_wide(name));
    }
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    if !is_dns_label(namespace) {
        return Err(format!("metadata.namespace: {namespace:?} can't be the name of a namespace: {LABEL}"));
    }
    Ok(ObjectName::new(namespace, name))
}

/// The name of an object that itself can't be read; `None` where that isn't usable either.
pub(super) fn name_of(kind: Kind, namespace: &str, name: &str) -> Option<ObjectName> {
    object_name(kind, namespace, name).ok()
}

/// ipFamilies and clusterIPs, which belong together by their positions: an entry that is no family or no address is left
/// out with its partner. Absent clusterIPs are clusterIP.
fn families_and_ips(spec: &RawServiceSpec<'_>) -> (Vec<Family>, Vec<Parsed<IpAddr>>) {
    let mut family_texts = spec.ip_families.iter().flatten();
    let listed = spec.cluster_ips.as_ref().filter(|list| !list.is_empty());
    let ip_texts: Vec<&str> = match listed {
        Some(list) => list.iter().map(|text| &**text).collect(),
        None => spec.cluster_ip.iter().map(|text| &**text).collect(),
    };
    let (mut families, mut ips) = (Vec::new(), Vec::new());
    for address in ip_texts {
        let family = family_texts.next().map(|text| family(text));
        match family {
            Some(None) => {}
            _ if !is_address(address) => {}
            Some(Some(family)) => {
                families.push(family);
                ips.push(ip(address));
            }
            None => ips.push(ip(address)),
        }
    }
    families.extend(family_texts.filter_map(|text| family(text)));
    (families, ips)
}

fn family(text: &str) -> Option<Family> {
    match text {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        _ => None,
    }
}

/// True if a clusterIP is an address, and neither empty nor `None`.
fn is_address(text: &str) -> bool {
    !text.is_empty() && text != "None"
}

fn service_type(spec: &RawServiceSpec<'_>, odd: &mut Vec<OddValue>) -> ServiceType {
    match text(&spec.kind) {
        "" | "ClusterIP" => ServiceType::ClusterIp,
        "NodePort" => ServiceType::NodePort,
        "LoadBalancer" => ServiceType::LoadBalancer,
        "ExternalName" => ServiceType::ExternalName,
        // As for upstream, an unknown type is one without the properties of the others.
        other => {
            odd.push(OddValue { field: OddField::Type, text: other.into() });
            ServiceType::ClusterIp
        }
    }
}

fn affinity(spec: &RawServiceSpec<'_>, odd: &mut Vec<OddValue>) -> Option<u32> {
    match text(&spec.session_affinity) {
        "" | "None" => return None,
        "ClientIP" => {}
        other => {
            odd.push(OddValue { field: OddField::SessionAffinity, text: other.into() });
            return None;
        }
    }
    let timeout = || spec.session_affinity_config.as_ref()?.client_ip.as_ref()?.timeout_seconds;
    let Some(Int(written)) = timeout() else { return Some(DEFAULT_AFFINITY_SECONDS) };
    let (field, seconds) = match u32::try_from(written) {
        Ok(seconds) if seconds <= MAX_AFFINITY_SECONDS => return Some(seconds),
        _ if written < 0 => (OddField::NegativeTimeout, DEFAULT_AFFINITY_SECONDS),
        _ => (OddField::LongTimeout, MAX_AFFINITY_SECONDS),
    };
    odd.push(OddValue { field, text: written.to_string().into() });
    Some(seconds)
}

fn policy(field: OddField, value: &Option<Text<'_>>, odd: &mut Vec<OddValue>) -> TrafficPolicy {
    match text(value) {
        "Local" => TrafficPolicy::Local,
        "" | "Cluster" => TrafficPolicy::Cluster,
        other => {
            odd.push(OddValue { field, text: other.into() });
            TrafficPolicy::Cluster
        }
    }
}

fn health_check_node_port(spec: &RawServiceSpec<'_>, odd: &mut Vec<OddValue>) -> u16 {
    let Some(Int(written)) = spec.health_check_node_port else { return 0 };
    u16::try_from(written).unwrap_or_else(|_| {
        odd.push(OddValue { field: OddField::HealthCheckNodePort, text: written.to_string().into() });
        0
    })
}

/// The annotations about balancing; `None` without any.
fn balancing(annotations: RawAnnotations<'_>) -> Option<BalancingAnnotations> {
    let text = |value: Option<LooseText<'_>>| value.map(|text| Box::from(text.0.as_deref().unwrap_or_default()));
    let found = BalancingAnnotations {
        scheduler: text(annotations.scheduler),
        weight_zones: text(annotations.weight_zones),
        weight_local: text(annotations.weight_local),
    };
    (found != BalancingAnnotations::default()).then_some(found)
}

fn service_port(raw: RawServicePort<'_>) -> ServicePort {
    ServicePort {
        name: text(&raw.name).into(),
        protocol: protocol(&raw.protocol),
        port: port(raw.port.unwrap_or(Int(0))),
        node_port: match raw.node_port {
            None | Some(Int(0)) => Ok(0),
            Some(number) => port(number),
        },
    }
}

fn slice_port(raw: RawSlicePort<'_>) -> SlicePort {
    SlicePort { name: Some(text(&raw.name).into()), protocol: protocol(&raw.protocol), port: raw.port.map(port) }
}

fn push_endpoint(builder: &mut EndpointSliceBuilder, raw: RawEndpoint<'_>) {
    let Some(address) = raw.addresses.iter().flatten().next() else { return };
    let conditions = raw.conditions.map_or_else(Conditions::default, |raw| Conditions {
        ready: flag(raw.ready, true),
        serving: flag(raw.serving, true),
        terminating: flag(raw.terminating, false),
    });
    let hints = raw.hints.map_or_else(Hints::default, |raw| Hints {
        zones: hint_names(&raw.for_zones),
        nodes: hint_names(&raw.for_nodes),
    });
    builder.push(ip(address), conditions, raw.node_name.as_deref(), raw.zone.as_deref(), hints);
}

fn hint_names(list: &Option<Vec<RawHint<'_>>>) -> Box<[Box<str>]> {
    list.iter().flatten().map(|hint| text(&hint.name).into()).collect()
}

fn flag(value: Option<Flag>, default: bool) -> bool {
    value.map_or(default, |flag| flag.0)
}

fn node_address(raw: &RawNodeAddress<'_>) -> Option<NodeAddress> {
    let kind = match text(&raw.kind) {
        "InternalIP" => AddressKind::Internal,
        "ExternalIP" => AddressKind::External,
        _ => return None,
    };
    Some(NodeAddress { kind, address: ip(text(&raw.address)) })
}

fn protocol(raw: &Option<Text<'_>>) -> Parsed<Protocol> {
    match text(raw) {
        "" | "TCP" => Ok(Protocol::Tcp),
        "UDP" => Ok(Protocol::Udp),
        "SCTP" => Ok(Protocol::Sctp),
        other => Err(other.into()),
    }
}

fn port(number: Int) -> Parsed<u16> {
    u16::try_from(number.0).ok().filter(|port| *port > 0).ok_or_else(|| number.0.to_string().into())
}

/// A text that may be absent, which is the same as empty.
fn text<'a>(value: &'a Option<Text<'_>>) -> &'a str {
    value.as_deref().unwrap_or("")
}
