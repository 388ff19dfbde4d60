//! Renders resolved states as stable text, for people and for comparison.
//!
//! A frontend's line gives the treatment of new connections by their source: `pod=cluster` is forwarded to the Cluster pool
//! with its source kept, `host=cluster+masquerade` with its source replaced.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ferry_api::object::Family;

use crate::context::{Context, LocalDetector, PerFamily};
use crate::facts::{Settings, base, context, node_port_addresses};
use crate::packet::Verdict;
use crate::profile::Profile;
use crate::resolve::resolve;
use crate::state::{
    Action, BaseState, Endpoint, Frontend, FrontendAddr, FrontendKind, HealthCheck, NodePortAddresses, Pool, PortState,
    Scope, ServiceState, Snat, SourceRanges,
};
use crate::store::Store;

/// Decides about everything in the store and prints it: the context, then per family the base state and each service,
/// then what is not served as written.
pub fn explain(settings: &Settings, local_addresses: &[IpAddr], store: &Store, profile: &Profile) -> String {
    let contexts = PerFamily::from_fn(|family| context(settings, store.node(), local_addresses, profile, family));
    let mut store = store.clone();
    store.serve_node_ports_at(node_port_addresses(settings, store.node(), local_addresses));
    let mut text = node_text(&contexts, profile);
    // A diagnostic of both families is printed once.
    let mut diagnostics: BTreeSet<_> = store.orphans().collect();
    for family in Family::ALL {
        let context = contexts.of(family);
        let (base, found) = base(settings, context, local_addresses, &store, profile, family);
        diagnostics.extend(found);
        text += &format!("\n{family}\n{base}");
        for name in store.service_names() {
            let (state, found) = resolve(&store.objects(name), store.claims(), context, profile, family);
            diagnostics.extend(found);
            text += &state.to_string();
        }
    }
    if !diagnostics.is_empty() {
        text += "\ndiagnostics\n";
    }
    for diagnostic in diagnostics {
        text += &format!("  {diagnostic}\n");
    }
    text
}

/// Things in a row, or a dash for none.
struct ListOrDash<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for ListOrDash<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.0.split_first() else { return f.write_str("-") };
        write!(f, "{first}")?;
        rest.iter().try_for_each(|item| write!(f, " {item}"))
    }
}

/// The facts of both families.
fn node_text(contexts: &PerFamily<Context>, profile: &Profile) -> String {
    let any = &contexts.v4;
    let mut text = format!("node {} zone {}\n", any.node_name, any.zone.as_deref().unwrap_or("-"));
    for family in Family::ALL {
        let context = contexts.of(family);
        let address = context.node_ip.map_or_else(|| "-".to_owned(), |address| address.to_string());
        let pods = context.local.as_ref().map_or_else(|| "not known".to_owned(), ToString::to_string);
        text += &format!("  {family} address {address}, pods {pods}\n");
        if profile.binds_addresses {
            text += &format!("  {family} addresses of other interfaces {}\n", ListOrDash(&context.local_addresses));
        }
    }
    if profile.balances {
        text += &format!("  scheduler {}\n", any.scheduler);
    }
    let all = if any.masquerade_all { ", every connection to a cluster IP" } else { "" };
    text + &format!("  masquerade mark {:#x}{all}\n", any.masquerade_mark)
}

impl fmt::Display for LocalDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cidr(cidr) => write!(f, "from {cidr}"),
            Self::Bridge(name) => write!(f, "through {name}"),
            Self::InterfacePrefix(prefix) => write!(f, "through {prefix}*"),
        }
    }
}

impl fmt::Display for BaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let localhost = if self.localhost && self.node_ports == NodePortAddresses::All { ", loopback too" } else { "" };
        writeln!(f, "  nodePorts at {}{localhost}", self.node_ports)?;
        writeln!(f, "  service CIDRs {}", ListOrDash(&self.service_cidrs))?;
        writeln!(f, "  session affinity {}", if self.affinity { "used" } else { "-" })
    }
}

impl fmt::Display for NodePortAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("every local address"),
            Self::Only(addresses) => ListOrDash(addresses).fmt(f),
        }
    }
}

impl fmt::Display for ServiceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = if self.ports.is_empty() { ": nothing to serve" } else { "" };
        writeln!(f, "  service {}{none}", self.name)?;
        if let Some(HealthCheck { port, local_endpoints }) = self.health_check {
            writeln!(f, "    health check {port} local endpoints {local_endpoints}")?;
        }
        self.ports.iter().try_for_each(|port| port.fmt(f))
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "-" } else { &self.name };
        write!(f, "    port {name} {}", self.protocol)?;
        if let Some(affinity) = self.affinity {
            write!(f, " affinity {} s", affinity.timeout_seconds)?;
        }
        if let Some(scheduler) = self.balance.as_ref().and_then(|balance| balance.scheduler) {
            write!(f, " scheduler {scheduler}")?;
        }
        writeln!(f, "\n      cluster {}\n      local   {}", self.cluster, self.local)?;
        if !self.lingering.is_empty() {
            writeln!(f, "      lingering {}", self.lingering)?;
        }
        if let Some(balance) = self.balance.as_ref().filter(|balance| !balance.weights.is_empty()) {
            let weights = balance.weights.iter().map(|(endpoint, weight)| format!(" {endpoint}={weight}"));
            writeln!(f, "      weights{}", weights.collect::<String>())?;
        }
        if let Some(shadowed) = &self.shadowed {
            writeln!(f, "      nodePort not at {}", ListOrDash(&shadowed.addresses))?;
        }
        self.frontends.iter().try_for_each(|frontend| writeln!(f, "      {frontend}"))
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ListOrDash(&self.0).fmt(f)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.address, self.port).fmt(f)
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.at)?;
        if let SourceRanges::Only(ranges) = &self.sources {
            write!(f, " sources {}", ListOrDash(ranges))?;
        }
        let treatment = &self.treatment;
        write!(f, ": pod={} host={} other={}", treatment.pod, treatment.host, treatment.other)
    }
}

impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "clusterIP",
            Self::ExternalIp => "externalIP",
            Self::LoadBalancer => "loadBalancer",
            Self::NodePort => "nodePort",
        })
    }
}

impl fmt::Display for FrontendAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vip(address, port) => std::net::SocketAddr::new(*address, *port).fmt(f),
            Self::NodePort(port) => port.fmt(f),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward { to, snat: Snat::Keep } => to.fmt(f),
            Self::Forward { to, snat: Snat::Masquerade } => write!(f, "{to}+masquerade"),
            Self::Drop => f.write_str("drop"),
            Self::Reject => f.write_str("reject"),
            Self::Pass => f.write_str("pass"),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "cluster",
            Self::Local => "local",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward(endpoints) => {
                f.write_str("forward to")?;
                endpoints.iter().try_for_each(|(endpoint, snat)| match snat {
                    Snat::Keep => write!(f, " {endpoint}"),
                    Snat::Masquerade => write!(f, " {endpoint}+masquerade"),
                })
            }
            Self::Drop => f.write_str("drop"),
            Self::Reject => f.write_str("reject"),
            Self::Pass => f.write_str("pass"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ip;

    #[test]
    fn loopback_is_named_beside_every_local_address_and_not_beside_a_list() {
        let text = |node_ports, localhost| {
            let service_cidrs = vec!["10.96.0.0/16".parse().unwrap()];
            BaseState { node_ports, localhost, service_cidrs, affinity: true }.to_string()
        };
        let wanted = |node_ports| {
            format!("  nodePorts at {node_ports}\n  service CIDRs 10.96.0.0/16\n  session affinity used\n")
        };
        let listed = || NodePortAddresses::Only(["127.0.0.1", "192.0.2.10"].map(ip).into());
        assert_eq!(text(NodePortAddresses::All, true), wanted("every local address, loopback too"));
        assert_eq!(text(NodePortAddresses::All, false), wanted("every local address"));
        assert_eq!(text(listed(), true), wanted("127.0.0.1 192.0.2.10"));
        assert_eq!(text(listed(), false), wanted("127.0.0.1 192.0.2.10"));
    }
}
