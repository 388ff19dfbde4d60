//! The base: the table, the shapes of its sets and maps, the fixed chains and where they are hooked in.

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_kernel::nft::userdata::{self, PayloadField, SetNotes, TypeofExpr};
use ferry_kernel::nft::{self, BaseHook, ChainKind, FibOf, Hook, SetData, SetFlags, concat_type, data_type};
use ferry_model::{BaseState, Context, NodePortAddresses};

use crate::names::{ChainName, FixedChain, FixedSet, SLOTS, SetName};
use crate::object::{ElementKey, NftObject, Rule, Rules, Table, Value};
use crate::rules::{Field, NODE_PORT, RuleWriter, VIP};

/// The most clients that one memory holds.
const MEMORY_SIZE: u32 = 65_536;
/// The elements of `same-octet`: with their number the kernel chooses a table that never grows.
const OCTETS: u32 = 256;

impl FixedChain {
    /// Where a base chain is hooked in: nat chains see the first packet of a connection only, and none of them sees it
    /// once another has translated it, which is why the late ones get what nobody translated.
    pub const fn hook(self) -> Option<BaseHook> {
        let (hook, priority) = match self {
            Self::NatPrerouting => (Hook::Prerouting, -100),
            Self::NatOutput => (Hook::Output, -100),
            Self::NatPreroutingLate => (Hook::Prerouting, -90),
            Self::NatOutputLate => (Hook::Output, -90),
            Self::NatInput => (Hook::Input, 100),
            Self::NatPostrouting => (Hook::Postrouting, 100),
            Self::Reject | Self::Services | Self::ExternalLocal | Self::NodePortLocal | Self::Unknown | Self::Learn => {
                return None;
            }
        };
        Some(BaseHook { kind: ChainKind::Nat, hook, priority })
    }
}

impl ChainName {
    /// The chain without its rules, for the kernel.
    pub(crate) fn chain(self) -> nft::Chain {
        let hook = match self {
            Self::Fixed(fixed) => fixed.hook(),
            Self::Pick(..) | Self::Pool(..) | Self::Remember(..) | Self::Learn(_) | Self::Restricted(_) => None,
        };
        nft::Chain { name: self.to_string(), hook }
    }
}

/// The objects of the base.
pub(crate) fn compile(family: Family, context: &Context, base: &BaseState, out: &mut Vec<NftObject>) {
    out.push(NftObject::Table(Table::Ours));
    out.extend(FixedSet::ALL.iter().map(|set| NftObject::Set(SetName::Fixed(*set))));
    for chain in FixedChain::ALL {
        let learning = matches!(chain, FixedChain::Learn | FixedChain::NatInput);
        if base.affinity || !learning {
            let rules = Rules(rules(*chain, family, context, base).into());
            out.push(NftObject::Chain(ChainName::Fixed(*chain), rules));
        }
    }
    out.extend((0..=u8::MAX).map(|octet| NftObject::Element(ElementKey::SameOctet(octet), Value::None)));
    if let NodePortAddresses::Only(addresses) = &base.node_ports {
        out.extend(addresses.iter().map(|address| NftObject::Element(ElementKey::NodePortIp(*address), Value::None)));
    }
}

fn rules(chain: FixedChain, family: Family, context: &Context, base: &BaseState) -> Vec<Rule> {
    let rule = || RuleWriter::new(family);
    let fixed = ChainName::Fixed;
    let services = rule().jump(fixed(FixedChain::Services));
    match chain {
        FixedChain::Reject => vec![rule().protocol(Protocol::Tcp).reset(), rule().reject()],
        FixedChain::Services => {
            vec![rule().verdict_map(VIP, FixedSet::ServiceIps), node_port_rule(family, &base.node_ports)]
        }
        FixedChain::ExternalLocal => local_policy(family, context, VIP, FixedSet::ClusterPolicyIps, FixedSet::LocalIps),
        FixedChain::NodePortLocal => {
            local_policy(family, context, NODE_PORT, FixedSet::ClusterPolicyNodePorts, FixedSet::LocalNodePorts)
        }
        FixedChain::Unknown => {
            let known = rule().in_set(&[Field::Destination], FixedSet::ClusterIps).goto(fixed(FixedChain::Reject));
            // What goes to an address of this node is somebody's, be it only the reset that a connection of its own gets.
            let unallocated =
                |net: &IpNet| rule().destination_in(*net).address_is_local(FibOf::Destination, false).drop_it();
            let unallocated = base.service_cidrs.iter().map(unallocated);
            std::iter::once(known).chain(unallocated).collect()
        }
        FixedChain::Learn => Protocol::ALL.into_iter().flat_map(|protocol| learn(family, protocol)).collect(),
        FixedChain::NatPrerouting | FixedChain::NatOutput => vec![services],
        // The late chains look again: a transaction between two lookups of a packet leaves it with a verdict of the old
        // state that leads nowhere in the new one, or with one of the new state that leads to a chain which the packet,
        // whose rules are those of when it entered the hook, finds empty. It ends up here, where all is new.
        FixedChain::NatPreroutingLate => {
            // An address that is bound here, as a node-local DNS cache binds a cluster IP, stays reachable.
            vec![services, rule().address_is_local(FibOf::Destination, false).jump(fixed(FixedChain::Unknown))]
        }
        FixedChain::NatOutputLate => vec![services, rule().jump(fixed(FixedChain::Unknown))],
        FixedChain::NatInput => vec![rule().translated().jump(fixed(FixedChain::Learn))],
        FixedChain::NatPostrouting => postrouting(family, context, base),
    }
}

/// The rule that finds nodePorts, on the addresses that serve them.
fn node_port_rule(family: Family, addresses: &NodePortAddresses) -> Rule {
    let serves = match addresses {
        NodePortAddresses::All => {
            RuleWriter::new(family).address_is_local(FibOf::Destination, true).destination_not_loopback()
        }
        NodePortAddresses::Only(_) => RuleWriter::new(family).in_set(&[Field::Destination], FixedSet::NodePortIps),
    };
    serves.verdict_map(NODE_PORT, FixedSet::ServiceNodePorts)
}

/// True if these rules of the chain `services` match nodePorts on every local address.
pub(crate) fn finds_node_ports_everywhere(rules: &Rules) -> bool {
    Family::ALL.iter().any(|family| rules.0.contains(&node_port_rule(*family, &NodePortAddresses::All)))
}

/// Policy Local of an external frontend: pods and the node itself use all endpoints, others the Local ones.
fn local_policy(family: Family, context: &Context, key: &[Field], all: FixedSet, local: FixedSet) -> Vec<Rule> {
    let pods = context.local.of(family).as_ref().and_then(|pods| RuleWriter::new(family).pods(pods, true));
    let mut rules: Vec<Rule> = pods.map(|rule| rule.verdict_map(key, all)).into_iter().collect();
    let host = RuleWriter::new(family).address_is_local(FibOf::Source, true).set_mark(context.masquerade_mark);
    rules.push(host.verdict_map(key, all));
    rules.push(RuleWriter::new(family).verdict_map(key, local));
    rules
}

fn learn(family: Family, protocol: Protocol) -> [Rule; 2] {
    let rule = || RuleWriter::new(family).protocol(protocol);
    [
        rule().verdict_map(&[Field::OriginalDestination, Field::OriginalPort], FixedSet::learn(protocol)),
        rule().verdict_map(&[Field::OriginalPort], FixedSet::learn_node_ports(protocol)),
    ]
}

fn postrouting(family: Family, context: &Context, base: &BaseState) -> Vec<Rule> {
    let rule = || RuleWriter::new(family);
    let mark = context.masquerade_mark;
    let learn = base.affinity.then(|| rule().translated().jump(ChainName::Fixed(FixedChain::Learn)));
    let rest = [
        // Only what was translated: a plain connection of the node to itself is no hairpin. And not what others redirect on
        // loopback, which would get another source there.
        rule().translated().source_not_loopback().reaches_itself().masquerade(),
        rule().unmarked(mark).return_it(),
        rule().flip_mark(mark).end(),
        rule().masquerade(),
    ];
    learn.into_iter().chain(rest).collect()
}

/// The shape of a set or map.
pub(crate) fn shape(name: SetName, family: Family) -> nft::Set {
    let layout = Layout::of(name);
    let fields: Vec<u32> = layout.key.iter().map(|field| field.data_type(family)).collect();
    let lens: Vec<u32> = layout.key.iter().map(|field| field.len(family)).collect();
    let address = Part::Address;
    let endpoint_type = concat_type(&[address.data_type(family), data_type::INET_SERVICE]);
    nft::Set {
        name: name.to_string(),
        key_type: concat_type(&fields),
        key_len: match lens.as_slice() {
            [len] => *len,
            lens => lens.iter().map(|len| len.next_multiple_of(4)).sum(),
        },
        data: match layout.data {
            Data::None => None,
            Data::Verdict => Some(SetData::Verdict),
            Data::Endpoint => Some(SetData::Value { data_type: endpoint_type, len: address.len(family) + 4 }),
        },
        flags: SetFlags {
            interval: layout.interval,
            // A concatenation would have the kernel keep intervals in another way, which is slow beyond some thousand.
            concat: false,
            timeout: layout.memory,
            dynamic: layout.memory,
        },
        field_lens: Vec::new(),
        size: match name {
            SetName::Memory(..) => Some(MEMORY_SIZE),
            SetName::Fixed(FixedSet::SameOctet) => Some(OCTETS),
            SetName::Fixed(_) | SetName::Members(..) | SetName::Pool(_) | SetName::Sources(_) => None,
        },
        timeout: None,
        userdata: declared_types(name, family),
    }
}

/// One part of a key.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Address,
    Protocol,
    Port,
    Slot,
    Octet,
}

/// What a map's values are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    None,
    Verdict,
    Endpoint,
}

/// How a set or map is made up.
pub(crate) struct Layout {
    pub(crate) key: &'static [Part],
    pub(crate) data: Data,
    pub(crate) interval: bool,
    memory: bool,
}

impl Part {
    fn data_type(self, family: Family) -> u32 {
        match (self, family) {
            (Self::Address, Family::V4) => data_type::IPV4_ADDR,
            (Self::Address, Family::V6) => data_type::IPV6_ADDR,
            (Self::Protocol, _) => data_type::INET_PROTO,
            (Self::Port, _) => data_type::INET_SERVICE,
            (Self::Slot | Self::Octet, _) => data_type::INTEGER,
        }
    }

    /// Bytes without padding.
    fn len(self, family: Family) -> u32 {
        match (self, family) {
            (Self::Address, Family::V4) | (Self::Slot, _) => 4,
            (Self::Address, Family::V6) => 16,
            (Self::Protocol | Self::Octet, _) => 1,
            (Self::Port, _) => 2,
        }
    }
}

impl Layout {
    pub(crate) fn of(name: SetName) -> Self {
        use Part::{Address, Octet, Port, Protocol, Slot};
        let (key, data): (&'static [Part], Data) = match name {
            SetName::Memory(..) => (&[Address], Data::Endpoint),
            SetName::Members(..) => (&[Address, Port], Data::None),
            SetName::Pool(_) => (&[Slot], Data::Endpoint),
            SetName::Sources(_) => (&[Address], Data::None),
            SetName::Fixed(fixed) => match fixed {
                FixedSet::Endpoints => (&[Address, Protocol, Port, Slot], Data::Endpoint),
                FixedSet::NodePortEndpoints => (&[Protocol, Port, Slot], Data::Endpoint),
                FixedSet::ServiceIps
                | FixedSet::RestrictedIps
                | FixedSet::LocalIps
                | FixedSet::ClusterPolicyIps
                | FixedSet::AffinityPick
                | FixedSet::AffinityPickLocal => (&[Address, Protocol, Port], Data::Verdict),
                FixedSet::ServiceNodePorts
                | FixedSet::LocalNodePorts
                | FixedSet::ClusterPolicyNodePorts
                | FixedSet::AffinityPickNodePorts
                | FixedSet::AffinityPickLocalNodePorts => (&[Protocol, Port], Data::Verdict),
                FixedSet::LearnTcp | FixedSet::LearnUdp | FixedSet::LearnSctp => (&[Address, Port], Data::Verdict),
                FixedSet::LearnNodePortsTcp | FixedSet::LearnNodePortsUdp | FixedSet::LearnNodePortsSctp => {
                    (&[Port], Data::Verdict)
                }
                FixedSet::ClusterIps | FixedSet::NodePortIps => (&[Address], Data::None),
                FixedSet::SameOctet => (&[Octet, Octet], Data::None),
            },
        };
        Self { key, data, interval: matches!(name, SetName::Sources(_)), memory: matches!(name, SetName::Memory(..)) }
    }
}

/// Notes by which the `nft` tool prints numbers in keys and loads them again: these have no plain type there.
fn declared_types(name: SetName, family: Family) -> Vec<u8> {
    if name == SetName::Fixed(FixedSet::SameOctet) {
        // Any field of one octet without names for its values will do.
        let octet = || match family {
            Family::V4 => TypeofExpr::Payload(PayloadField::IpTtl),
            Family::V6 => TypeofExpr::Payload(PayloadField::Ip6Hoplimit),
        };
        let key = Some(TypeofExpr::Concat(vec![octet(), octet()]));
        return userdata::set(&SetNotes { key, ..SetNotes::default() });
    }
    let daddr = match family {
        Family::V4 => PayloadField::IpDaddr,
        Family::V6 => PayloadField::Ip6Daddr,
    };
    let port = || TypeofExpr::Payload(PayloadField::ThDport);
    let slot = TypeofExpr::Numgen { random: true, modulus: SLOTS, offset: 0 };
    let key = match name {
        SetName::Fixed(FixedSet::Endpoints) => {
            TypeofExpr::Concat(vec![TypeofExpr::Payload(daddr), TypeofExpr::L4Proto, port(), slot])
        }
        SetName::Fixed(FixedSet::NodePortEndpoints) => TypeofExpr::Concat(vec![TypeofExpr::L4Proto, port(), slot]),
        SetName::Pool(_) => slot,
        SetName::Fixed(_) | SetName::Memory(..) | SetName::Members(..) | SetName::Sources(_) => return Vec::new(),
    };
    userdata::set(&SetNotes {
        key: Some(key),
        data: Some(TypeofExpr::Concat(vec![TypeofExpr::Payload(daddr), port()])),
        comment: None,
    })
}

#[cfg(test)]
mod tests {
    use ferry_modekit::states;
    use ferry_model::{LocalDetector, PerFamily};

    use super::*;

    fn context(pods: Option<&str>) -> Context {
        let local = PerFamily::from_fn(|_| pods.map(|net| LocalDetector::Cidr(net.parse().unwrap())));
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
    fn memories_are_taught_only_where_some_service_has_affinity() {
        let (with, without) = (state(true, NodePortAddresses::All), state(false, NodePortAddresses::All));
        for chain in FixedChain::ALL {
            let learning = [FixedChain::Learn, FixedChain::NatInput].contains(chain);
            assert!(has(&objects(&with), *chain), "{chain:?}");
            assert_eq!(has(&objects(&without), *chain), !learning, "{chain:?}");
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
                assert_eq!(finds_node_ports_everywhere(&services), everywhere, "{family:?}");
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

    #[test]
    fn only_memories_expire_and_only_source_ranges_are_intervals() {
        use ferry_api::object::ObjectName;
        use ferry_model::Scope;

        use crate::names::{PortId, SourcesId};
        let id = PortId::new(&ObjectName::new("demo", "web"), Protocol::Tcp, "http");
        let sources = SetName::Sources(SourcesId::of_digest(&[7; 32]));
        let memory = SetName::Memory(id, Scope::Local);
        let more = [sources, memory, SetName::Members(id, Scope::Local), SetName::Pool(id)];
        for name in FixedSet::ALL.iter().map(|set| SetName::Fixed(*set)).chain(more) {
            for family in Family::ALL {
                let flags = shape(name, family).flags;
                assert_eq!((flags.timeout, flags.dynamic), (name == memory, name == memory), "{name}");
                assert_eq!((flags.interval, flags.concat), (name == sources, false), "{name}");
            }
        }
    }
}
