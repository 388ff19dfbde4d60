//! Rules as text and as expressions.

use super::*;

fn pods(detector: &LocalDetector, are: bool) -> Option<TableRule> {
    RuleWriter::new(Family::V4).pods(detector, are).map(RuleWriter::end)
}

fn text(detector: &LocalDetector) -> [Option<String>; 2] {
    [true, false].map(|are| pods(detector, are).map(|rule| rule.text))
}

fn cidr(net: &str) -> LocalDetector {
    LocalDetector::Cidr(net.parse().unwrap())
}

fn some(texts: [&str; 2]) -> [Option<String>; 2] {
    texts.map(|text| Some(text.to_owned()))
}

#[test]
fn a_range_of_every_address_needs_no_match_and_leaves_none_outside() {
    assert_eq!(text(&cidr("0.0.0.0/0")), [Some(String::new()), None]);
    assert_eq!(pods(&cidr("0.0.0.0/0"), true).unwrap().exprs, []);
    assert_eq!(text(&cidr("10.0.0.0/8")), some(["ip saddr 10.0.0.0/8", "ip saddr != 10.0.0.0/8"]));
    assert_eq!(text(&cidr("10.0.0.1/32")), some(["ip saddr 10.0.0.1", "ip saddr != 10.0.0.1"]));
}

#[test]
fn pod_ranges_are_compared_by_whole_octets_or_by_a_mask() {
    let lens = |net: &str| -> Vec<usize> {
        let exprs = pods(&cidr(net), true).unwrap().exprs;
        exprs
            .iter()
            .filter_map(|expr| if let Expr::Cmp { data, .. } = expr { Some(data.len()) } else { None })
            .collect()
    };
    assert_eq!([lens("10.0.0.0/8"), lens("10.244.0.0/16"), lens("10.240.0.0/12")], [[1], [2], [4]]);
    let masked = pods(&cidr("10.240.0.0/12"), true).unwrap().exprs;
    assert!(matches!(&masked[1], Expr::Bitwise { mask, .. } if *mask == [255, 240, 0, 0]), "{masked:?}");
}

#[test]
fn a_mask_covers_the_whole_address_of_either_family() {
    for (family, net, len) in [(Family::V4, "10.240.0.0/12", 4), (Family::V6, "fd00::/47", 16)] {
        let rule = RuleWriter::new(family).destination_in(net.parse().unwrap()).end();
        let [Expr::Payload { len: loaded, .. }, Expr::Bitwise { mask, xor, .. }, Expr::Cmp { data, .. }] =
            &rule.exprs[..]
        else {
            panic!("{rule:?}");
        };
        assert_eq!((*loaded, mask.len(), xor.len(), data.len()), (len, len as usize, len as usize, len as usize));
    }
}

#[test]
fn an_interface_is_compared_by_its_whole_name_and_a_prefix_without_its_end() {
    let data = |detector: &LocalDetector| match &pods(detector, true).unwrap().exprs[..] {
        [Expr::Meta { key: MetaKey::IifName, .. }, Expr::Cmp { data, .. }] => data.clone(),
        exprs => panic!("{exprs:?}"),
    };
    let bridge = LocalDetector::Bridge("cni0".into());
    assert_eq!(text(&bridge), some(["iifname \"cni0\"", "iifname != \"cni0\""]));
    assert_eq!(data(&bridge), b"cni0\0\0\0\0\0\0\0\0\0\0\0\0");
    let prefix = LocalDetector::InterfacePrefix("veth".into());
    assert_eq!(text(&prefix), some(["iifname \"veth*\"", "iifname != \"veth*\""]));
    assert_eq!(data(&prefix), b"veth");
    let longest = LocalDetector::InterfacePrefix("a".repeat(14).as_str().into());
    assert_eq!(data(&longest), "a".repeat(14).as_bytes());
}

#[test]
fn a_prefix_as_long_as_a_name_can_be_is_the_name() {
    let name = "a".repeat(15);
    for detector in [LocalDetector::InterfacePrefix, LocalDetector::Bridge].map(|make| make(name.as_str().into())) {
        let rule = pods(&detector, true).unwrap();
        assert_eq!(rule.text, format!("iifname \"{name}\""));
        let whole = [name.as_bytes(), &[0]].concat();
        assert!(matches!(&rule.exprs[1], Expr::Cmp { data, .. } if *data == whole), "{rule:?}");
    }
}

#[test]
fn no_pod_comes_from_an_interface_whose_name_is_too_long() {
    let name = "a".repeat(16);
    for detector in [LocalDetector::InterfacePrefix, LocalDetector::Bridge].map(|make| make(name.as_str().into())) {
        assert_eq!(text(&detector), [None, Some(String::new())]);
    }
}

fn rule(family: Family) -> RuleWriter {
    RuleWriter::new(family)
}

#[test]
fn the_direction_is_one_byte_of_the_connection() {
    let written = rule(Family::V4).original_direction().accept();
    assert_eq!(written.text, "ct direction original accept");
    let direction = Expr::Ct { key: CtKey::Direction, original: false, dreg: FIRST };
    let is_original = Expr::Cmp { sreg: FIRST, op: CmpOp::Eq, data: vec![0] };
    assert_eq!(written.exprs, [direction, is_original, Expr::Verdict(Verdict::Accept)]);
}

#[test]
fn an_echo_request_is_a_type_of_the_familys_icmp() {
    for (family, text, protocol, request) in
        [(Family::V4, "icmp type echo-request", 1, 8), (Family::V6, "icmpv6 type echo-request", 58, 128)]
    {
        let written = rule(family).icmp_echo_request().end();
        assert_eq!(written.text, text);
        let compared = |data: u8| Expr::Cmp { sreg: FIRST, op: CmpOp::Eq, data: vec![data] };
        let wanted = [
            Expr::Meta { key: MetaKey::L4Proto, dreg: FIRST },
            compared(protocol),
            Expr::Payload { dreg: FIRST, base: PayloadBase::Transport, offset: 0, len: 1 },
            compared(request),
        ];
        assert_eq!(written.exprs, wanted);
    }
}

#[test]
fn a_port_in_a_set_is_one_of_tcp() {
    let written = rule(Family::V6).tcp_port_in("health-checks").end();
    assert_eq!(written.text, "tcp dport @health-checks");
    let wanted = [
        Expr::Meta { key: MetaKey::L4Proto, dreg: FIRST },
        Expr::Cmp { sreg: FIRST, op: CmpOp::Eq, data: vec![6] },
        Expr::Payload { dreg: FIRST, base: PayloadBase::Transport, offset: 2, len: 2 },
        Expr::Lookup { set: "health-checks".to_owned(), sreg: FIRST, dreg: None, invert: false },
    ];
    assert_eq!(written.exprs, wanted);
}

#[test]
fn a_key_is_in_a_set_or_outside_of_it() {
    let key = [VIP, &[Field::Source]].concat();
    for (family, ip, behind) in [(Family::V4, "ip", 11), (Family::V6, "ip6", 14)] {
        let outside = rule(family).outside_set(&key, "sources").drop_it();
        assert_eq!(outside.text, format!("{ip} daddr . meta l4proto . th dport . {ip} saddr != @sources drop"));
        let source = &outside.exprs[3];
        assert!(matches!(source, Expr::Payload { dreg: Reg(at), .. } if *at == behind), "{source:?}");
        assert!(matches!(&outside.exprs[4], Expr::Lookup { invert: true, sreg: FIRST, dreg: None, .. }));
        assert_eq!(rule(family).destination_in_set("vips").end().text, format!("{ip} daddr @vips"));
        assert_eq!(rule(family).source_in_set("pods").end().text, format!("{ip} saddr @pods"));
        assert_eq!(rule(family).source_outside("pods").end().text, format!("{ip} saddr != @pods"));
    }
}

#[test]
fn an_output_interface_is_compared_by_its_whole_name() {
    let written = rule(Family::V4).outgoing_not("lo").end();
    assert_eq!(written.text, "oifname != \"lo\"");
    let data = b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    let wanted = [Expr::Meta { key: MetaKey::OifName, dreg: FIRST }, Expr::Cmp { sreg: FIRST, op: CmpOp::Neq, data }];
    assert_eq!(written.exprs, wanted);
    assert_eq!(rule(Family::V4).outgoing_not(&"a".repeat(16)).end().exprs, [], "no interface has such a name");
}
