//! Compiles the base: the table, its sets and maps, its chains and their hooks.

use ferry_api::object::{Family, Protocol};
use ferry_kernel::nft::{BaseHook, ChainKind, FibAddress, Hook};
use ferry_model::{Context, LocalDetector};
use ferry_ruleset::read::TableOwner;
use ferry_ruleset::rules::{Field, NODE_PORT, RuleWriter, VIP};
use ferry_ruleset::table::{ChainName, SetName, TableObject};
use ferry_ruleset::{Rules, TableRule};

use crate::element::{ElementKey, Value};
use crate::names::{FixedChain, FixedSet};
use crate::object::IpvsObject;

/// The service addresses that answer pings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pings {
    /// all that the device has
    #[default]
    Answered,
    /// those of Services with endpoints
    OnlyWithEndpoints,
}

impl FixedChain {
    /// Hook and priority of a base chain. All are nat chains, which see the first packet of a connection only. In prerouting and
    /// output they come before IPVS, which takes the node's own packets at −99. In input they come after IPVS, which takes
    /// received packets at 99: the rest arrives.
    pub const fn hook(self) -> Option<BaseHook> {
        let (hook, priority) = match self {
            Self::NatPrerouting => (Hook::Prerouting, -100),
            Self::NatInput => (Hook::Input, 100),
            Self::NatOutput => (Hook::Output, -100),
            Self::NatPostrouting => (Hook::Postrouting, 100),
            Self::Reject
            | Self::MasqueradeCluster
            | Self::MasqueradeExternal
            | Self::Bound
            | Self::Unserved
            | Self::Services => return None,
        };
        Some(BaseHook { kind: ChainKind::Nat, hook, priority })
    }
}

/// The objects of the base.
pub(crate) fn compile(family: Family, pings: Pings, context: &Context, out: &mut Vec<IpvsObject>) {
    let mut table = |object| out.push(IpvsObject::Table(object));
    table(TableObject::Table(TableOwner::Ours));
    FixedSet::ALL.iter().for_each(|set| table(TableObject::Set(SetName::Fixed(*set))));
    for chain in FixedChain::ALL.iter().copied() {
        let rules = rules(chain, family, pings, (context.local.as_ref(), context.masquerade_mark));
        table(TableObject::Chain(ChainName::Fixed(chain), Rules(rules.into())));
    }
    let mut element = |key| table(TableObject::Element(key, Value::None));
    (0..=u8::MAX).for_each(|octet| element(ElementKey::SameOctet(octet)));
    context.node_addresses.iter().for_each(|address| element(ElementKey::NodePortIp(*address)));
}

/// Chains that contain every kind of rule.
pub(crate) fn probes(family: Family) -> Vec<(FixedChain, Rules)> {
    let pods = LocalDetector::InterfacePrefix("veth".to_owned());
    let of = |(pings, pods): (Pings, Option<&LocalDetector>)| {
        let rules = |chain| Rules(rules(chain, family, pings, (pods, 1 << 14)).into());
        FixedChain::ALL.iter().map(|chain| (*chain, rules(*chain))).collect::<Vec<_>>()
    };
    [(Pings::Answered, Some(&pods)), (Pings::OnlyWithEndpoints, None)].into_iter().flat_map(of).collect()
}

/// The rules of a chain. `pods` detects pods of this node.
fn rules(
    chain: FixedChain,
    family: Family,
    pings: Pings,
    (pods, mark): (Option<&LocalDetector>, u32),
) -> Vec<TableRule> {
    let rule = || RuleWriter::new(family);
    // The reset that refuses the node's own connection goes from service address to service address, through output again, as a
    // packet of the same connection: it must not be refused, too.
    let to_bound = || rule().in_set(&[Field::Destination], FixedSet::BoundIps).original_direction();
    match chain {
        FixedChain::Reject => vec![rule().protocol(Protocol::Tcp).reset(), rule().reject()],
        FixedChain::MasqueradeCluster => {
            let sources = match pods {
                Some(pods) => rule().pods(pods, false),
                // The node's own connections have the service address as their source, which no endpoint could answer.
                None => Some(rule().address_is_local(FibAddress::Source, true)),
            };
            sources.map(|rule| rule.set_mark(mark).end()).into_iter().collect()
        }
        FixedChain::MasqueradeExternal => vec![rule().set_mark(mark).end()],
        FixedChain::Bound => vec![
            match pings {
                Pings::Answered => rule(),
                Pings::OnlyWithEndpoints => rule().in_set(&[Field::Destination], FixedSet::PingedIps),
            }
            .icmp_echo_request()
            .accept(),
            rule().tcp_port_in(FixedSet::HealthPorts).accept(),
            rule().goto(FixedChain::Reject),
        ],
        // Postrouting can't reject.
        FixedChain::Unserved => vec![
            rule().icmp_echo_request().accept(),
            rule().tcp_port_in(FixedSet::HealthPorts).accept(),
            // A connection whose endpoint was deleted ends by the stack's reset.
            rule().tcp_without_syn().accept(),
            rule().drop_it(),
        ],
        FixedChain::Services => vec![
            rule().verdict_map(VIP, FixedSet::ServiceIps),
            to_bound().goto(FixedChain::Bound),
            rule()
                .in_set(&[Field::Destination], FixedSet::NodePortIps)
                .verdict_map(NODE_PORT, FixedSet::ServiceNodePorts),
        ],
        FixedChain::NatPrerouting | FixedChain::NatOutput => vec![rule().jump(FixedChain::Services)],
        // The frontend has an element, but no virtual server (yet, or any more): no service of the host answers instead.
        FixedChain::NatInput => vec![to_bound().goto(FixedChain::Bound)],
        FixedChain::NatPostrouting => vec![
            // The same for the node's own connections, which the nat chain in input doesn't see: their packets have left before.
            // And for others while the address isn't local: no conntrack entry keeps them away from the virtual server.
            to_bound().goto(FixedChain::Unserved),
            // A connection of the node to itself stays on loopback and is no hairpin.
            rule().outgoing_not("lo").reaches_itself(FixedSet::SameOctet).masquerade(),
            rule().unmarked(mark).return_it(),
            rule().flip_mark(mark).end(),
            rule().masquerade(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use ferry_ruleset::table::Vocabulary as _;

    use super::*;
    use crate::element::IpvsTable;

    #[test]
    fn the_kernel_is_probed_with_what_each_configuration_writes() {
        let pods = LocalDetector::InterfacePrefix("veth".to_owned());
        for family in Family::ALL {
            let probed = IpvsTable::probes(family);
            for (pings, pods) in [(Pings::Answered, Some(&pods)), (Pings::OnlyWithEndpoints, None)] {
                for chain in FixedChain::ALL.iter().copied() {
                    let rules = Rules(rules(chain, family, pings, (pods, 0x4000)).into());
                    assert!(probed.contains(&(chain, rules)), "{family} {pings:?} {chain}: {probed:?}");
                }
            }
        }
    }
}
