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
