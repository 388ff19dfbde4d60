//! Node ports among the frontends that a table serves: the rule that looks them up, and the addresses that serve them.

use std::fmt::Display;

use ferry_api::object::Family;
use ferry_kernel::nft::FibAddress;
use ferry_model::{FrontendAddr, NodePortAddresses};
use ferry_plane::Served;

use crate::rules::{Field, NODE_PORT, RuleWriter};
use crate::{Rules, TableRule};

/// The rule that looks up node ports in the map `ports`, on the addresses that serve them: all local ones, or those of the set
/// `listed`.
pub fn node_port_rule(
    family: Family,
    addresses: &NodePortAddresses,
    listed: impl Display,
    ports: impl Display,
) -> TableRule {
    match addresses {
        NodePortAddresses::All => everywhere_rule(family, ports),
        NodePortAddresses::Only(_) => {
            RuleWriter::new(family).in_set(&[Field::Destination], listed).verdict_map(NODE_PORT, ports)
        }
    }
}

fn everywhere_rule(family: Family, ports: impl Display) -> TableRule {
    let local = RuleWriter::new(family).address_is_local(FibAddress::Destination, true);
    local.destination_not_loopback().verdict_map(NODE_PORT, ports)
}

/// True if a [`node_port_rule`] for every local address is among these rules.
pub fn finds_node_ports_everywhere(rules: &Rules, ports: impl Display + Copy) -> bool {
    Family::ALL.iter().any(|family| rules.0.contains(&everywhere_rule(*family, ports)))
}

/// Completes the frontends and addresses that were found in the sets of a table: one without listed addresses serves its node
/// ports on every local address.
pub fn complete(served: &mut Vec<Served>) {
    let listed = served.iter().any(|served| matches!(served, Served::NodePorts(_)));
    let node_ports = |served: &Served| matches!(served, Served::Frontend(_, FrontendAddr::NodePort(_)));
    if !listed && served.iter().any(node_ports) {
        served.push(Served::NodePortsEverywhere);
    }
}
