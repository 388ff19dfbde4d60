//! Derives the context of all services and the base state from the configuration, the Node and the node's addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferry_api::config::{
    KubeProxyConfiguration, LOCAL_MODE_BRIDGE_INTERFACE, LOCAL_MODE_INTERFACE_NAME_PREFIX, LOCAL_MODE_NODE_CIDR,
    NODE_PORT_ADDRESSES_PRIMARY,
};
use ferry_api::object::{Family, IpNet, Kind, Node, ObjectName};
use ferry_api::wire::address::{parse_cidr, parse_ip};

use crate::context::{Context, LocalDetector, PerFamily};
use crate::diagnostic::{Cause, Diagnostic};
use crate::node::{pod_range, primary};
use crate::profile::Profile;
use crate::scheduler::{MissingSchedulers, Scheduler};
use crate::sources::disjoint;
use crate::special::special;
use crate::state::{BaseState, NodePortAddresses};
use crate::store::Store;

/// The feature gate that, switched off, leaves spec.externalIPs unserved.
const GATE_EXTERNAL_IPS: &str = "AllowServiceExternalIPs";

/// The settings of the configuration that affect traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// this node's name
    pub node_name: String,
    /// bindAddress, which replaces the node's address of its family; `None` when unspecified (0.0.0.0, ::)
    pub bind_address: Option<IpAddr>,
    /// the detector of connections from pods of this node
    pub detect_local: DetectLocal,
    /// every connection to a cluster IP is masqueraded
    pub masquerade_all: bool,
    /// the bit of the packet mark that requests masquerading, 0 to 31
    pub masquerade_bit: u8,
    /// the addresses that serve nodePorts
    pub node_port_addresses: NodePortSelection,
    /// 127.0.0.1 serves nodePorts where the mode can and the selection covers it (iptables.localhostNodePorts)
    pub localhost_node_ports: bool,
    /// spec.externalIPs are served (feature gate AllowServiceExternalIPs)
    pub external_ips: bool,
    /// the scheduler of Services that choose none (ipvs.scheduler); [`Scheduler::Rr`] if blank or unknown
    pub scheduler: Scheduler,
}

/// The configured detector of traffic from this node's pods (detectLocalMode).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// its source is in the family's first of these ranges; a family without one detects nothing
    ClusterCidr(Vec<IpNet>),
    /// its source is in the Node's pod range
    NodeCidr,
    /// it came in through this interface
    Bridge(String),
    /// it came in through an interface whose name begins with this
    InterfacePrefix(String),
}

/// The addresses that serve node ports, as configured (nodePortAddresses).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortSelection {
    /// the node's primary addresses
    Primary,
    /// local addresses within these ranges; a family without any, or with one of length zero, serves all
    Cidrs(Vec<IpNet>),
}

// === impl Settings ===

impl Settings {
    /// Extracts the settings from a valid configuration with platform defaults applied: malformed addresses and ranges are
    /// left out, and an unknown detectLocalMode counts as ClusterCIDR.
    pub fn from_config(config: &KubeProxyConfiguration, node_name: &str) -> Self {
        let effective = config.effective();
        let detect = &config.detect_local;
        let cluster_cidrs = || config.cluster_cidr.split(',').filter_map(|cidr| parse_cidr(cidr.trim())).collect();
        Self {
            node_name: node_name.to_owned(),
            bind_address: parse_ip(&config.bind_address).filter(|address| !address.is_unspecified()),
            detect_local: match config.detect_local_mode.as_str() {
                LOCAL_MODE_NODE_CIDR => DetectLocal::NodeCidr,
                LOCAL_MODE_BRIDGE_INTERFACE => DetectLocal::Bridge(detect.bridge_interface.clone()),
                LOCAL_MODE_INTERFACE_NAME_PREFIX => DetectLocal::InterfacePrefix(detect.interface_name_prefix.clone()),
                _ => DetectLocal::ClusterCidr(cluster_cidrs()),
            },
            masquerade_all: effective.masquerade_all,
            masquerade_bit: effective.masquerade_bit,
            node_port_addresses: NodePortSelection::from_texts(&config.node_port_addresses),
            localhost_node_ports: config.iptables.localhost_node_ports,
            external_ips: config.feature_gates.get(GATE_EXTERNAL_IPS).copied().unwrap_or(true),
            scheduler: config.ipvs.scheduler.parse().unwrap_or_default(),
        }
    }
}

// === impl NodePortSelection ===

impl NodePortSelection {
    fn from_texts(texts: &[String]) -> Self {
        if texts.iter().any(|text| text == NODE_PORT_ADDRESSES_PRIMARY) {
            Self::Primary
        } else {
            Self::Cidrs(texts.iter().filter_map(|text| parse_cidr(text)).collect())
        }
    }
}

/// The facts that services are resolved with in one family. `local_addresses` are those of the machine's interfaces, without the
/// proxy's own devices.
///
/// A node address is the bind address, else the first InternalIP of the family, else its first ExternalIP, else
/// loopback.
pub fn context(
    settings: &Settings,
    node: Option<&Node>,
    local_addresses: &[IpAddr],
    profile: &Profile,
    family: Family,
) -> Context {
    let serving = || {
        let all = node_port_addresses(settings, node, local_addresses);
        all.into_iter().filter(|address| Family::of(*address) == family).collect()
    };
    let other_interfaces = || {
        let servable = |address: &&IpAddr| Family::of(**address) == family && special(**address).is_none();
        let addresses: BTreeSet<IpAddr> = local_addresses.iter().filter(servable).copied().collect();
        addresses.into_iter().collect()
    };
    let relay_address = profile.relays().then(|| relay_address(node_ip(settings, node, family), local_addresses));
    Context {
        node_name: settings.node_name.clone(),
        zone: node.and_then(|node| node.zone.as_deref()).map(str::to_owned),
        node_ip: Some(node_ip(settings, node, family)),
        node_addresses: if profile.lists_node_addresses { serving() } else { [].into() },
        local_addresses: if profile.binds_addresses { other_interfaces() } else { [].into() },
        relay_address,
        // A listening socket reports no interface of its client.
        local: detector(settings, node, family)
            .filter(|detector| !profile.listens || matches!(detector, LocalDetector::Cidr(_))),
        masquerade_all: settings.masquerade_all,
        masquerade_mark: 1 << (settings.masquerade_bit % 32),
        scheduler: settings.scheduler,
        missing_schedulers: MissingSchedulers::new(),
    }
}

/// The addresses of this machine that serve node ports in any mode, as [`Store::serve_node_ports_at`] takes them: those that
/// the configuration selects, but none that no Service can have.
pub fn node_port_addresses(settings: &Settings, node: Option<&Node>, local_addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
    let selected = PerFamily::from_fn(|family| Selected::of(settings, Some(node_ip(settings, node, family)), family));
    let serves =
        |address: &&IpAddr| special(**address).is_none() && selected.of(Family::of(**address)).holds(**address);
    local_addresses.iter().filter(serves).copied().collect()
}

/// Resolves one family's state outside of services. `local_addresses` are those of the machine's interfaces.
pub fn base(
    settings: &Settings,
    context: &Context,
    local_addresses: &[IpAddr],
    store: &Store,
    profile: &Profile,
    family: Family,
) -> (BaseState, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    if let Some(node) = store.node() {
        check_node(node, &mut diagnostics);
        check_retained(node, settings, store, family, &mut diagnostics);
    }
    // Only IPv4 can route a connection from loopback elsewhere, and a relay does as the rules do. The selection `primary` doesn't
    // include loopback.
    let may_serve_localhost = profile.serves_localhost
        && settings.localhost_node_ports
        && settings.node_port_addresses != NodePortSelection::Primary
        && family == Family::V4;
    let (node_ports, localhost) =
        serving_addresses(settings, context, local_addresses, (family, may_serve_localhost), &mut diagnostics);
    let (node_ports, localhost) = if profile.lists_node_addresses {
        (NodePortAddresses::Only(context.node_addresses.to_vec()), false)
    } else {
        (node_ports, localhost)
    };
    let service_cidrs = service_cidrs(store, family, &mut diagnostics);
    (BaseState { node_ports, localhost, service_cidrs, affinity: store.uses_affinity(family) }, diagnostics)
}

pub(crate) fn node_ip(settings: &Settings, node: Option<&Node>, family: Family) -> IpAddr {
    let of_node = |node| primary(node, family)?.address.as_ref().ok().copied();
    let bound = settings.bind_address.filter(|address| Family::of(*address) == family);
    bound.or_else(|| node.and_then(of_node)).unwrap_or(loopback(family))
}

/// The node's primary address if the machine has it, else the machine's first one, else loopback.
fn relay_address(node_ip: IpAddr, local_addresses: &[IpAddr]) -> IpAddr {
    let family = Family::of(node_ip);
    if !node_ip.is_loopback() && local_addresses.contains(&node_ip) {
        return node_ip;
    }
    let usable = |address: &&IpAddr| Family::of(**address) == family && special(**address).is_none();
    local_addresses.iter().filter(usable).min().copied().unwrap_or(loopback(family))
}

fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([127, 0, 0, 1]),
        Family::V6 => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
    }
}

fn detector(settings: &Settings, node: Option<&Node>, family: Family) -> Option<LocalDetector> {
    let of_family = |net: &IpNet| Family::of_net(*net) == family;
    match &settings.detect_local {
        DetectLocal::ClusterCidr(cidrs) => cidrs.iter().copied().find(of_family).map(within),
        DetectLocal::NodeCidr => pod_range(node?, family).map(within),
        DetectLocal::Bridge(name) => Some(LocalDetector::Bridge(name.clone())),
        DetectLocal::InterfacePrefix(prefix) => Some(LocalDetector::InterfacePrefix(prefix.clone())),
    }
}

fn within(net: IpNet) -> LocalDetector {
    LocalDetector::Cidr(net.trunc())
}

fn check_node(node: &Node, diagnostics: &mut Vec<Diagnostic>) {
    let mut report = |field: String, message: String| {
        diagnostics.push(Diagnostic::new(Kind::Node, &node.name, field, Cause::Object, message));
    };
    for text in node.addresses.iter().filter_map(|address| address.address.as_ref().err()) {
        report("status.addresses".to_owned(), format!("{text:?} is no address: not an address of this node"));
    }
    for (index, cidr) in node.pod_cidrs.iter().enumerate() {
        if let Err(text) = cidr {
            report(format!("spec.podCIDRs[{index}]"), format!("{text:?} is no range: pods in it are not known"));
        }
    }
}

/// Reports facts that the Node has lost and that stay in force.
fn check_retained(node: &Node, settings: &Settings, store: &Store, family: Family, diagnostics: &mut Vec<Diagnostic>) {
    let retained = store.retained();
    let mut report = |field: &str, what: &str| {
        let message = format!("the Node has no {family} {what} any more: its last one stays in force");
        diagnostics.push(Diagnostic::new(Kind::Node, &node.name, field.to_owned(), Cause::Object, message));
    };
    if *retained.addresses.of(family) {
        report("status.addresses", "address");
    }
    if *retained.pod_ranges.of(family) && settings.detect_local == DetectLocal::NodeCidr {
        report("spec.podCIDRs", "pod range");
    }
}

/// One family's addresses that the configuration selects for node ports.
enum Selected {
    All,
    Within(Vec<IpNet>),
}

impl Selected {
    fn of(settings: &Settings, node_ip: Option<IpAddr>, family: Family) -> Self {
        match &settings.node_port_addresses {
            // An unknown node address is given as loopback: it selects no address, and not all.
            NodePortSelection::Primary => {
                let known = node_ip.filter(|address| !address.is_loopback());
                Self::Within(known.into_iter().map(IpNet::from).collect())
            }
            NodePortSelection::Cidrs(cidrs) => {
                let of_family = cidrs.iter().copied().filter(|cidr| Family::of_net(*cidr) == family);
                let cidrs: Vec<IpNet> = of_family.collect();
                let is_all = cidrs.is_empty() || cidrs.iter().any(|cidr| cidr.prefix_len() == 0);
                if is_all { Self::All } else { Self::Within(cidrs) }
            }
        }
    }

    fn holds(&self, address: IpAddr) -> bool {
        match self {
            Self::All => true,
            Self::Within(cidrs) => cidrs.iter().any(|cidr| cidr.contains(&address)),
        }
    }
}

/// The addresses that serve nodePorts: those of the machine that the configuration selects; and true if loopback does.
fn serving_addresses(
    settings: &Settings,
    context: &Context,
    local_addresses: &[IpAddr],
    (family, may_serve_localhost): (Family, bool),
    diagnostics: &mut Vec<Diagnostic>,
) -> (NodePortAddresses, bool) {
    let Selected::Within(cidrs) = Selected::of(settings, context.node_ip, family) else {
        return (NodePortAddresses::All, may_serve_localhost);
    };
    let mut report = |message: String| {
        let name = ObjectName::cluster_wide(&settings.node_name);
        let field = "nodePortAddresses".to_owned();
        diagnostics.push(Diagnostic::new(Kind::Node, &name, field, Cause::Object, message));
    };
    if cidrs.is_empty() {
        report(format!("no {family} address of the Node is known: nodePorts are not served in {family} until one is"));
        return (NodePortAddresses::Only(Vec::new()), false);
    }
    let of_loopback = |cidr: &&IpNet| cidr.addr().is_loopback();
    if !may_serve_localhost {
        for cidr in cidrs.iter().filter(of_loopback) {
            report(format!("{cidr} is loopback, which never serves nodePorts in this mode"));
        }
    }
    let selected = |address: &&IpAddr| {
        (may_serve_localhost || !address.is_loopback()) && cidrs.iter().any(|cidr| cidr.contains(*address))
    };
    let mut addresses: Vec<IpAddr> = local_addresses.iter().filter(selected).copied().collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        report(format!("no {family} address of this node is selected: its nodePorts are not served"));
    }
    let localhost = addresses.iter().any(IpAddr::is_loopback);
    (NodePortAddresses::Only(addresses), localhost)
}

fn service_cidrs(store: &Store, family: Family, diagnostics: &mut Vec<Diagnostic>) -> Vec<IpNet> {
    let mut all = Vec::new();
    for object in store.service_cidrs() {
        for (index, cidr) in object.cidrs.iter().enumerate() {
            match cidr {
                Ok(cidr) if Family::of_net(*cidr) == family => all.push(*cidr),
                Ok(_) => {}
                Err(text) => {
                    let message = format!("{text:?} is no range: connections into it are not dropped");
                    let field = format!("spec.cidrs[{index}]");
                    diagnostics.push(Diagnostic::new(Kind::ServiceCidr, &object.name, field, Cause::Object, message));
                }
            }
        }
    }
    disjoint(all)
}

#[cfg(test)]
mod tests;
