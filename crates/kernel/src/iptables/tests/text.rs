//! Printing and parsing of rules, without a tool.

use std::mem::size_of;

use super::*;

#[test]
fn samples_print_and_parse() {
    for family in Family::ALL {
        for (rule, text) in samples::rules(family) {
            assert_eq!(printed(family, &rule), text);
            assert_eq!(parsed(family, &text), rule, "{text}");
        }
    }
}

/// 165,000 rules are in memory at a restart in a large cluster.
#[test]
fn rules_are_small() {
    assert_eq!((size_of::<Rule>(), size_of::<Match>()), (96, 24));
}

#[test]
fn appended_to_what_is_there() {
    let mut text = "-A X ".to_owned();
    let rule = Rule { matches: [Match::comment("a")].into(), target: Target::Accept, ..Rule::default() };
    rule.print(Family::V4, &mut text);
    rule.print_uncommented(Family::V4, &mut text);
    assert_eq!(text, "-A X -m comment --comment a -j ACCEPT-j ACCEPT");
}

/// Variants of rules that other releases of the tools print, or people write.
#[test]
fn variants() {
    let same = [
        ("-p tcp -s 10.0.0.0/8 -j X", "-s 10.0.0.0/8 -p tcp -j X"),
        ("-j X -s 10.0.0.0/8", "-s 10.0.0.0/8 -j X"),
        ("  -s   10.0.0.1\t-j X ", "-s 10.0.0.1/32 -j X"),
        ("-s 10.1.2.3/8 -j X", "-s 10.0.0.0/8 -j X"),
        ("-s 10.1.2.3/0 -d 0.0.0.0/0 -j X", "-j X"),
        ("! -d 10.1.2.3/0 -j X", "! -d 0.0.0.0/0 -j X"),
        ("-s ! 10.0.0.0/8 -i ! eth0 -j X", "! -s 10.0.0.0/8 ! -i eth0 -j X"),
        ("-p 132 -m sctp --destination-port 7", "-p sctp -m sctp --dport 7"),
        ("-m udp --dport 7 -p udp", "-p udp -m udp --dport 7"),
        ("-m mark --mark ! 16384/0x4000", "-m mark ! --mark 0x4000/0x4000"),
        ("-m mark --mark 0x4000/0xffffffff", "-m mark --mark 0x4000"),
        ("-m conntrack --ctstate ! DNAT,ESTABLISHED,RELATED", "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT"),
        ("-m nfacct --nfacct-name  a_b", "-m nfacct --nfacct-name a_b"),
        (
            "-m recent --name L --rsource --reap --seconds 7 --rcheck",
            "-m recent --rcheck --seconds 7 --reap --name L --mask 255.255.255.255 --rsource",
        ),
        (
            "-m recent --mask 255.255.255.255 --name L --set",
            "-m recent --set --name L --mask 255.255.255.255 --rsource",
        ),
        ("-m statistic --probability 0.5 --mode random", "-m statistic --mode random --probability 0.50000000000"),
        (r#"-m comment --comment "plain""#, "-m comment --comment plain"),
        (r#"-m comment --comment "a 'b\c""#, r#"-m comment --comment "a \'bc""#),
        ("-m comment --comment a.b", r#"-m comment --comment "a.b""#),
        ("-j MARK --set-xmark 0x4000", "-j MARK --set-xmark 0x4000/0xffffffff"),
    ];
    for (variant, text) in same {
        assert_eq!(printed(Family::V4, &parsed(Family::V4, variant)), text, "{variant}");
    }
}

#[test]
fn addresses_as_the_c_library_prints_them() {
    let same = [
        ("::102:304/128", "::1.2.3.4/128"),
        ("::1:0/128", "::0.1.0.0/128"),
        ("::ffff/128", "::ffff/128"),
        ("::1/128", "::1/128"),
        ("::ffff:1.2.3.4/128", "::ffff:1.2.3.4/128"),
        ("FD00:0:0:1:0:0:0:0/64", "fd00:0:0:1::/64"),
        ("1:0:2:0:0:3:0:0/128", "1:0:2::3:0:0/128"),
    ];
    for (written, read) in same {
        let rule = parsed(Family::V6, &format!("-s {written}"));
        assert_eq!(printed(Family::V6, &rule), format!("-s {read}"));
    }
}

/// Rules that this program does not write, one per line.
const OTHERS: &str = r#"
-s 10.0.0.0/255.0.255.0
-s 10.0.0.0/33
-s 10.0.0.0/+8
-s 10.0.0.0/8 -s 10.0.0.0/8
-s fd00::1
-s
-s !
! -s ! 10.0.0.1
! ! -s 10.0.0.1
! -p tcp
-p icmp
-p tcp -p tcp
-o eth0
-i "a b"
-i ""
-i "!"
-i "a\""
-i sixteen-bytes-xx
-i ! ! eth0
-f
-g X
-j
! -j X
-j X -j X
-j X --opt
-j "X
-j KUBE-A-NAME-OF-29-CHARACTERS-X
-j REJECT
-j REJECT --reject-with tcp-reset
-j REJECT --reject-with icmp6-port-unreachable
-j MARK
-j MARK --set-xmark 0x
-j MARK --set-xmark 0x+1
-j MARK --set-xmark 0x1/0x2/0x3
-j MARK --set-xmark 0x100000000
-j MARK --and-mark 0x1
-j MASQUERADE --random
-j MASQUERADE --random-fully --random
-j MASQUERADE --to-ports 1-2
-j DNAT
-j DNAT --to-destination 10.0.0.1
-j DNAT --to-destination 10.0.0.1:+1
-j DNAT --to-destination 10.0.0.1:65536
-j DNAT --to-destination 10.0.0.1-10.0.0.2:1
-j DNAT --to-destination [fd00::1]:1
-j DNAT --to-destination [10.0.0.1]:1
-j DNAT --to-destination 10.0.0.1:1 --persistent
-j LOG --log-prefix x
-m
-m tcp
-p udp -m tcp
-p tcp -m tcp -m udp
-p tcp -m tcp --sport 1
-p tcp -m tcp ! --dport 1
-p tcp -m tcp --dport 1:2
-p tcp -m tcp --dport 65536
-p tcp -m tcp --dport +1
-p tcp --dport 1
-p tcp -m multiport --dports 1,2
-m comment
-m comment --comment
-m comment ! --comment a
-m comment --comment "a" "b"
-m comment --comment a"b"
-m comment --comment "a"b
-m comment --comment "a
-m comment --comment "a\
"-m" comment --comment a
-m conntrack
-m conntrack --ctstate
-m conntrack --ctstate NEW,INVALID
-m conntrack --ctstate RELATED
-m conntrack ! --ctstate ! NEW
-m conntrack --ctproto 6
-m addrtype --dst-type LOCAL --limit-iface-in
-m addrtype ! --dst-type LOCAL
-m addrtype --dst-type UNICAST
-m mark --mark
-m mark --mark -1
-m nfacct
-m nfacct --nfacct-name
-m nfacct --nfacct-name ""
-m nfacct --nfacct-name "a b"
-m nfacct --nfacct-name abcdefghijklmnopqrstuvwxyz012345
-m recent --set
-m recent --name L
-m recent --set --name L --rdest
-m recent ! --rcheck --seconds 1 --reap --name L
-m recent --rcheck --reap --name L
-m recent --rcheck --seconds 1 --name L
-m recent --rcheck --seconds 1 --reap --hitcount 2 --name L
-m recent --update --seconds 1 --name L
-m recent --set --name L --mask 255.255.255.0
-m statistic --mode random
-m statistic --mode nth --every 2 --packet 0
-m statistic --mode random ! --probability 0.5
-m statistic --mode random --probability 1.1
-m statistic --mode random --probability nan
-m statistic --mode random --probability -0
-m statistic --mode random --probability 1e-1
x
--
!
""
"#;

#[test]
fn unsupported_rules_are_none() {
    let others: Vec<_> = OTHERS.lines().filter(|line| !line.is_empty()).collect();
    assert!(others.len() > 90);
    for text in others.into_iter().chain(["-m comment --comment \"a\tb\""]) {
        assert_eq!(Rule::parse(Family::V4, text), None, "{text}");
    }
    assert_eq!(Rule::parse(Family::V6, "-s 10.0.0.1"), None);
    assert_eq!(Rule::parse(Family::V6, "-j DNAT --to-destination fd00::1:80"), None);
    assert_eq!(Rule::parse(Family::V6, "-j DNAT --to-destination [fe80::1%1]:80"), None);
}

#[test]
fn comments_are_sanitized() {
    let text = |text: &str| match Match::comment(text) {
        Match::Comment(text) => text.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(text("a\nCOMMIT\u{85}\u{7f}é"), "a?COMMIT??é");
    assert_eq!(text(&"x".repeat(300)), "x".repeat(255));
    assert_eq!(text(&"é".repeat(200)), "é".repeat(127));
    let raw = Rule { matches: [Match::Comment("a\n-A b".into())].into(), ..Rule::default() };
    assert_eq!(printed(Family::V4, &raw), r#"-m comment --comment "a?-A b""#);
}

#[test]
fn all_addresses_are_not_printed() {
    let all: ipnet::IpNet = "0.0.0.0/0".parse().unwrap();
    assert_eq!((AddressMatch::only(all), AddressMatch::except(all)), (None, None));
    let rule =
        Rule { source: Some(AddressMatch { net: all, inverted: false }), target: Target::Accept, ..Rule::default() };
    assert_eq!(printed(Family::V4, &rule), "-j ACCEPT");
    let host_bits = AddressMatch::only("10.1.2.3/8".parse().unwrap());
    assert_eq!(host_bits, AddressMatch::only("10.0.0.0/8".parse().unwrap()));
}

#[test]
fn probabilities() {
    let text = |units| printed(Family::V4, &Rule { matches: [Match::Random(units)].into(), ..Rule::default() });
    assert_eq!(text(0), "-m statistic --mode random --probability 0.00000000000");
    assert_eq!(text(1), "-m statistic --mode random --probability 0.00000000047");
    assert_eq!(text(1 << 31), "-m statistic --mode random --probability 1.00000000000");
    // between two decimals: the even one
    assert_eq!(text(1 << 19), "-m statistic --mode random --probability 0.00024414062");
    assert_eq!(text(3 << 19), "-m statistic --mode random --probability 0.00073242188");
    assert_eq!(Match::one_of(3), Match::Random(715_827_883));
    assert_eq!(text(715_827_883), "-m statistic --mode random --probability 0.33333333349");
    assert_eq!((Match::one_of(1), Match::one_of(0)), (Match::Random(1 << 31), Match::Random(1 << 31)));
    for units in (0..=1_u32 << 31).step_by(99_991) {
        assert_eq!(parsed(Family::V4, &text(units)).matches[0], Match::Random(units));
    }
}
