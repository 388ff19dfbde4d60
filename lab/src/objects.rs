//! Builders of manifests, designed for short test cases.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};

use ferry_api::object::{Family, Protocol};

use crate::lab::{self, FAR_NAME, LabMachine, NODE_NAME, SERVICE_RANGES};

/// The namespace of every object of this module.
pub const NAMESPACE: &str = "demo";

/// The content of a manifest directory.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    /// the Services
    pub services: Vec<TestService>,
    /// their EndpointSlices
    pub endpoints: Vec<Endpoints>,
    /// includes a ServiceCIDR with the ranges of cluster IPs
    pub service_cidrs: bool,
}

/// A Service of both families, or of those of its cluster IPs.
#[derive(Clone, Debug)]
pub struct TestService {
    /// its name in [`NAMESPACE`]
    pub name: String,
    cluster_ips: Vec<IpAddr>,
    external_ips: Vec<IpAddr>,
    load_balancer_ips: Vec<IpAddr>,
    source_ranges: Vec<String>,
    ports: Vec<TestPort>,
    internal_local: bool,
    external_local: bool,
    health_check: Option<u16>,
    affinity_seconds: Option<u32>,
    annotations: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug)]
struct TestPort {
    protocol: Protocol,
    port: u16,
    node_port: Option<u16>,
}

/// The EndpointSlices of a Service: one per family with addresses.
#[derive(Clone, Debug)]
pub struct Endpoints {
    service: String,
    protocols: Vec<(Protocol, u16)>,
    port: u16,
    addresses: Vec<(IpAddr, &'static str, EndpointCondition)>,
    zones: bool,
}

/// The condition of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointCondition {
    /// ready and serving
    Ready,
    /// neither ready nor serving
    Unready,
    /// terminating, still serving
    Terminating,
}

// === impl Manifests ===

impl Manifests {
    /// Only the Node, and the ServiceCIDR.
    pub fn new() -> Self {
        Self { service_cidrs: true, ..Self::default() }
    }

    /// Adds a service, with ready endpoints of both families at these places, at the first port of each.
    pub fn with(self, service: TestService, at: &[LabMachine]) -> Self {
        let endpoints = service.endpoints(8080, at);
        self.with_endpoints(service, endpoints)
    }

    /// Adds a service and its endpoints.
    pub fn with_endpoints(mut self, service: TestService, endpoints: Endpoints) -> Self {
        self.services.push(service);
        self.endpoints.push(endpoints);
        self
    }

    /// Adds a service without an EndpointSlice.
    pub fn without_endpoints(mut self, service: TestService) -> Self {
        self.services.push(service);
        self
    }
}

impl fmt::Display for Manifests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&node_yaml())?;
        if self.service_cidrs {
            let [v4, v6] = SERVICE_RANGES;
            f.write_str("---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n")?;
            writeln!(f, "spec: {{cidrs: [\"{v4}\", \"{v6}\"]}}")?;
        }
        self.services.iter().try_for_each(|service| write!(f, "---\n{service}"))?;
        self.endpoints.iter().try_for_each(|endpoints| write!(f, "{endpoints}"))
    }
}

/// The Node that the proxy runs on, with both primary addresses.
pub fn node_yaml() -> String {
    let [v4, v6] = Family::ALL.map(|family| LabMachine::Node.address(family));
    format!(
        "apiVersion: v1
kind: Node
metadata: {{name: {NODE_NAME}}}
spec: {{podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24, \"fd00:10:244::/80\"]}}
status:
  addresses:
  - {{type: InternalIP, address: {v4}}}
  - {{type: InternalIP, address: \"{v6}\"}}
"
    )
}

// === impl TestService ===

impl TestService {
    /// A service with the cluster IP of this number in each family, and one TCP port 80.
    pub fn new(name: &str, number: u16) -> Self {
        Self {
            name: name.to_owned(),
            cluster_ips: Family::ALL.map(|family| lab::cluster_ip(family, number)).to_vec(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            ports: vec![TestPort { protocol: Protocol::Tcp, port: 80, node_port: None }],
            internal_local: false,
            external_local: false,
            health_check: None,
            affinity_seconds: None,
            annotations: Vec::new(),
        }
    }

    /// Restricts it to one family.
    pub fn only(mut self, family: Family) -> Self {
        self.cluster_ips.retain(|address| Family::of(*address) == family);
        self
    }

    /// Serves these protocols at the same port instead of TCP alone.
    pub fn protocols(mut self, protocols: &[Protocol]) -> Self {
        let like = self.ports.first().map_or((80, None), |port| (port.port, port.node_port));
        self.ports = protocols.iter().map(|&protocol| TestPort { protocol, port: like.0, node_port: like.1 }).collect();
        self
    }

    /// Serves this port instead of 80.
    pub fn port(mut self, port: u16) -> Self {
        self.ports.iter_mut().for_each(|own| own.port = port);
        self
    }

    /// Adds a node port, the same for all its protocols.
    pub fn node_port(mut self, node_port: u16) -> Self {
        self.ports.iter_mut().for_each(|port| port.node_port = Some(node_port));
        self
    }

    /// Adds an external IP of each family.
    pub fn external_ip(mut self, number: u8) -> Self {
        self.external_ips.extend(Family::ALL.map(|family| lab::external_ip(family, number)));
        self
    }

    /// Adds an external IP that is any address.
    pub fn external_address(mut self, address: IpAddr) -> Self {
        self.external_ips.push(address);
        self
    }

    /// Adds a load balancer address of each family.
    pub fn load_balancer(mut self, number: u8) -> Self {
        self.load_balancer_ips.extend(Family::ALL.map(|family| lab::external_ip(family, number)));
        self
    }

    /// Sets loadBalancerSourceRanges.
    pub fn source_ranges(mut self, ranges: &[&str]) -> Self {
        self.source_ranges = ranges.iter().map(|&range| range.to_owned()).collect();
        self
    }

    /// Sets internalTrafficPolicy Local.
    pub fn internal_local(mut self) -> Self {
        self.internal_local = true;
        self
    }

    /// Sets externalTrafficPolicy Local.
    pub fn external_local(mut self) -> Self {
        self.external_local = true;
        self
    }

    /// Sets healthCheckNodePort, which only a load balancer with externalTrafficPolicy Local has.
    pub fn health_check(mut self, port: u16) -> Self {
        self.health_check = Some(port);
        self
    }

    /// Sets session affinity ClientIP with this timeout.
    pub fn affinity(mut self, seconds: u32) -> Self {
        self.affinity_seconds = Some(seconds);
        self
    }

    /// Adds an annotation, such as `ferry.io/ipvs-scheduler`.
    pub fn annotate(mut self, key: &'static str, value: &str) -> Self {
        self.annotations.push((key, value.to_owned()));
        self
    }

    /// Its ready endpoints at these places, at this port.
    pub fn endpoints(&self, port: u16, at: &[LabMachine]) -> Endpoints {
        let mut endpoints = Endpoints {
            service: self.name.clone(),
            protocols: self.ports.iter().map(|own| (own.protocol, own.port)).collect(),
            port,
            addresses: Vec::new(),
            zones: false,
        };
        for &place in at {
            endpoints = endpoints.and(place, EndpointCondition::Ready);
        }
        endpoints.addresses.retain(|(address, ..)| self.has(Family::of(*address)));
        endpoints
    }

    fn has(&self, family: Family) -> bool {
        self.cluster_ips.iter().any(|address| Family::of(*address) == family)
    }

    fn kind(&self) -> &'static str {
        if !self.load_balancer_ips.is_empty() {
            "LoadBalancer"
        } else if self.ports.iter().any(|port| port.node_port.is_some()) {
            "NodePort"
        } else {
            "ClusterIP"
        }
    }

    /// Its status, which an API server accepts only in a separate request; `None` if it has none.
    pub fn status_json(&self) -> Option<String> {
        let ingress: Vec<_> = self.load_balancer_ips.iter().map(|ip| format!("{{\"ip\":\"{ip}\"}}")).collect();
        (!ingress.is_empty())
            .then(|| format!("{{\"status\":{{\"loadBalancer\":{{\"ingress\":[{}]}}}}}}", ingress.join(",")))
    }
}

impl fmt::Display for TestService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let annotations: Vec<_> = self.annotations.iter().map(|(key, value)| format!("{key}: '{value}'")).collect();
        let annotations = match annotations[..] {
            [] => String::new(),
            _ => format!(", annotations: {{{}}}", annotations.join(", ")),
        };
        let name = &self.name;
        writeln!(f, "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {NAMESPACE}{annotations}}}")?;
        writeln!(
            f,
            "spec:\n  type: {}\n  clusterIP: \"{}\"",
            self.kind(),
            self.cluster_ips.first().ok_or(fmt::Error)?
        )?;
        writeln!(f, "  clusterIPs: {}", list(&self.cluster_ips))?;
        let families: Vec<_> = self.cluster_ips.iter().map(|address| Family::of(*address)).collect();
        writeln!(f, "  ipFamilies: {}", list(&families))?;
        let policy = if families.len() == 1 { "SingleStack" } else { "RequireDualStack" };
        writeln!(f, "  ipFamilyPolicy: {policy}")?;
        if !self.external_ips.is_empty() {
            writeln!(f, "  externalIPs: {}", list(&self.external_ips))?;
        }
        if !self.source_ranges.is_empty() {
            writeln!(f, "  loadBalancerSourceRanges: {}", list(&self.source_ranges))?;
        }
        if self.internal_local {
            writeln!(f, "  internalTrafficPolicy: Local")?;
        }
        if self.external_local {
            writeln!(f, "  externalTrafficPolicy: Local")?;
        }
        if let Some(port) = self.health_check {
            writeln!(f, "  healthCheckNodePort: {port}")?;
        }
        if let Some(seconds) = self.affinity_seconds {
            writeln!(f, "  sessionAffinity: ClientIP")?;
            writeln!(f, "  sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}")?;
        }
        writeln!(f, "  ports:")?;
        for TestPort { protocol, port, node_port } in &self.ports {
            let name = protocol.lower();
            write!(f, "  - {{name: {name}, protocol: {protocol}, port: {port}")?;
            if let Some(node_port) = node_port {
                write!(f, ", nodePort: {node_port}")?;
            }
            f.write_str("}\n")?;
        }
        if !self.load_balancer_ips.is_empty() {
            writeln!(f, "status:\n  loadBalancer:\n    ingress:")?;
            self.load_balancer_ips.iter().try_for_each(|ip| writeln!(f, "    - {{ip: \"{ip}\"}}"))?;
        }
        Ok(())
    }
}

// === impl Endpoints ===

impl Endpoints {
    /// Adds an endpoint of each family at a place. The node's are in its host network: at its primary addresses.
    pub fn and(self, place: LabMachine, condition: EndpointCondition) -> Self {
        Family::ALL
            .into_iter()
            .fold(self, |endpoints, family| endpoints.and_at(place.address(family), place.node_name(), condition))
    }

    /// Adds an endpoint at an address, on a node.
    pub fn and_at(mut self, address: IpAddr, node: &'static str, condition: EndpointCondition) -> Self {
        debug_assert!([NODE_NAME, FAR_NAME, ""].contains(&node), "no such node: {node}");
        self.addresses.push((address, node, condition));
        self
    }

    /// Puts each endpoint into the zone of its node: `zone-of-node-a`.
    pub fn in_zones(mut self) -> Self {
        self.zones = true;
        self
    }

    /// The EndpointSlice of one family; `None` without endpoints of it.
    pub fn slice(&self, family: Family) -> Option<String> {
        let mut addresses = self.addresses.iter().filter(|(address, ..)| Family::of(*address) == family).peekable();
        addresses.peek()?;
        let mut text = format!(
            "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {0}-{1}
  namespace: {NAMESPACE}
  labels: {{kubernetes.io/service-name: {0}}}
addressType: {family}
ports:
",
            self.service,
            family.to_string().to_lowercase(),
        );
        for (protocol, _) in &self.protocols {
            let name = protocol.lower();
            let _ = writeln!(text, "- {{name: {name}, protocol: {protocol}, port: {}}}", self.port);
        }
        text.push_str("endpoints:\n");
        for (address, node, condition) in addresses {
            let conditions = match condition {
                EndpointCondition::Ready => "ready: true, serving: true, terminating: false",
                EndpointCondition::Unready => "ready: false, serving: false, terminating: false",
                EndpointCondition::Terminating => "ready: false, serving: true, terminating: true",
            };
            let zone = if self.zones { format!(", zone: zone-of-{node}") } else { String::new() };
            let _ = writeln!(
                text,
                "- {{addresses: [\"{address}\"], nodeName: {node}{zone}, conditions: {{{conditions}}}}}"
            );
        }
        Some(text)
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Family::ALL.into_iter().filter_map(|family| self.slice(family)).try_for_each(|slice| write!(f, "---\n{slice}"))
    }
}

/// A service's cluster IP at port 80.
pub fn at_cluster_ip(family: Family, number: u16) -> SocketAddr {
    SocketAddr::new(lab::cluster_ip(family, number), 80)
}

/// An external IP or load balancer address at port 80.
pub fn at_external_ip(family: Family, number: u8) -> SocketAddr {
    SocketAddr::new(lab::external_ip(family, number), 80)
}

/// A node port at the node's primary address.
pub fn at_node_port(family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(LabMachine::Node.address(family), port)
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    let items: Vec<_> = items.iter().map(|item| format!("\"{item}\"")).collect();
    format!("[{}]", items.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_reads_like_one() {
        let service = TestService::new("web", 7).only(Family::V6).node_port(30080).external_local().affinity(3);
        let text =
            Manifests { service_cidrs: false, ..Manifests::new() }.with(service, &[LabMachine::PodA]).to_string();
        let expected = r#"---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: demo}
spec:
  type: NodePort
  clusterIP: "fd00:10:96::7"
  clusterIPs: ["fd00:10:96::7"]
  ipFamilies: ["IPv6"]
  ipFamilyPolicy: SingleStack
  externalTrafficPolicy: Local
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 3}}
  ports:
  - {name: tcp, protocol: TCP, port: 80, nodePort: 30080}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-ipv6
  namespace: demo
  labels: {kubernetes.io/service-name: web}
addressType: IPv6
ports:
- {name: tcp, protocol: TCP, port: 8080}
endpoints:
- {addresses: ["fd00:10:244::10"], nodeName: node-a, conditions: {ready: true, serving: true, terminating: false}}
"#;
        assert_eq!(text, node_yaml() + expected);
    }
}
