//! The rules of the table's chains, and their hooks.

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_kernel::nft::{BaseHook, ChainKind, FibAddress, Hook};
use ferry_model::{BaseState, Context, LocalDetector, NodePortAddresses, Scope};
use ferry_ruleset::rules::{Field, NODE_PORT, RuleWriter, VIP};
use ferry_ruleset::serves::node_port_rule;
use ferry_ruleset::{Rules, TableRule};

use super::names::{FixedChain, FixedSet};

impl FixedChain {
    /// Hook and priority of a base chain. All are nat chains, which see the first packet of a connection only.
    pub const fn hook(self) -> Option<BaseHook> {
        let (hook, priority) = match self {
            Self::NatPrerouting => (Hook::Prerouting, -100),
            Self::NatInput => (Hook::Input, 100),
            Self::NatOutput => (Hook::Output, -100),
            Self::NatPreroutingLate => (Hook::Prerouting, -90),
            Self::NatOutputLate => (Hook::Output, -90),
            Self::Reject
            | Self::RelayCluster
            | Self::RelayLocal
            | Self::ByOrigin
            | Self::InsideOnly
            | Self::OutsideOnly
            | Self::Unknown
            | Self::Services => return None,
        };
        Some(BaseHook { kind: ChainKind::Nat, hook, priority })
    }
}

/// Chains that contain every kind of rule.
pub(crate) fn probes(family: Family) -> Vec<(FixedChain, Rules)> {
    let range = match family {
        Family::V4 => "192.0.2.0/24",
        Family::V6 => "2001:db8::/64",
    };
    let base = |node_ports, localhost| BaseState {
        node_ports,
        localhost,
        service_cidrs: range.parse().into_iter().collect(),
        affinity: false,
    };
    let everywhere = (base(NodePortAddresses::All, family == Family::V4), None);
    let pods = LocalDetector::InterfacePrefix("veth".to_owned());
    let listed = (base(NodePortAddresses::Only(Vec::new()), false), Some(pods));
    let of = |(base, pods): (BaseState, Option<LocalDetector>)| {
        let rules = move |chain: FixedChain| Rules(chain_rules(chain, family, (pods.as_ref(), 1 << 14), &base).into());
        FixedChain::ALL.iter().map(move |chain| (*chain, rules(*chain)))
    };
    [everywhere, listed].into_iter().flat_map(of).collect()
}

/// The rules of a chain.
pub(crate) fn rules(chain: FixedChain, family: Family, context: &Context, base: &BaseState) -> Vec<TableRule> {
    chain_rules(chain, family, (context.local.as_ref(), context.masquerade_mark), base)
}

/// `mark` is that of the relay's own packets.
fn chain_rules(
    chain: FixedChain,
    family: Family,
    (pods, mark): (Option<&LocalDetector>, u32),
    base: &BaseState,
) -> Vec<TableRule> {
    let rule = || RuleWriter::new(family);
    let inside = |of: fn(RuleWriter) -> TableRule| {
        let pods = pods.and_then(|pods| rule().pods(pods, true)).map(of);
        pods.into_iter().chain([of(rule().address_is_local(FibAddress::Source, true))])
    };
    let services = rule().jump(FixedChain::Services);
    match chain {
        FixedChain::Reject => vec![rule().protocol(Protocol::Tcp).reset(), rule().reject()],
        FixedChain::RelayCluster => relay(family, Scope::Cluster),
        FixedChain::RelayLocal => relay(family, Scope::Local),
        FixedChain::ByOrigin => {
            inside(|rule| rule.goto(FixedChain::RelayCluster)).chain([rule().goto(FixedChain::RelayLocal)]).collect()
        }
        FixedChain::InsideOnly => {
            inside(|rule| rule.goto(FixedChain::RelayCluster)).chain([rule().drop_it()]).collect()
        }
        FixedChain::OutsideOnly => inside(RuleWriter::drop_it).chain([rule().goto(FixedChain::RelayLocal)]).collect(),
        FixedChain::Unknown => {
            let known = rule().in_set(&[Field::Destination], FixedSet::ClusterIps).goto(FixedChain::Reject);
            // An address of this node is in use outside of Services: a connection to it gets at least the host's reset.
            let unallocated =
                |net: &IpNet| rule().destination_in(*net).address_is_local(FibAddress::Destination, false).drop_it();
            std::iter::once(known).chain(base.service_cidrs.iter().map(unallocated)).collect()
        }
        FixedChain::Services => {
            let addresses = &base.node_ports;
            let node_ports = node_port_rule(family, addresses, FixedSet::NodePortIps, FixedSet::ServiceNodePorts);
            vec![rule().verdict_map(VIP, FixedSet::ServiceIps), node_ports]
        }
        FixedChain::NatPrerouting | FixedChain::NatPreroutingLate => {
            // The first packet of a connection over loopback passes output: what comes to loopback here is from elsewhere.
            let to_loopback = rule().destination_in(loopback(family)).return_it();
            // A local address stays reachable: a node-local DNS cache binds a cluster IP.
            let unknown = rule().address_is_local(FibAddress::Destination, false).jump(FixedChain::Unknown);
            let unknown = (chain == FixedChain::NatPreroutingLate).then_some(unknown);
            [to_loopback, services].into_iter().chain(unknown).collect()
        }
        // The late chains repeat the lookup: a packet that met a change of the table between two lookups of the first time sees only
        // the new state here.
        FixedChain::NatOutput | FixedChain::NatOutputLate => {
            // An endpoint may have an address and a port that lead to the relay, such as a node port's.
            let rule = || rule().unmarked(mark);
            let services = rule().jump(FixedChain::Services);
            let everywhere = base.localhost && base.node_ports == NodePortAddresses::All;
            let to_loopback =
                rule().destination_in(loopback(family)).verdict_map(NODE_PORT, FixedSet::ServiceNodePorts);
            let unknown = (chain == FixedChain::NatOutputLate).then(|| rule().jump(FixedChain::Unknown));
            [services].into_iter().chain(everywhere.then_some(to_loopback)).chain(unknown).collect()
        }
        FixedChain::NatInput => {
            vec![rule().translated().accept(), rule().in_set(NODE_PORT, FixedSet::Listeners).goto(FixedChain::Reject)]
        }
    }
}

/// Leads to the listeners of a scope. There is one for a packet that comes here, so the last rule is for what a change of the
/// table lets slip.
fn relay(family: Family, scope: Scope) -> Vec<TableRule> {
    let rule = || RuleWriter::new(family);
    vec![
        rule().translate(&[Field::Protocol], FixedSet::gate(scope)),
        rule().translate(VIP, FixedSet::datagrams(scope, false)),
        rule().translate(NODE_PORT, FixedSet::datagrams(scope, true)),
        rule().goto(FixedChain::Reject),
    ]
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert([127, 0, 0, 0].into(), 8),
        Family::V6 => IpNet::new_assert(std::net::Ipv6Addr::LOCALHOST.into(), 128),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_probed_with_what_each_configuration_writes() {
        for family in Family::ALL {
            let probed = probes(family);
            let localhost = family == Family::V4;
            let service_cidrs = Vec::new();
            let base = BaseState { node_ports: NodePortAddresses::All, localhost, service_cidrs, affinity: false };
            // `Unknown` has a rule for each range of services.
            for chain in FixedChain::ALL.iter().copied().filter(|chain| *chain != FixedChain::Unknown) {
                let rules = Rules(chain_rules(chain, family, (None, 1 << 14), &base).into());
                assert!(probed.contains(&(chain, rules)), "{family} {chain}: {probed:?}");
            }
        }
    }
}
