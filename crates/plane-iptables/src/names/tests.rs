use super::*;

fn name(text: &str) -> IptablesChainName {
    IptablesChainName::new(text).unwrap()
}

fn of(namespace: &str, service: &str, port: &str, protocol: Protocol) -> PortNames {
    PortNames::new(&ObjectName::new(namespace, service), port, protocol)
}

#[test]
fn hashes_are_upstreams() {
    let port = of("ns1", "svc1", "p80", Protocol::Tcp);
    assert_eq!(port.cluster().as_str(), "KUBE-SVC-XPGD46QRK7WJZT7O");
    assert_eq!(port.local().as_str(), "KUBE-SVL-XPGD46QRK7WJZT7O");
    assert_eq!(port.external().as_str(), "KUBE-EXT-XPGD46QRK7WJZT7O");
    assert_eq!(port.firewall().as_str(), "KUBE-FW-XPGD46QRK7WJZT7O");
    assert_eq!(port.endpoint("10.180.0.1:80").as_str(), "KUBE-SEP-SXIVWICOYRO3J4NJ");
    assert_eq!(port.endpoint("[fd00:10::1]:80").as_str(), "KUBE-SEP-RT5VHSJR44ZNF7G5");
    assert_eq!(of("ns1", "svc1", "", Protocol::Tcp).cluster().as_str(), "KUBE-SVC-AQI2S6QIMU7PVVRP");
    assert_eq!(of("kube-system", "kube-dns", "dns", Protocol::Udp).cluster().as_str(), "KUBE-SVC-TCOU7JCQXEZGVUNU");
}

#[test]
fn what_comments_call_a_port() {
    assert_eq!(of("ns1", "svc1", "p80", Protocol::Tcp).printed, "ns1/svc1:p80");
    assert_eq!(of("ns1", "svc1", "", Protocol::Sctp).printed, "ns1/svc1");
    let longest = "a".repeat(63);
    assert_eq!(of(&longest, &longest, &longest, Protocol::Tcp).printed, format!("{longest}/{longest}:{longest}"));
}

#[test]
fn names_that_no_server_lets_through_are_cleaned_and_stay_apart() {
    let odd =
        ["a\"b", "a\\b", "a b", "a\nb", "a:b", "a/b", "ä", "\u{0}", &"x".repeat(64), &"x".repeat(253), &"ü".repeat(90)];
    let mut all = std::collections::BTreeSet::new();
    for odd in odd {
        let printed = of(odd, odd, odd, Protocol::Tcp).printed;
        assert!(printed.len() <= 3 * PART + 2, "{printed}");
        assert!(printed.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte)), "{printed}");
        assert_eq!((printed.matches(':').count(), printed.matches('/').count()), (1, 1), "{printed}");
        assert!(all.insert(printed));
    }
}

#[test]
fn health_checks_are_known_by_their_comment() {
    for service in
        [ObjectName::new("demo", "lb"), ObjectName::new("demo", "a:b"), ObjectName::new("", &"x".repeat(300))]
    {
        for port in ["", "https", "a:b\""] {
            let printed = PortNames::new(&service, port, Protocol::Tcp).printed;
            assert_eq!(health_check_of(&health_check_comment(&printed)), Some(of_service(&service)), "{printed}");
        }
    }
    assert_ne!(of_service(&ObjectName::new("demo", "lb")), of_service(&ObjectName::new("demo", "lc")));
    assert_eq!(health_check_of("demo/lb:https has no endpoints"), None);
    assert_eq!(health_check_of("my health check node port"), None);
    assert_eq!(Class::of(of_service(&ObjectName::new("demo", "lb"))), None);
}

#[test]
fn classes() {
    let port = of("ns1", "svc1", "p80", Protocol::Tcp);
    let of_service = [
        (port.endpoint("10.180.0.1:80"), Class::Endpoint, 1),
        (port.cluster(), Class::Cluster, 2),
        (port.local(), Class::Local, 2),
        (port.external(), Class::External, 3),
        (port.firewall(), Class::Firewall, 4),
    ];
    for (name, class, wanted) in of_service {
        assert_eq!((Class::of(name), rank(name)), (Some(class), wanted));
        assert!(is_ours(Table::Nat, name) && !is_ours(Table::Filter, name) && class.is_of_service());
    }
    for name in [CANARY, MARK_MASQ, POSTROUTING, FORWARD] {
        assert_eq!((Class::of(name), rank(name)), (Some(Class::Fixed), 0));
    }
    for name in [SERVICES, EXTERNAL_SERVICES, NODE_PORTS, PROXY_FIREWALL, FIREWALL] {
        assert_eq!(Class::of(name), Some(Class::Shared));
    }
    let tables = |chain| Table::ALL.into_iter().filter(|table| is_ours(*table, chain)).collect::<Vec<_>>();
    assert_eq!(tables(CANARY), [Table::Mangle, Table::Filter, Table::Nat]);
    assert_eq!(tables(SERVICES), [Table::Filter, Table::Nat]);
    assert_eq!(tables(NODE_PORTS), [Table::Filter, Table::Nat]);
    assert_eq!(tables(POSTROUTING), [Table::Nat]);
    assert_eq!(tables(FORWARD), [Table::Filter]);
    assert_eq!(tables(FIREWALL), []);
}

#[test]
fn chains_of_others() {
    let others = [
        "INPUT",
        "KUBE-SVC-",
        "KUBE-SVC-XPGD46QRK7WJZT7",
        "KUBE-SVC-xpgd46qrk7wjzt7o",
        "KUBE-SVC-XPGD46QRK7WJZT71",
        "KUBE-XLB-XPGD46QRK7WJZT7O",
        "KUBE-IPTABLES-HINT",
        "KUBE-KUBELET-CANARY",
        "KUBE-SERVICES-2",
        "CILIUM_INPUT",
    ];
    for other in others {
        assert_eq!(Class::of(name(other)), None, "{other}");
        assert!(Table::ALL.into_iter().all(|table| !is_ours(table, name(other))), "{other}");
    }
}

#[test]
fn sets_of_source_ranges_are_known_by_their_names() {
    let service = ObjectName::new("demo", "web");
    for family in Family::ALL {
        let set = sources(&service, family);
        let [next, of_another] = [1, 2].map(|process| next_sources(set, process));
        assert!(is_sources(set) && !is_next_sources(set), "{set}");
        assert!(is_next_sources(next) && !is_sources(next), "{next}");
        assert_ne!(next, of_another, "each process fills a set of its own");
    }
    let hash = "XPGD46QRK7WJZT7O";
    for other in ["FERRY-SRC-", "FERRY-SRC-web", "FERRY-NXT-", "FERRY-NXT-web", hash, &format!("KUBE-SRC-{hash}")] {
        assert!(!is_sources(name(other)) && !is_next_sources(name(other)), "{other}");
    }
}

#[test]
fn a_name_that_is_too_long_keeps_its_beginning_and_gets_a_hash() {
    let long = "abcdefghij".repeat(10);
    let printed = of(&long, "svc1", "", Protocol::Tcp).printed;
    let (kept, rest) = printed.split_once('~').unwrap();
    assert_eq!(kept, &long[..46]);
    let (hash, service) = rest.split_once('/').unwrap();
    assert!(is_hash(hash) && service == "svc1", "{printed}");
}
