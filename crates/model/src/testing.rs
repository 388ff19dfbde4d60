//! Objects for unit tests: each as plain as it can be; tests change the fields they are about.

use std::net::IpAddr;

use ferry_api::object::{
    AddressType, Conditions, EndpointSlice, EndpointSliceBuilder, Family, Hints, LoadBalancerIngress, ObjectName,
    Protocol, Service, ServicePort, ServiceType, SlicePort, Timestamp, TrafficPolicy,
};

use crate::context::{Context, LocalDetector};
use crate::scheduler::{MissingSchedulers, Scheduler};
use crate::state::{Endpoint, Pool};

pub(crate) const READY: Conditions = Conditions { ready: true, serving: true, terminating: false };
pub(crate) const UNREADY: Conditions = Conditions { ready: false, serving: false, terminating: false };
pub(crate) const DRAINING: Conditions = Conditions { ready: false, serving: true, terminating: true };
pub(crate) const ENDED: Conditions = Conditions { ready: false, serving: false, terminating: true };

pub(crate) fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name)
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A ClusterIP Service of one family with the unnamed port 80/TCP.
pub(crate) fn service(service: &str, cluster_ip: &str) -> Service {
    Service {
        name: name(service),
        uid: None,
        created: Some(Timestamp { seconds: 1_700_000_000, nanoseconds: 0 }),
        foreign_proxy: false,
        kind: ServiceType::ClusterIp,
        cluster_ip: Some(Ok(ip(cluster_ip))),
        cluster_ips: [Ok(ip(cluster_ip))].into(),
        families: [Family::of(ip(cluster_ip))].into(),
        ports: [port("", 80)].into(),
        external_ips: [].into(),
        ingress: [].into(),
        source_ranges: [].into(),
        affinity_seconds: None,
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        health_check_node_port: 0,
        odd: [].into(),
        balancing: None,
    }
}

pub(crate) fn port(name: &str, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol: Ok(Protocol::Tcp), port: Ok(port), node_port: Ok(0) }
}

pub(crate) fn ingress(address: &str) -> LoadBalancerIngress {
    LoadBalancerIngress { ip: Ok(ip(address)), proxy_mode: false }
}

pub(crate) fn slice_port(name: &str, port: u16) -> SlicePort {
    SlicePort { name: Some(name.into()), protocol: Ok(Protocol::Tcp), port: Some(Ok(port)) }
}

/// An IPv4 slice with the unnamed port 8080/TCP; endpoints as address, node and conditions.
pub(crate) fn slice(slice: &str, service: &str, endpoints: &[(&str, &str, Conditions)]) -> EndpointSlice {
    hinted_slice(
        slice,
        service,
        endpoints.iter().map(|(address, node, conditions)| (*address, *node, *conditions, &[][..], &[][..])),
    )
}

/// The same with hints for nodes and for zones.
pub(crate) fn hinted_slice<'a>(
    slice: &str,
    service: &str,
    endpoints: impl IntoIterator<Item = (&'a str, &'a str, Conditions, &'a [&'a str], &'a [&'a str])>,
) -> EndpointSlice {
    let mut builder = EndpointSliceBuilder::default();
    let boxed = |names: &[&str]| names.iter().map(|name| Box::from(*name)).collect();
    for (address, node, conditions, nodes, zones) in endpoints {
        let hints = Hints { nodes: boxed(nodes), zones: boxed(zones) };
        let address = address.parse().map_err(|_| Box::from(address));
        builder.push(address, conditions, Some(node), None, hints);
    }
    builder.build(name(slice), Some(name(service)), AddressType::Ipv4, vec![slice_port("", 8080)])
}

/// Node `here` in zone `z1`, which detects its pods by their range, in IPv4.
pub(crate) fn context() -> Context {
    context_of(Family::V4)
}

/// The same in any family.
pub(crate) fn context_of(family: Family) -> Context {
    let (address, pods) = match family {
        Family::V4 => ("192.0.2.10", "10.244.0.0/16"),
        Family::V6 => ("2001:db8::10", "fd00:10:244::/56"),
    };
    Context {
        node_name: "here".to_owned(),
        zone: Some("z1".to_owned()),
        node_ip: Some(ip(address)),
        node_addresses: [].into(),
        local_addresses: [].into(),
        relay_address: None,
        local: Some(LocalDetector::Cidr(pods.parse().unwrap())),
        masquerade_all: false,
        masquerade_mark: 0x4000,
        scheduler: Scheduler::default(),
        missing_schedulers: MissingSchedulers::new(),
    }
}

/// Endpoints on port 8080.
pub(crate) fn pool(addresses: &[&str]) -> Pool {
    Pool::new(addresses.iter().map(|address| Endpoint { address: ip(address), port: 8080 }).collect::<Vec<_>>())
}
