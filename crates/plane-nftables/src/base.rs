//! Compiles the base: the table, its fixed sets and maps, the fixed chains and their hooks.

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_kernel::nft::{self, BaseHook, ChainKind, FibAddress, Hook};
use ferry_model::{BaseState, Context, NodePortAddresses};
use ferry_ruleset::read::TableOwner;
use ferry_ruleset::rules::{Field, NODE_PORT, RuleWriter, VIP};
use ferry_ruleset::serves::node_port_rule;
use ferry_ruleset::{Rules, TableRule};

use crate::names::{ChainName, FixedChain, FixedSet, SetName};
use crate::object::{ElementKey, NftObject, Value};

impl FixedChain {
    /// Hook and priority of a base chain. A nat chain sees only the first packet of a connection, and not if an earlier chain
    /// has translated it: the late chains get the untranslated packets.
    pub const fn hook(self) -> Option<BaseHook> {
        let (hook, priority) = match self {
            Self::NatPrerouting => (Hook::Prerouting, -100),
            Self::NatOutput => (Hook::Output, -100),
            Self::NatPreroutingLate => (Hook::Prerouting, -90),
            Self::NatOutputLate => (Hook::Output, -90),
            Self::NatInput => (Hook::Input, 100),
            Self::NatPostrouting => (Hook::Postrouting, 100),
            Self::Reject
            | Self::Services
            | Self::ExternalLocal
            | Self::NodePortLocal
            | Self::Unknown
            | Self::Record => {
                return None;
            }
        };
        Some(BaseHook { kind: ChainKind::Nat, hook, priority })
    }
}

impl ChainName {
    /// The chain without its rules, as sent to the kernel.
    pub(crate) fn chain(self) -> nft::Chain {
        let hook = match self {
            Self::Fixed(fixed) => fixed.hook(),
            Self::Pick(..) | Self::Pool(..) | Self::Affinity(..) | Self::Record(_) | Self::Restricted(_) => None,
        };
        nft::Chain { name: self.to_string(), hook }
    }
}

/// The objects of the base.
pub(crate) fn compile(family: Family, context: &Context, base: &BaseState, out: &mut Vec<NftObject>) {
    out.push(NftObject::Table(TableOwner::Ours));
    out.extend(FixedSet::ALL.iter().map(|set| NftObject::Set(SetName::Fixed(*set))));
    for chain in FixedChain::ALL {
        let recording = matches!(chain, FixedChain::Record | FixedChain::NatInput);
        if base.affinity || !recording {
            let rules = Rules(rules(*chain, family, context, base).into());
            out.push(NftObject::Chain(ChainName::Fixed(*chain), rules));
        }
    }
    out.extend((0..=u8::MAX).map(|octet| NftObject::Element(ElementKey::SameOctet(octet), Value::None)));
    if let NodePortAddresses::Only(addresses) = &base.node_ports {
        out.extend(addresses.iter().map(|address| NftObject::Element(ElementKey::NodePortIp(*address), Value::None)));
    }
}

fn rules(chain: FixedChain, family: Family, context: &Context, base: &BaseState) -> Vec<TableRule> {
    let rule = || RuleWriter::new(family);
    let fixed = ChainName::Fixed;
    let services = rule().jump(fixed(FixedChain::Services));
    match chain {
        FixedChain::Reject => vec![rule().protocol(Protocol::Tcp).reset(), rule().reject()],
        FixedChain::Services => {
            let addresses = &base.node_ports;
            let node_ports = node_port_rule(family, addresses, FixedSet::NodePortIps, FixedSet::ServiceNodePorts);
            vec![rule().verdict_map(VIP, FixedSet::ServiceIps), node_ports]
        }
        FixedChain::ExternalLocal => local_policy(family, context, VIP, FixedSet::ClusterPolicyIps, FixedSet::LocalIps),
        FixedChain::NodePortLocal => {
            local_policy(family, context, NODE_PORT, FixedSet::ClusterPolicyNodePorts, FixedSet::LocalNodePorts)
        }
        FixedChain::Unknown => {
            let known = rule().in_set(&[Field::Destination], FixedSet::ClusterIps).goto(fixed(FixedChain::Reject));
            // An address of this node is in use outside of Services: a connection to it gets at least the host's reset.
            let unallocated =
                |net: &IpNet| rule().destination_in(*net).address_is_local(FibAddress::Destination, false).drop_it();
            let unallocated = base.service_cidrs.iter().map(unallocated);
            std::iter::once(known).chain(unallocated).collect()
        }
        FixedChain::Record => Protocol::ALL.into_iter().flat_map(|protocol| record(family, protocol)).collect(),
        FixedChain::NatPrerouting | FixedChain::NatOutput => vec![services],
        // The late chains repeat the lookup. If a transaction takes effect between two lookups of a packet, it may get a verdict
        // of the old state that leads nowhere in the new one, or one of the new state to a chain that is still empty for it: a
        // packet sees the rules of the moment in which it entered the hook. Here, in a later hook, it sees only the new state.
        FixedChain::NatPreroutingLate => {
            // A local address stays reachable: a node-local DNS cache binds a cluster IP.
            vec![services, rule().address_is_local(FibAddress::Destination, false).jump(fixed(FixedChain::Unknown))]
        }
        FixedChain::NatOutputLate => vec![services, rule().jump(fixed(FixedChain::Unknown))],
        FixedChain::NatInput => vec![rule().translated().jump(fixed(FixedChain::Record))],
        FixedChain::NatPostrouting => postrouting(family, context, base),
    }
}

/// Rules for an external frontend with policy Local: pods of this node and the node itself use all endpoints, others the Local
/// ones.
fn local_policy(family: Family, context: &Context, key: &[Field], all: FixedSet, local: FixedSet) -> Vec<TableRule> {
    let pods = context.local.as_ref().and_then(|pods| RuleWriter::new(family).pods(pods, true));
    let mut rules: Vec<TableRule> = pods.map(|rule| rule.verdict_map(key, all)).into_iter().collect();
    let host = RuleWriter::new(family).address_is_local(FibAddress::Source, true).set_mark(context.masquerade_mark);
    rules.push(host.verdict_map(key, all));
    rules.push(RuleWriter::new(family).verdict_map(key, local));
    rules
}

fn record(family: Family, protocol: Protocol) -> [TableRule; 2] {
    let rule = || RuleWriter::new(family).protocol(protocol);
    [
        rule().verdict_map(&[Field::OriginalDestination, Field::OriginalPort], FixedSet::record(protocol)),
        rule().verdict_map(&[Field::OriginalPort], FixedSet::record_node_ports(protocol)),
    ]
}

fn postrouting(family: Family, context: &Context, base: &BaseState) -> Vec<TableRule> {
    let rule = || RuleWriter::new(family);
    let mark = context.masquerade_mark;
    let record = base.affinity.then(|| rule().translated().jump(ChainName::Fixed(FixedChain::Record)));
    let rest = [
        // Only translated connections: a plain connection of the node to itself is no hairpin. Connections that other programs
        // redirect on loopback are excluded, since masquerading would change their source.
        rule().translated().source_not_loopback().reaches_itself(FixedSet::SameOctet).masquerade(),
        rule().unmarked(mark).return_it(),
        rule().flip_mark(mark).end(),
        rule().masquerade(),
    ];
    record.into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use ferry_conformance::states;
    use ferry_model::LocalDetector;
    use ferry_ruleset::serves::finds_node_ports_everywhere;

    use super::*;

    fn context(pods: Option<&str>) -> Context {
        let local = pods.map(|net| LocalDetector::Cidr(net.parse().unwrap()));
        Context { local, ..states::context(Family::V4) }
    }

    fn state(affinity: bool, node_ports: NodePortAddresses) -> BaseState {
        BaseState { node_ports, ..states::base(Family::V4, affinity) }
    }

    fn objects(base: &BaseState) -> Vec<NftObject> {
        let mut objects = Vec::new();
        compile(Family::V4, &context(Some("10.244.0.0/16")), base, &mut objects);
        objects
    }

    fn text(chain: FixedChain, context: &Context, base: &BaseState) -> Vec<String> {
        rules(chain, Family::V4, context, base).into_iter().map(|rule| rule.text).collect()
    }

    fn has(objects: &[NftObject], chain: FixedChain) -> bool {
        objects.iter().any(|object| matches!(object, NftObject::Chain(name, _) if *name == ChainName::Fixed(chain)))
    }

    #[test]
    fn translation_comes_before_the_second_look_and_masquerading_after() {
        let at = |chain: FixedChain| chain.hook().map(|hook| (hook.hook, hook.priority));
        assert_eq!(at(FixedChain::NatPrerouting), Some((Hook::Prerouting, -100)));
        assert_eq!(at(FixedChain::NatPreroutingLate), Some((Hook::Prerouting, -90)));
        assert_eq!(at(FixedChain::NatOutput), Some((Hook::Output, -100)));
        assert_eq!(at(FixedChain::NatOutputLate), Some((Hook::Output, -90)));
        assert_eq!(at(FixedChain::NatInput), Some((Hook::Input, 100)));
        assert_eq!(at(FixedChain::NatPostrouting), Some((Hook::Postrouting, 100)));
        let hooked = FixedChain::ALL.iter().filter_map(|chain| chain.hook()).collect::<Vec<_>>();
        assert_eq!(hooked.len(), 6);
        assert!(hooked.iter().all(|hook| hook.kind == ChainKind::Nat));
    }

    #[test]
    fn affinity_is_recorded_only_where_some_service_has_affinity() {
        let (with, without) = (state(true, NodePortAddresses::All), state(false, NodePortAddresses::All));
        for chain in FixedChain::ALL {
            let recording = [FixedChain::Record, FixedChain::NatInput].contains(chain);
            assert!(has(&objects(&with), *chain), "{chain:?}");
            assert_eq!(has(&objects(&without), *chain), !recording, "{chain:?}");
        }
        let postrouting = |base| text(FixedChain::NatPostrouting, &context(None), base);
        assert_eq!(postrouting(&with)[1..], postrouting(&without)[..]);
        assert_eq!(postrouting(&with)[0], "ct status dnat jump learn");
    }

    #[test]
    fn node_ports_are_served_on_listed_addresses_or_on_every_local_one() {
        let listed = vec!["192.0.2.7".parse().unwrap(), "192.0.2.8".parse().unwrap()];
        let (all, only) = (state(false, NodePortAddresses::All), state(false, NodePortAddresses::Only(listed.clone())));
        let addresses = |base| -> Vec<_> {
            let address = |object| match object {
                NftObject::Element(ElementKey::NodePortIp(address), Value::None) => Some(address),
                _ => None,
            };
            objects(base).into_iter().filter_map(address).collect()
        };
        assert_eq!((addresses(&all), addresses(&only)), (Vec::new(), listed));
        for (base, everywhere) in [(&all, true), (&only, false)] {
            for family in Family::ALL {
                let services = Rules(rules(FixedChain::Services, family, &context(None), base).into());
                assert_eq!(
                    finds_node_ports_everywhere(&services, FixedSet::ServiceNodePorts),
                    everywhere,
                    "{family:?}"
                );
            }
        }
    }

    #[test]
    fn without_pod_ranges_only_the_node_itself_uses_all_endpoints_of_policy_local() {
        let base = state(false, NodePortAddresses::All);
        let with = text(FixedChain::ExternalLocal, &context(Some("10.244.0.0/16")), &base);
        let pods = "ip saddr 10.244.0.0/16 ip daddr . meta l4proto . th dport vmap @cluster-policy-ips";
        let host = "fib saddr type local meta mark set meta mark | 0x00004000 \
                    ip daddr . meta l4proto . th dport vmap @cluster-policy-ips";
        let others = "ip daddr . meta l4proto . th dport vmap @local-ips";
        assert_eq!(with, [pods, host, others]);
        assert_eq!(text(FixedChain::ExternalLocal, &context(None), &base), [host, others]);
    }

    #[test]
    fn an_address_of_a_service_range_without_a_service_is_dropped_unless_it_is_local() {
        let base = state(false, NodePortAddresses::All);
        let dropped = |net: &str| format!("ip daddr {net} fib daddr type != local drop");
        let known = "ip daddr @cluster-ips goto reject-chain".to_owned();
        assert_eq!(
            text(FixedChain::Unknown, &context(None), &base),
            [known, dropped("10.96.0.0/16"), dropped("10.112.0.0/13")]
        );
    }
}
