//! core/v1 Service: its addresses and ports, and the fields that determine the treatment of traffic to them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Family, ObjectName, Parsed, Protocol, Timestamp, Uid};

/// The longest timeout of session affinity that an API server accepts, in seconds: one day.
pub const MAX_AFFINITY_SECONDS: u32 = 86_400;

/// The API server's default for the timeout of session affinity, in seconds: three hours.
pub const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// The annotation that names the scheduler of a Service's virtual servers in mode ipvs: `wlc`.
pub const SCHEDULER_ANNOTATION: &str = "ferry.io/ipvs-scheduler";

/// The annotation with the weights of endpoints by their zone, in mode ipvs: `a=3,b=1`.
pub const WEIGHT_ZONES_ANNOTATION: &str = "ferry.io/ipvs-weight-zones";

/// The annotation with the factor by which the weights of endpoints on this node are multiplied, in mode ipvs: `2`.
pub const WEIGHT_LOCAL_ANNOTATION: &str = "ferry.io/ipvs-weight-local";

/// A Service, reduced to the fields that determine the treatment of traffic. Defaults of the API server are already applied
/// (protocol TCP, affinity timeout 10,800 s, policies Cluster).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// metadata.namespace and metadata.name
    pub name: ObjectName,
    /// metadata.uid, which Events about the Service refer to; `None` if it is no UUID
    pub uid: Option<Uid>,
    /// metadata.creationTimestamp; the older service wins a contested frontend
    pub created: Option<Timestamp>,
    /// the label `service.kubernetes.io/service-proxy-name` is present: another proxy's service
    pub foreign_proxy: bool,
    /// spec.type
    pub kind: ServiceType,
    /// spec.clusterIP; `None` for absent, empty or the literal "None"
    pub cluster_ip: Option<Parsed<IpAddr>>,
    /// spec.clusterIPs, in order; those that are empty or "None" are left out
    pub cluster_ips: Box<[Parsed<IpAddr>]>,
    /// spec.ipFamilies, in order
    pub families: Box<[Family]>,
    /// spec.ports
    pub ports: Box<[ServicePort]>,
    /// spec.externalIPs
    pub external_ips: Box<[Parsed<IpAddr>]>,
    /// status.loadBalancer.ingress, those with an address
    pub ingress: Box<[LoadBalancerIngress]>,
    /// spec.loadBalancerSourceRanges, blanks trimmed; a bare address is a range of its own, host bits are kept as written
    pub source_ranges: Box<[Parsed<IpNet>]>,
    /// spec.sessionAffinity ClientIP: its timeout in seconds, at most [`MAX_AFFINITY_SECONDS`]
    pub affinity_seconds: Option<u32>,
    /// spec.internalTrafficPolicy
    pub internal_policy: TrafficPolicy,
    /// spec.externalTrafficPolicy
    pub external_policy: TrafficPolicy,
    /// spec.healthCheckNodePort; 0 for none
    pub health_check_node_port: u16,
    /// values that an API server would reject, and that are replaced by others here; empty for almost all Services
    pub odd: Box<[OddValue]>,
    /// how its connections are balanced in mode ipvs; `None` for almost all Services
    pub balancing: Option<Box<BalancingAnnotations>>,
}

/// Annotations of a Service that only mode ipvs reads, as they are written; a value that is no string, which an API server
/// would reject, is empty. They are the model's to parse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalancingAnnotations {
    /// [`SCHEDULER_ANNOTATION`]
    pub scheduler: Option<Box<str>>,
    /// [`WEIGHT_ZONES_ANNOTATION`]
    pub weight_zones: Option<Box<str>>,
    /// [`WEIGHT_LOCAL_ANNOTATION`]
    pub weight_local: Option<Box<str>>,
}

/// A value that an API server would reject, with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OddValue {
    /// its field
    pub field: OddField,
    /// its text
    pub text: Box<str>,
}

/// The fields whose invalid values are recorded; each with the value that replaces them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OddField {
    /// spec.type; ClusterIP
    Type,
    /// spec.sessionAffinity; None
    SessionAffinity,
    /// spec.sessionAffinityConfig.clientIP.timeoutSeconds that is negative; 10,800
    NegativeTimeout,
    /// the same, over [`MAX_AFFINITY_SECONDS`]; replaced by that
    LongTimeout,
    /// spec.internalTrafficPolicy; Cluster
    InternalTrafficPolicy,
    /// spec.externalTrafficPolicy; Cluster
    ExternalTrafficPolicy,
    /// spec.healthCheckNodePort; none
    HealthCheckNodePort,
}

/// spec.type of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ServiceType {
    /// ClusterIP
    #[default]
    ClusterIp,
    /// NodePort
    NodePort,
    /// LoadBalancer
    LoadBalancer,
    /// ExternalName: never proxied
    ExternalName,
}

/// spec.internalTrafficPolicy and spec.externalTrafficPolicy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TrafficPolicy {
    /// all endpoints
    #[default]
    Cluster,
    /// endpoints on this node only
    Local,
}

/// One entry of spec.ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// name; empty when unnamed
    pub name: Box<str>,
    /// protocol
    pub protocol: Parsed<Protocol>,
    /// port; 0 and values out of range are kept as text
    pub port: Parsed<u16>,
    /// nodePort; 0 for none
    pub node_port: Parsed<u16>,
}

/// One entry of status.loadBalancer.ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBalancerIngress {
    /// ip
    pub ip: Parsed<IpAddr>,
    /// ipMode is Proxy, or anything else but VIP: no rules for this address
    pub proxy_mode: bool,
}

// === impl Service ===

impl Service {
    /// Approximate size in bytes, strings included.
    pub fn weight_bytes(&self) -> usize {
        let lists = size_of_val(&*self.cluster_ips)
            + size_of_val(&*self.families)
            + size_of_val(&*self.ports)
            + size_of_val(&*self.external_ips)
            + size_of_val(&*self.ingress)
            + size_of_val(&*self.source_ranges)
            + size_of_val(&*self.odd);
        let odd_addresses = self.cluster_ips.iter().chain(&self.external_ips).filter_map(|ip| ip.as_ref().err());
        let odd_ranges = self.source_ranges.iter().filter_map(|range| range.as_ref().err());
        let odd_ingress = self.ingress.iter().filter_map(|entry| entry.ip.as_ref().err());
        let odd_values = self.odd.iter().map(|value| &value.text);
        let names = self.ports.iter().map(|port| &port.name);
        let texts = odd_addresses.chain(odd_ranges).chain(odd_ingress).chain(odd_values).chain(names);
        let balancing = self.balancing.as_deref().map_or(0, BalancingAnnotations::weight_bytes);
        size_of_val(self) + lists + texts.map(|text| text.len()).sum::<usize>() + balancing
    }
}

// === impl BalancingAnnotations ===

impl BalancingAnnotations {
    /// Size in bytes, strings included.
    fn weight_bytes(&self) -> usize {
        let texts = [&self.scheduler, &self.weight_zones, &self.weight_local];
        size_of_val(self) + texts.into_iter().flatten().map(|text| text.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_weighs_as_much_as_its_lists_and_texts() {
        let port =
            |name: &str| ServicePort { name: name.into(), protocol: Ok(Protocol::Tcp), port: Ok(80), node_port: Ok(0) };
        let scheduler = BalancingAnnotations { scheduler: Some("wlc".into()), ..BalancingAnnotations::default() };
        let service = Service {
            name: ObjectName::new("shop", "web"),
            uid: None,
            created: None,
            foreign_proxy: false,
            kind: ServiceType::ClusterIp,
            cluster_ip: None,
            cluster_ips: [Ok("10.0.0.1".parse().unwrap()), Err("first".into())].into(),
            families: [Family::V4, Family::V6].into(),
            ports: [port("http"), port(""), port("dns")].into(),
            external_ips: [Err("second".into())].into(),
            ingress: [LoadBalancerIngress { ip: Err("third".into()), proxy_mode: false }].into(),
            source_ranges: [Err("fourth".into()), Ok("10.0.0.0/8".parse().unwrap())].into(),
            affinity_seconds: None,
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            health_check_node_port: 0,
            odd: [OddValue { field: OddField::Type, text: "fifth".into() }].into(),
            balancing: Some(scheduler.into()),
        };
        let lists = [
            3 * size_of::<Parsed<IpAddr>>(),
            2 * size_of::<Family>(),
            3 * size_of::<ServicePort>(),
            size_of::<LoadBalancerIngress>(),
            2 * size_of::<Parsed<IpNet>>(),
            size_of::<OddValue>(),
        ];
        let texts = "first second third fourth fifth http dns".replace(' ', "").len();
        let balancing = size_of::<BalancingAnnotations>() + "wlc".len();
        let wanted = size_of::<Service>() + lists.iter().sum::<usize>() + texts + balancing;
        assert_eq!(service.weight_bytes(), wanted);
    }
}
