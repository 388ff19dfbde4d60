use ferry_api::object::{AddressKind, KubeObject, NodeAddress, Parsed, ServiceCidr};

use super::*;
use crate::store::Event;
use crate::testing::ip;

fn settings() -> Settings {
    Settings {
        node_name: "here".to_owned(),
        bind_address: None,
        detect_local: DetectLocal::NodeCidr,
        masquerade_all: false,
        masquerade_bit: 14,
        node_port_addresses: NodePortSelection::Primary,
        localhost_node_ports: true,
        external_ips: true,
        scheduler: Scheduler::Rr,
    }
}

fn nets(list: &[&str]) -> Vec<IpNet> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

fn parsed<T: std::str::FromStr>(text: &str) -> Parsed<T> {
    text.parse().map_err(|_| text.into())
}

fn node(addresses: &[(AddressKind, &str)], pod_cidrs: &[&str]) -> Node {
    Node {
        name: ObjectName::cluster_wide("here"),
        zone: Some("z1".into()),
        addresses: addresses.iter().map(|(kind, text)| NodeAddress { kind: *kind, address: parsed(text) }).collect(),
        pod_cidrs: pod_cidrs.iter().map(|text| parsed(text)).collect(),
        deleting: false,
        to_be_deleted: false,
    }
}

/// For a profile that doesn't list node addresses.
fn of_node(settings: &Settings, node: Option<&Node>, family: Family) -> Context {
    context(settings, node, &[], &Profile::NFTABLES, family)
}

fn node_ips(settings: &Settings, node: Option<&Node>) -> [String; 2] {
    Family::ALL.map(|family| of_node(settings, node, family).node_ip.unwrap().to_string())
}

#[test]
fn internal_addresses_come_before_external_ones_and_the_bind_address_before_both() {
    use AddressKind::{External, Internal};
    let node = node(
        &[
            (External, "198.51.100.1"),
            (External, "2001:db8::1"),
            (Internal, "nonsense"),
            (Internal, "192.0.2.10"),
            (Internal, "192.0.2.11"),
        ],
        &[],
    );
    assert_eq!(node_ips(&settings(), Some(&node)), ["192.0.2.10", "2001:db8::1"]);
    let bound = Settings { bind_address: Some(ip("2001:db8::99")), ..settings() };
    assert_eq!(node_ips(&bound, Some(&node)), ["192.0.2.10", "2001:db8::99"]);
    assert_eq!(node_ips(&bound, None), ["127.0.0.1", "2001:db8::99"]);
    assert_eq!(node_ips(&settings(), None), ["127.0.0.1", "::1"]);
}

#[test]
fn each_family_has_its_detector() {
    let node = node(&[], &["bad", "10.244.3.7/24", "fd00:10:244:3::/64"]);
    let local = |detect_local, node| {
        let settings = Settings { detect_local, ..settings() };
        let detector = |family| of_node(&settings, node, family).local;
        Family::ALL.map(|family| detector(family).map_or_else(|| "-".to_owned(), |detector| detector.to_string()))
    };
    let cidrs = |list| DetectLocal::ClusterCidr(nets(list));
    assert_eq!(local(DetectLocal::NodeCidr, Some(&node)), ["from 10.244.3.0/24", "from fd00:10:244:3::/64"]);
    assert_eq!(local(DetectLocal::NodeCidr, None), ["-", "-"]);
    assert_eq!(local(cidrs(&["10.244.0.9/16", "10.245.0.0/16"]), None), ["from 10.244.0.0/16", "-"]);
    assert_eq!(local(cidrs(&[]), Some(&node)), ["-", "-"]);
    assert_eq!(local(DetectLocal::Bridge("cni0".into()), None), ["through cni0", "through cni0"]);
    assert_eq!(local(DetectLocal::InterfacePrefix("veth".into()), None), ["through veth*", "through veth*"]);
}

#[test]
fn the_rest_of_the_context() {
    let settings = Settings { masquerade_all: true, masquerade_bit: 31, ..settings() };
    let context = of_node(&settings, Some(&node(&[], &[])), Family::V6);
    assert_eq!((context.masquerade_all, context.masquerade_mark, context.zone.as_deref()), (true, 1 << 31, Some("z1")));
    assert_eq!(context.node_name, "here");
}

#[test]
fn node_port_addresses() {
    let node = node(&[(AddressKind::Internal, "192.0.2.10")], &[]);
    let local = ["127.0.0.1", "::1", "192.0.2.77", "192.0.2.10", "192.0.2.10", "10.244.0.1", "2001:db8::10"].map(ip);
    let of = |node_port_addresses, node, family| {
        let settings = Settings { node_port_addresses, ..settings() };
        let context = of_node(&settings, node, family);
        let (base, diagnostics) = base(&settings, &context, &local, &Store::new("here"), &Profile::NFTABLES, family);
        (base.node_ports.to_string(), diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let quiet = |text: &str| (text.to_owned(), Vec::<String>::new());
    let all = || quiet("every local address");
    let cidrs = |list| NodePortSelection::Cidrs(nets(list));
    assert_eq!(of(NodePortSelection::Primary, Some(&node), Family::V4), quiet("192.0.2.10"));
    let unknown = |family| {
        let text = format!("nodePorts are not served in {family} until one is");
        (
            "-".to_owned(),
            vec![format!("Node here: nodePortAddresses: no {family} address of the Node is known: {text}")],
        )
    };
    assert_eq!(of(NodePortSelection::Primary, Some(&node), Family::V6), unknown("IPv6"), "never all of them");
    assert_eq!(of(NodePortSelection::Primary, None, Family::V4), unknown("IPv4"));
    assert_eq!(of(cidrs(&[]), None, Family::V4), all());
    assert_eq!(of(cidrs(&["192.0.2.0/24"]), None, Family::V4), quiet("192.0.2.10 192.0.2.77"));
    assert_eq!(of(cidrs(&["192.0.2.0/24"]), None, Family::V6), all(), "no range of the family");
    assert_eq!(of(cidrs(&["192.0.2.0/24", "0.0.0.0/0"]), None, Family::V4), all());
    let (addresses, diagnostics) = of(cidrs(&["127.0.0.0/8", "198.51.100.0/24"]), None, Family::V4);
    assert_eq!(addresses, "-");
    assert_eq!(
        diagnostics,
        [
            "Node here: nodePortAddresses: 127.0.0.0/8 is loopback, which never serves nodePorts in this mode",
            "Node here: nodePortAddresses: no IPv4 address of this node is selected: its nodePorts are not served",
        ]
    );
}

#[test]
fn node_ports_on_loopback() {
    let local = ["127.0.0.1", "127.0.0.5", "::1", "192.0.2.10", "2001:db8::10"].map(ip);
    let node = node(&[(AddressKind::Internal, "192.0.2.10"), (AddressKind::Internal, "2001:db8::10")], &[]);
    let of = |node_port_addresses, localhost_node_ports, profile, family| {
        let settings = Settings { node_port_addresses, localhost_node_ports, ..settings() };
        let context = of_node(&settings, Some(&node), family);
        let (base, diagnostics) = base(&settings, &context, &local, &Store::new("here"), profile, family);
        (base.node_ports.to_string(), base.localhost, diagnostics.len())
    };
    let all = |localhost| ("every local address".to_owned(), localhost, 0);
    let only = |list: &str, localhost, diagnostics| (list.to_owned(), localhost, diagnostics);
    let cidrs = |list| NodePortSelection::Cidrs(nets(list));
    let iptables = &Profile::IPTABLES;
    assert_eq!(of(cidrs(&[]), true, iptables, Family::V4), all(true));
    assert_eq!(of(cidrs(&["0.0.0.0/0"]), true, iptables, Family::V4), all(true));
    assert_eq!(of(cidrs(&[]), false, iptables, Family::V4), all(false), "the configuration doesn't want it");
    assert_eq!(of(cidrs(&[]), true, iptables, Family::V6), all(false), "IPv6 leads nothing on from loopback");
    assert_eq!(of(cidrs(&[]), true, &Profile::NFTABLES, Family::V4), all(false), "the mode doesn't");
    assert_eq!(of(NodePortSelection::Primary, true, iptables, Family::V4), only("192.0.2.10", false, 0));
    let loopback = || cidrs(&["127.0.0.0/8", "192.0.2.0/24", "::1/128", "2001:db8::/64"]);
    assert_eq!(of(loopback(), true, iptables, Family::V4), only("127.0.0.1 127.0.0.5 192.0.2.10", true, 0));
    assert_eq!(of(loopback(), false, iptables, Family::V4), only("192.0.2.10", false, 1));
    assert_eq!(of(loopback(), true, iptables, Family::V6), only("2001:db8::10", false, 1));
    assert_eq!(of(cidrs(&["127.0.0.1/32"]), true, iptables, Family::V4), only("127.0.0.1", true, 0));
    assert_eq!(of(cidrs(&["192.0.2.0/24"]), true, iptables, Family::V4), only("192.0.2.10", false, 0));
    assert_eq!(of(cidrs(&["127.0.9.0/24"]), true, iptables, Family::V4), only("-", false, 1));
}

#[test]
fn service_cidrs_and_what_is_wrong_with_objects() {
    let mut store = Store::new("here");
    for (name, cidrs) in [
        ("a", ["10.97.1.0/24", "fd00:10:96::/112"]),
        ("b", ["10.96.0.0/12", "bad"]),
        ("c", ["10.7.0.1/16", "10.96.0.0/12"]),
    ] {
        let cidrs = cidrs.iter().map(|text| parsed(text)).collect();
        store
            .apply(Event::Upsert(KubeObject::ServiceCidr(ServiceCidr { name: ObjectName::cluster_wide(name), cidrs })));
    }
    store.apply(Event::Upsert(KubeObject::Node(node(&[(AddressKind::Internal, "1.2.3")], &["10.0.0.0/8", "none"]))));
    let settings = Settings { node_port_addresses: NodePortSelection::Cidrs(Vec::new()), ..settings() };
    let context = |family| of_node(&settings, store.node(), family);
    let (four, diagnostics) = base(&settings, &context(Family::V4), &[], &store, &Profile::NFTABLES, Family::V4);
    assert_eq!(four.service_cidrs, nets(&["10.7.0.0/16", "10.96.0.0/12"]));
    assert_eq!(
        diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "Node here: status.addresses: \"1.2.3\" is no address: not an address of this node",
            "Node here: spec.podCIDRs[1]: \"none\" is no range: pods in it are not known",
            "ServiceCIDR b: spec.cidrs[1]: \"bad\" is no range: connections into it are not dropped",
        ]
    );
    assert_eq!(
        base(&settings, &context(Family::V6), &[], &store, &Profile::NFTABLES, Family::V6).0.service_cidrs,
        nets(&["fd00:10:96::/112"])
    );
}

#[test]
fn settings_from_a_configuration() {
    let mut config = KubeProxyConfiguration { mode: "nftables".to_owned(), ..KubeProxyConfiguration::default() };
    config.apply_platform_defaults();
    let of = |config: &KubeProxyConfiguration| Settings::from_config(config, "here");
    assert_eq!(of(&config), Settings { detect_local: DetectLocal::ClusterCidr(Vec::new()), ..settings() });

    config.bind_address = "192.0.2.11".to_owned();
    config.cluster_cidr = "10.244.0.0/16,fd00:10:244::/56".to_owned();
    config.nftables.masquerade_all = true;
    config.nftables.masquerade_bit = 3;
    config.node_port_addresses = vec!["192.0.2.0/24".to_owned(), "::/0".to_owned()];
    config.feature_gates = [("AllowServiceExternalIPs".to_owned(), false)].into();
    let wanted = Settings {
        bind_address: Some(ip("192.0.2.11")),
        detect_local: DetectLocal::ClusterCidr(nets(&["10.244.0.0/16", "fd00:10:244::/56"])),
        masquerade_all: true,
        masquerade_bit: 3,
        node_port_addresses: NodePortSelection::Cidrs(nets(&["192.0.2.0/24", "::/0"])),
        external_ips: false,
        ..settings()
    };
    assert_eq!(of(&config), wanted);

    config.detect_local.bridge_interface = "cni0".to_owned();
    config.detect_local.interface_name_prefix = "veth".to_owned();
    for (mode, wanted) in [
        ("NodeCIDR", DetectLocal::NodeCidr),
        ("BridgeInterface", DetectLocal::Bridge("cni0".to_owned())),
        ("InterfaceNamePrefix", DetectLocal::InterfacePrefix("veth".to_owned())),
    ] {
        config.detect_local_mode = mode.to_owned();
        assert_eq!(of(&config).detect_local, wanted);
    }
}

/// Lost facts of a Node stay in force: `primary` never becomes every address.
#[test]
fn a_node_that_loses_an_address_or_a_range_keeps_the_last() {
    use AddressKind::Internal;
    let local = ["192.0.2.10", "192.0.2.77", "2001:db8::10", "2001:db8::77"].map(ip);
    let mut store = Store::new("here");
    let mut tell = |addresses: &[(AddressKind, &str)], ranges: &[&str]| {
        let dirty = store.apply(Event::Upsert(KubeObject::Node(node(addresses, ranges))));
        let found = Family::ALL.map(|family| {
            let context = of_node(&settings(), store.node(), family);
            let (base, diagnostics) = base(&settings(), &context, &local, &store, &Profile::NFTABLES, family);
            let pods = context.local.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
            (
                base.node_ports.to_string(),
                pods,
                diagnostics.iter().map(|found| found.message.clone()).collect::<Vec<_>>(),
            )
        });
        (dirty.node, found)
    };
    let quiet = |addresses: &str, pods: &str| (addresses.to_owned(), pods.to_owned(), Vec::<String>::new());
    let whole = [quiet("192.0.2.10", "from 10.244.1.0/24"), quiet("2001:db8::10", "from fd00:10:244:1::/64")];
    let both = [(Internal, "192.0.2.10"), (Internal, "2001:db8::10")];
    let ranges = ["10.244.1.0/24", "fd00:10:244:1::/64"];
    assert_eq!(tell(&both, &ranges), (true, whole.clone()));
    // It loses IPv6, then all of it.
    let (dirty, [four, mut six]) = tell(&[(Internal, "192.0.2.10")], &["10.244.1.0/24"]);
    assert_eq!((dirty, &four), (true, &whole[0]));
    let said = [
        "the Node has no IPv6 address any more: its last one stays in force",
        "the Node has no IPv6 pod range any more: its last one stays in force",
    ];
    assert_eq!(std::mem::take(&mut six.2), said);
    assert_eq!(six, whole[1]);
    let (_, bare) = tell(&[], &[]);
    assert_eq!(
        bare.clone().map(|(addresses, pods, said)| (quiet(&addresses, &pods), said.len())),
        whole.clone().map(|whole| (whole, 2))
    );
    assert!(!tell(&[], &[]).0, "nothing new");
    assert_eq!(tell(&both, &ranges), (true, whole));
    let moved = tell(&[(Internal, "192.0.2.77"), (Internal, "2001:db8::77")], &["10.244.9.0/24"]).1;
    assert_eq!(moved[0], quiet("192.0.2.77", "from 10.244.9.0/24"));
    assert_eq!((&*moved[1].0, &*moved[1].1), ("2001:db8::77", "from fd00:10:244:1::/64"));
}

/// A bind address of loopback is none for node ports.
#[test]
fn the_addresses_that_serve_node_ports() {
    let local = ["127.0.0.1", "::1", "169.254.20.10", "192.0.2.10", "192.0.2.77", "fe80::1", "2001:db8::10"].map(ip);
    let node = node(&[(AddressKind::Internal, "192.0.2.10")], &[]);
    let of = |node_port_addresses, bind_address| {
        let settings = Settings { node_port_addresses, bind_address, ..settings() };
        let addresses = super::node_port_addresses(&settings, Some(&node), &local);
        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of(NodePortSelection::Primary, None), "192.0.2.10");
    assert_eq!(of(NodePortSelection::Primary, Some(ip("127.0.0.1"))), "");
    assert_eq!(of(NodePortSelection::Cidrs(Vec::new()), None), "192.0.2.10 192.0.2.77 2001:db8::10");
    assert_eq!(of(NodePortSelection::Cidrs(nets(&["127.0.0.0/8", "192.0.2.77/32"])), None), "192.0.2.77 2001:db8::10");
}

/// A profile that lists them gets its family's in the context.
#[test]
fn the_context_lists_node_addresses_for_who_asks() {
    let local = ["127.0.0.1", "192.0.2.77", "192.0.2.10", "192.0.2.10", "2001:db8::10", "fe80::1"].map(ip);
    let node = node(&[(AddressKind::Internal, "192.0.2.10")], &[]);
    let of = |node_port_addresses, lists_node_addresses, family| {
        let settings = Settings { node_port_addresses, ..settings() };
        let profile = Profile { lists_node_addresses, ..Profile::NFTABLES };
        let listed = context(&settings, Some(&node), &local, &profile, family).node_addresses;
        listed.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let all = || NodePortSelection::Cidrs(Vec::new());
    assert_eq!(of(all(), true, Family::V4), "192.0.2.10 192.0.2.77");
    assert_eq!(of(all(), true, Family::V6), "2001:db8::10");
    assert_eq!(of(NodePortSelection::Primary, true, Family::V4), "192.0.2.10");
    assert_eq!(of(NodePortSelection::Primary, true, Family::V6), "", "not known");
    assert_eq!(of(all(), false, Family::V4), "");
}

/// In mode ipvs a node port is served on listed addresses only, and an address of another interface isn't bound.
#[test]
fn the_addresses_of_mode_ipvs() {
    let local =
        ["127.0.0.1", "192.0.2.77", "192.0.2.10", "192.0.2.10", "2001:db8::10", "fe80::1", "10.96.0.10"].map(ip);
    let store = Store::new("here");
    let of = |node_port_addresses, profile: &Profile, family| {
        let settings = Settings { node_port_addresses, ..settings() };
        let node = node(&[(AddressKind::Internal, "192.0.2.10")], &[]);
        let context = context(&settings, Some(&node), &local, profile, family);
        let (base, _) = base(&settings, &context, &local, &store, profile, family);
        let others = context.local_addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        (base.node_ports, base.localhost, others)
    };
    let all = || NodePortSelection::Cidrs(Vec::new());
    let only = |list: &[&str]| NodePortAddresses::Only(list.iter().map(|text| ip(text)).collect());
    let v4 = "10.96.0.10 192.0.2.10 192.0.2.77".to_owned();
    let v6 = "2001:db8::10".to_owned();
    assert_eq!(
        of(all(), &Profile::IPVS, Family::V4),
        (only(&["10.96.0.10", "192.0.2.10", "192.0.2.77"]), false, v4.clone())
    );
    assert_eq!(of(all(), &Profile::IPVS, Family::V6), (only(&["2001:db8::10"]), false, v6.clone()));
    assert_eq!(of(NodePortSelection::Primary, &Profile::IPVS, Family::V4), (only(&["192.0.2.10"]), false, v4));
    assert_eq!(of(NodePortSelection::Primary, &Profile::IPVS, Family::V6), (only(&[]), false, v6));
    for profile in [&Profile::IPTABLES, &Profile::NFTABLES] {
        let (node_ports, _, others) = of(all(), profile, Family::V4);
        assert_eq!((node_ports, &*others), (NodePortAddresses::All, ""));
    }
}

/// A relay connects from an address that the machine has.
#[test]
fn the_address_of_a_relay() {
    let loopback = ["127.0.0.1", "::1"];
    let special = ["127.0.0.1", "169.254.20.10", "::1", "fe80::1"];
    let others = ["192.0.2.77", "192.0.2.7", "2001:db8::77", "2001:db8::7"];
    let own = ["192.0.2.10", "2001:db8::10"];
    let known = node(&own.map(|address| (AddressKind::Internal, address)), &[]);
    let of = |node: Option<&Node>, local: &[&[&str]], profile: &Profile| {
        let local: Vec<IpAddr> = local.concat().into_iter().map(ip).collect();
        Family::ALL.map(|family| context(&settings(), node, &local, profile, family).relay_address)
    };
    let relay = |node, local: &[&[&str]]| of(node, local, &Profile::USERSPACE).map(|address| address.unwrap());
    let first = ["192.0.2.7", "2001:db8::7"].map(ip);
    assert_eq!(relay(Some(&known), &[&special, &others, &own]), own.map(ip), "the node's");
    assert_eq!(relay(Some(&known), &[&special, &others]), first, "the machine doesn't have the node's");
    assert_eq!(relay(None, &[&special, &others]), first, "the node's isn't known");
    assert_eq!(relay(Some(&known), &[&special]), loopback.map(ip), "the machine has no other");
    assert_eq!(of(Some(&known), &[&own], &Profile::NFTABLES), [None, None]);
}

#[test]
fn the_configured_scheduler() {
    for (text, wanted) in [("", Scheduler::Rr), ("wlc", Scheduler::Wlc), ("fastest", Scheduler::Rr)] {
        let mut config = KubeProxyConfiguration::default();
        config.ipvs.scheduler = text.to_owned();
        let settings = Settings::from_config(&config, "here");
        assert_eq!(settings.scheduler, wanted, "{text:?}");
        let context = context(&settings, None, &[], &Profile::IPVS, Family::V4);
        assert_eq!((context.scheduler, context.missing_schedulers.len()), (wanted, 0));
    }
}
