//! Packets through chains of a filter and of NAT.

use std::net::Ipv4Addr;

use ferry_api::object::Protocol;

use super::*;
use crate::TableRule;
use crate::fields::{Bytes, address_bytes, endpoint_bytes};
use crate::rules::{Field, RuleWriter, VIP};

const FAMILY: Family = Family::V4;
const VIP_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const ENDPOINT: Endpoint = Endpoint { address: IpAddr::V4(Ipv4Addr::new(10, 244, 0, 3)), port: 8080 };

fn packet(protocol: Protocol) -> Packet {
    Packet {
        source: CLIENT.into(),
        source_local: false,
        interface: Some("eth0".to_owned()),
        destination: VIP_ADDRESS.into(),
        destination_local: false,
        protocol,
        port: 80,
    }
}

fn rule() -> RuleWriter {
    RuleWriter::new(FAMILY)
}

fn rules(rules: impl IntoIterator<Item = TableRule>) -> Rules {
    Rules(rules.into_iter().collect())
}

fn base(kind: ChainKind, hook: Hook, priority: i32) -> Option<BaseHook> {
    Some(BaseHook { kind, hook, priority })
}

/// How one rule in a filter chain ends for this packet.
fn end_in(world: &mut World<'_>, rule: TableRule, packet: &Packet) -> End {
    let rules = rules([rule]);
    let mut world = World {
        family: world.family,
        chains: HashMap::new(),
        hooks: Vec::new(),
        elements: world.elements.clone(),
        ranges: world.ranges.clone(),
    };
    world.chain("filter", base(ChainKind::Filter, Hook::Forward, 0), &rules);
    Walk::new(&world, packet, 0, PacketPath::default()).hook(Hook::Forward)
}

#[test]
fn first_packets_have_the_original_direction_and_no_icmp_and_leave_by_no_named_interface() {
    let mut world = World::new(FAMILY);
    world.element("ports", &[0, 80], Data::None, &"");
    let (tcp, udp) = (packet(Protocol::Tcp), packet(Protocol::Udp));
    let mut end = |rule, packet| end_in(&mut world, rule, packet);
    assert_eq!(end(rule().original_direction().drop_it(), &tcp), End::Drop);
    assert_eq!(end(rule().icmp_echo_request().drop_it(), &tcp), End::Accept);
    assert_eq!(end(rule().outgoing_not("lo").drop_it(), &tcp), End::Drop);
    assert_eq!(end(rule().tcp_port_in("ports").drop_it(), &tcp), End::Drop);
    assert_eq!(end(rule().tcp_port_in("ports").drop_it(), &udp), End::Accept);
    assert_eq!(end(rule().tcp_without_syn().drop_it(), &tcp), End::Accept);
    assert_eq!(end(rule().reject(), &udp), End::Reject);
}

#[test]
fn an_unknown_expression_of_another_program_is_passed_over_or_named() {
    let opaque = |name: &str| Expr::Opaque { name: name.to_owned(), data: Vec::new() };
    let foreign = |exprs| TableRule { exprs, text: String::new() };
    let mut world = World::new(FAMILY);
    let tcp = packet(Protocol::Tcp);
    let drop = |name| foreign(vec![opaque(name), Expr::Verdict(Go::Drop)]);
    assert_eq!(end_in(&mut world, drop("counter"), &tcp), End::Drop);
    assert_eq!(end_in(&mut world, drop("limit"), &tcp), End::Accept);
    let rules = rules([drop("limit")]);
    world.chain("filter", base(ChainKind::Filter, Hook::Forward, 0), &rules);
    let mut walk = Walk::new(&world, &tcp, 0, PacketPath::recorded());
    assert_eq!(walk.hook(Hook::Forward), End::Accept);
    let path = walk.into_path();
    assert!(path.steps().last().unwrap().text.starts_with("not evaluated, as if it didn't match: [limit "), "{path:?}");
}

#[test]
fn a_lookup_finds_the_whole_key_or_nothing() {
    let sources = Ranges::new(&["192.0.2.0/24".parse().unwrap()]);
    let key = [VIP, &[Field::Source]].concat();
    let of = |protocol| {
        let key = address_bytes(VIP_ADDRESS.into()).protocol(protocol).port(80).address(CLIENT.into());
        key.as_slice().to_vec()
    };
    let mut world = World::new(FAMILY);
    world.element("guarded", &of(Protocol::Tcp), Data::None, &"");
    world.ranges("sources", &sources);
    let (tcp, udp) = (packet(Protocol::Tcp), packet(Protocol::Udp));
    let mut end = |rule, packet| end_in(&mut world, rule, packet);
    for (packet, inside) in [(&tcp, true), (&udp, false)] {
        assert_eq!(end(rule().in_set(&key, "guarded").drop_it(), packet) == End::Drop, inside);
        assert_eq!(end(rule().outside_set(&key, "guarded").drop_it(), packet) == End::Drop, !inside);
    }
    assert_eq!(end(rule().source_in_set("sources").drop_it(), &tcp), End::Drop);
    assert_eq!(end(rule().source_outside("sources").drop_it(), &tcp), End::Accept);
    assert_eq!(end(rule().destination_in_set("sources").drop_it(), &tcp), End::Accept);
    assert_eq!(end(rule().source_outside("unknown").drop_it(), &tcp), End::Drop, "an empty set");
}

#[test]
fn once_a_chain_has_translated_the_packet_only_filters_follow() {
    let mark = |bits| rules([rule().set_mark(bits).end()]);
    let (late, translated, filter) =
        (mark(1), rules([rule().translate(VIP, "endpoints")]), rules([rule().translated().set_mark(2).end()]));
    let key = Bytes::new().address(VIP_ADDRESS.into()).protocol(Protocol::Tcp).port(80);
    let hook = Hook::Prerouting;
    let mut world = World::new(FAMILY);
    world.chain("late", base(ChainKind::Nat, hook, -90), &late);
    world.chain("filter", base(ChainKind::Filter, hook, -80), &filter);
    world.chain("first", base(ChainKind::Nat, hook, -100), &translated);
    world.element("endpoints", key.as_slice(), Data::Value(endpoint_bytes(ENDPOINT).as_slice().to_vec()), &"");
    for (protocol, wanted) in [(Protocol::Tcp, 2), (Protocol::Udp, 1)] {
        let packet = packet(protocol);
        let mut walk = Walk::new(&world, &packet, 0, PacketPath::default());
        assert_eq!(walk.hook(hook), End::Accept);
        assert_eq!((walk.mark(), walk.is_translated()), (wanted, protocol == Protocol::Tcp));
    }
}

#[test]
fn what_something_else_translates_is_no_nat_of_the_kernel() {
    let postrouting = rules([rule().translated().drop_it(), rule().masquerade()]);
    let mut world = World::new(FAMILY);
    world.chain("nat", base(ChainKind::Nat, Hook::Postrouting, 100), &postrouting);
    let packet = packet(Protocol::Tcp);
    let mut walk = Walk::new(&world, &packet, 0, PacketPath::default());
    walk.translate(ENDPOINT);
    assert_eq!(walk.hook(Hook::Postrouting), End::Accept);
    let to = Endpoint { address: walk.destination(), port: walk.port() };
    assert_eq!((to, walk.is_translated(), walk.is_masqueraded(), walk.drawn()), (ENDPOINT, true, true, None));
}

/// The steps of a packet's path, each with its depth.
fn steps(world: &World<'_>, hook: Hook) -> (End, Vec<(usize, String)>) {
    let packet = packet(Protocol::Tcp);
    let mut walk = Walk::new(world, &packet, 0, PacketPath::recorded());
    let end = walk.hook(hook);
    (end, walk.into_path().steps().iter().map(|step| (step.depth, step.text.clone())).collect())
}

#[test]
fn a_path_has_the_rules_that_match_below_their_chain_and_what_they_find_below_them() {
    let key = Bytes::new().address(VIP_ADDRESS.into()).protocol(Protocol::Tcp).port(80);
    let first = rules([rule().protocol(Protocol::Udp).drop_it(), rule().jump("inner"), rule().goto("nowhere")]);
    let inner = rules([rule().in_set(VIP, "served").jump("innermost"), rule().goto("last")]);
    let (innermost, last) = (rules([rule().set_mark(1).end()]), rules([rule().return_it()]));
    let mut world = World::new(FAMILY);
    world.chain("filter", base(ChainKind::Filter, Hook::Forward, 7), &first);
    world.chain("inner", None, &inner);
    world.chain("innermost", None, &innermost);
    world.chain("last", None, &last);
    world.element("served", key.as_slice(), Data::None, &"the element");
    let (end, steps) = steps(&world, Hook::Forward);
    let steps: Vec<(usize, &str)> = steps.iter().map(|(depth, text)| (*depth, text.as_str())).collect();
    let lookup = inner.0[0].text.as_str();
    assert_eq!(
        steps,
        [
            (0, "hook forward, chain filter (priority 7)"),
            (1, "jump inner"),
            (2, lookup),
            (3, "the element"),
            (3, innermost.0[0].text.as_str()),
            (2, "goto last"),
            (3, "return"),
            (1, "goto nowhere"),
            (2, "chain nowhere doesn't exist, or the jumps are nested too deep"),
        ]
    );
    assert_eq!(end, End::Drop);
}

#[test]
fn a_rule_that_is_not_evaluated_is_named_below_its_chain() {
    let skipped = TableRule {
        exprs: vec![Expr::Opaque { name: "limit".to_owned(), data: Vec::new() }, Expr::Verdict(Go::Drop)],
        text: "limit".to_owned(),
    };
    let (first, inner) = (rules([rule().jump("inner")]), rules([skipped]));
    let mut world = World::new(FAMILY);
    world.chain("filter", base(ChainKind::Filter, Hook::Forward, 0), &first);
    world.chain("inner", None, &inner);
    let (end, steps) = steps(&world, Hook::Forward);
    assert_eq!(end, End::Accept);
    assert_eq!(steps.last().unwrap(), &(2, "not evaluated, as if it didn't match: limit".to_owned()));
}

#[test]
fn sixteen_chains_nest_as_in_the_kernel() {
    for (chains, wanted) in [(16, End::Accept), (17, End::Drop)] {
        let all: Vec<Rules> = (1..chains).map(|next| rules([rule().jump(format!("chain-{next}"))])).collect();
        let mut world = World::new(FAMILY);
        world.chain("chain-0", base(ChainKind::Filter, Hook::Forward, 0), &all[0]);
        for (number, rules) in all.iter().enumerate().skip(1) {
            world.chain(format!("chain-{number}"), None, rules);
        }
        let last = rules([]);
        world.chain(format!("chain-{}", chains - 1), None, &last);
        assert_eq!(steps(&world, Hook::Forward).0, wanted, "{chains}");
    }
}

#[test]
fn an_element_is_shown_as_its_object() {
    let element = Element { data: Data::None, object: &"the element" };
    assert_eq!(format!("{element:?}"), "the element");
}

#[test]
fn a_walk_continues_the_path_that_it_was_given() {
    let (world, packet) = (World::new(FAMILY), packet(Protocol::Tcp));
    let mut walk = Walk::new(&world, &packet, 0, PacketPath::recorded());
    walk.path().step(4, "elsewhere");
    assert_eq!(walk.into_path().steps().last().unwrap().text, "elsewhere");
}

#[test]
fn a_mark_is_set_and_flipped_beside_other_bits() {
    for (rule, wanted) in
        [(rule().set_mark(1).set_mark(2), 3), (rule().set_mark(3).flip_mark(5), 6), (rule().set_mark(2).set_mark(2), 2)]
    {
        let all = rules([rule.end()]);
        let mut world = World::new(FAMILY);
        world.chain("filter", base(ChainKind::Filter, Hook::Forward, 0), &all);
        let packet = packet(Protocol::Tcp);
        let mut walk = Walk::new(&world, &packet, 0, PacketPath::default());
        assert_eq!((walk.hook(Hook::Forward), walk.mark()), (End::Accept, wanted));
    }
}

#[test]
fn a_first_packet_of_tcp_has_the_flag_syn_alone() {
    let flags = |value: u8| TableRule {
        exprs: vec![
            Expr::Payload { dreg: ferry_kernel::nft::Reg(8), base: PayloadBase::Transport, offset: 13, len: 1 },
            Expr::Cmp { sreg: ferry_kernel::nft::Reg(8), op: CmpOp::Eq, data: vec![value] },
            Expr::Verdict(Go::Drop),
        ],
        text: String::new(),
    };
    let mut world = World::new(FAMILY);
    let tcp = packet(Protocol::Tcp);
    assert_eq!([2, 18].map(|value| end_in(&mut world, flags(value), &tcp)), [End::Drop, End::Accept]);
}
