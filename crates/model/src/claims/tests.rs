use super::*;
use crate::testing::{name, port, service};
use ferry_api::object::{LoadBalancerIngress, ServicePort};

fn dated(text: &str, seconds: i64) -> Service {
    let created = (seconds > 0).then_some(Timestamp { seconds, nanoseconds: 0 });
    Service { created, ..service(text, "10.96.0.10") }
}

fn change(claims: &mut Claims, before: Option<&Service>, after: Option<&Service>) -> Vec<String> {
    let mut dirty = BTreeSet::new();
    claims.change(before, after, &mut dirty);
    dirty.iter().map(|name| name.name().to_owned()).collect()
}

fn owner(claims: &Claims) -> Option<&str> {
    let at = FrontendAddr::Vip([10, 96, 0, 10].into(), 80);
    claims.owner(Family::V4, at, Protocol::Tcp).map(ObjectName::name)
}

#[test]
fn the_older_wins_then_the_name() {
    let (young, old, undated) = (dated("a", 200), dated("b", 100), dated("0", 0));
    let twin = dated("c", 100);
    let mut claims = Claims::default();
    assert_eq!((claims.len(), claims.is_empty()), (0, true));
    assert_eq!(change(&mut claims, None, Some(&undated)), [""; 0]);
    assert_eq!(owner(&claims), Some("0"));
    assert_eq!(change(&mut claims, None, Some(&young)), ["0"]);
    assert_eq!(owner(&claims), Some("a"));
    assert_eq!(change(&mut claims, None, Some(&twin)), ["0", "a"], "the losers hear of the new winner");
    assert_eq!(change(&mut claims, None, Some(&old)), ["0", "a", "c"]);
    assert_eq!(owner(&claims), Some("b"));
    assert_eq!((claims.len(), claims.is_empty()), (1, false), "all claim the same one");
    assert_eq!(change(&mut claims, Some(&young), None), [""; 0], "a loser that goes changes nothing");
    assert_eq!(change(&mut claims, Some(&old), None), ["0", "c"]);
    assert_eq!(owner(&claims), Some("c"));
    assert_eq!(change(&mut claims, Some(&twin), None), ["0"]);
    assert_eq!(change(&mut claims, Some(&undated), None), [""; 0]);
    assert_eq!(claims, Claims::default());
}

#[test]
fn all_claimants_are_known_in_line_with_their_fields() {
    let (young, old) = (dated("young", 200), dated("old", 100));
    let external = Service { external_ips: [Ok([10, 96, 0, 10].into())].into(), ..service("external", "10.96.0.11") };
    let node_port = with_node_port("node-port", 30080);
    let mut claims = Claims::default();
    for service in [&young, &old, &external, &node_port] {
        change(&mut claims, None, Some(service));
    }
    assert_eq!(claims.len(), 4, "three cluster IPs and a node port");
    let names = |at| claims.claimants(Family::V4, at, Protocol::Tcp).map(ObjectName::name).collect::<Vec<_>>();
    let vip = FrontendAddr::Vip([10, 96, 0, 10].into(), 80);
    assert_eq!(names(vip), ["old", "young", "external"]);
    assert_eq!(names(FrontendAddr::NodePort(30080)), ["node-port"]);
    assert_eq!(names(FrontendAddr::NodePort(30081)), [""; 0]);
    let field = |service, at, protocol| claiming_field(service, Family::V4, at, protocol);
    assert_eq!(field(&young, vip, Protocol::Tcp).as_deref(), Some("spec.clusterIP"));
    assert_eq!(field(&external, vip, Protocol::Tcp).as_deref(), Some("spec.externalIPs[0]"));
    assert_eq!(
        field(&node_port, FrontendAddr::NodePort(30080), Protocol::Tcp).as_deref(),
        Some("spec.ports[0].nodePort")
    );
    assert_eq!(field(&node_port, vip, Protocol::Tcp), None, "another port");
    assert_eq!(field(&young, vip, Protocol::Udp), None);
    assert_eq!(claiming_field(&young, Family::V6, vip, Protocol::Tcp), None);
}

#[test]
fn a_service_that_ages_passes_its_frontends_on() {
    let (a, b) = (dated("a", 100), dated("b", 200));
    let mut claims = Claims::default();
    change(&mut claims, None, Some(&a));
    change(&mut claims, None, Some(&b));
    assert_eq!(owner(&claims), Some("a"));
    // deleted and made again between two looks
    assert_eq!(change(&mut claims, Some(&a), Some(&dated("a", 300))), ["b"]);
    assert_eq!(owner(&claims), Some("b"));
}

#[test]
fn a_cluster_ip_beats_other_addresses_whatever_the_age() {
    let with_external = |text, seconds| Service {
        cluster_ip: Some(Ok([10, 96, 0, 99].into())),
        cluster_ips: [Ok([10, 96, 0, 99].into())].into(),
        external_ips: [Ok([10, 96, 0, 10].into())].into(),
        ..dated(text, seconds)
    };
    for (external, cluster) in [
        (with_external("a", 100), dated("b", 200)),
        (with_external("a", 0), dated("b", 0)),
        (with_external("a", 100), dated("b", 0)),
    ] {
        let mut claims = Claims::default();
        change(&mut claims, None, Some(&external));
        assert_eq!(owner(&claims), Some("a"));
        assert_eq!(change(&mut claims, None, Some(&cluster)), ["a"]);
        assert_eq!(owner(&claims), Some("b"));
        // the other order
        let mut turned = Claims::default();
        change(&mut turned, None, Some(&cluster));
        assert_eq!(change(&mut turned, None, Some(&external)), [""; 0]);
        assert_eq!(turned, claims);
        // it becomes the cluster IP of the first too, whose age counts then
        let both = Service { external_ips: [].into(), ..dated("a", 100) };
        change(&mut claims, Some(&external), Some(&both));
        assert_eq!(owner(&claims), Some("a"));
        change(&mut claims, Some(&both), Some(&external));
        assert_eq!(claims, turned);
        assert_eq!(change(&mut claims, Some(&cluster), None), ["a"]);
        assert_eq!(owner(&claims), Some("a"));
        change(&mut claims, Some(&external), None);
        assert_eq!(claims, Claims::default());
    }
}

#[test]
fn node_ports_are_claimed_per_family_and_protocol() {
    let with_port = |text, cluster_ip, protocol| Service {
        ports: [ServicePort { node_port: Ok(30_080), protocol: Ok(protocol), ..port("", 80) }].into(),
        ..service(text, cluster_ip)
    };
    let mut claims = Claims::default();
    for service in [
        with_port("four", "10.96.0.1", Protocol::Tcp),
        with_port("six", "fd00:10:96::1", Protocol::Tcp),
        with_port("udp", "10.96.0.2", Protocol::Udp),
    ] {
        assert_eq!(change(&mut claims, None, Some(&service)), [""; 0]);
    }
    let owner = |family, protocol| claims.owner(family, FrontendAddr::NodePort(30_080), protocol).cloned();
    assert_eq!(owner(Family::V4, Protocol::Tcp), Some(name("four")));
    assert_eq!(owner(Family::V6, Protocol::Tcp), Some(name("six")));
    assert_eq!(owner(Family::V4, Protocol::Udp), Some(name("udp")));
    assert_eq!(owner(Family::V6, Protocol::Udp), None);
}

#[test]
fn what_is_not_served_claims_nothing() {
    let mut claims = Claims::default();
    let foreign = Service { foreign_proxy: true, ..dated("a", 1) };
    assert_eq!(change(&mut claims, None, Some(&foreign)), [""; 0]);
    assert_eq!(claims, Claims::default());
    // and what stops being served gives its frontends up
    change(&mut claims, Some(&foreign), Some(&dated("a", 1)));
    change(&mut claims, None, Some(&dated("b", 2)));
    assert_eq!(change(&mut claims, Some(&dated("a", 1)), Some(&foreign)), ["b"]);
    assert_eq!(owner(&claims), Some("b"));
}

#[test]
fn a_service_shares_one_allocation_however_it_grows() {
    let mut claims = Claims::default();
    let small = dated("a", 1);
    let big = Service { ports: (80..90).map(|number| port(&number.to_string(), number)).collect(), ..dated("a", 1) };
    change(&mut claims, None, Some(&small));
    change(&mut claims, Some(&small), Some(&big));
    let first = claims.owners.values().next().unwrap();
    assert_eq!(claims.owners.len(), 10);
    assert!(claims.owners.values().all(|owner| Arc::ptr_eq(owner, first)));
}

/// Every service whose diagnostics change is returned, and never many of them.
#[test]
fn a_change_concerns_the_first_in_line() {
    let services: Vec<Service> =
        (0..40).map(|number| dated(&format!("s{number:02}"), 1 + i64::from(number % 5))).collect();
    let at = FrontendAddr::Vip([10, 96, 0, 10].into(), 80);
    let told = |claims: &Claims, present: &BTreeSet<usize>| -> Vec<(usize, String)> {
        let of = |index: &usize| {
            let standing = claims.standing(&services[*index].name, Family::V4, at, Protocol::Tcp);
            (*index, format!("{standing:?}"))
        };
        present.iter().map(of).collect()
    };
    let mut claims = Claims::default();
    let mut present = BTreeSet::new();
    let mut state = 1_usize;
    let mut most = 0;
    for _ in 0..2_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (state >> 33) % services.len();
        let before = told(&claims, &present);
        let comes = present.insert(index);
        if !comes {
            present.remove(&index);
        }
        let (old, new) = (Some(&services[index]).filter(|_| !comes), Some(&services[index]).filter(|_| comes));
        let dirty = change(&mut claims, old, new);
        let others = told(&claims, &present).into_iter().filter(|told| told.0 != index && !before.contains(told));
        for (other, _) in others {
            assert!(dirty.contains(&format!("s{other:02}")), "s{other:02} is not among {dirty:?}");
        }
        most = most.max(dirty.len());
        let owners = told(&claims, &present).into_iter().filter(|(_, told)| told == "Owner").count();
        assert_eq!(owners, usize::from(!present.is_empty()));
        let named = told(&claims, &present).into_iter().filter(|(_, told)| told.starts_with("LosesTo")).count();
        assert_eq!(named, NAMED.min(present.len().saturating_sub(1)));
    }
    assert_eq!(most, NAMED + 1);
}

#[test]
fn a_loser_that_goes_concerns_only_the_next_one_to_be_named() {
    let services: Vec<Service> = (1..=12).map(|number| dated(&format!("s{number:02}"), number)).collect();
    let mut claims = Claims::default();
    for service in &services {
        change(&mut claims, None, Some(service));
    }
    let mut goes = |number: usize| change(&mut claims, Some(&services[number - 1]), None);
    assert_eq!(goes(12), [""; 0], "the owner and eight losers before it stay as they are");
    assert_eq!(goes(5), ["s10"], "the ninth loser is the eighth now");
    assert_eq!(goes(10), ["s11"]);
    assert_eq!(goes(11), [""; 0], "nobody is behind it");
}

fn with_external(text: &str, address: [u8; 4], number: u16) -> Service {
    Service { ports: [port("", number)].into(), external_ips: [Ok(address.into())].into(), ..dated(text, 1) }
}

fn with_load_balancer(text: &str, address: [u8; 4], number: u16) -> Service {
    let ingress = LoadBalancerIngress { ip: Ok(address.into()), proxy_mode: false };
    Service { ports: [port("", number)].into(), ingress: [ingress].into(), ..dated(text, 500) }
}

fn with_node_port(text: &str, number: u16) -> Service {
    Service { ports: [ServicePort { node_port: Ok(number), ..port("", 81) }].into(), ..dated(text, 900) }
}

/// The older service with an external IP takes nothing of a load balancer's (CVE-2020-8554).
#[test]
fn a_load_balancer_address_beats_an_external_ip_whatever_the_age() {
    let (external, balanced) =
        (with_external("a", [203, 0, 113, 9], 80), with_load_balancer("b", [203, 0, 113, 9], 80));
    let at = FrontendAddr::Vip([203, 0, 113, 9].into(), 80);
    let owner = |claims: &Claims| claims.owner(Family::V4, at, Protocol::Tcp).map(|name| name.name().to_owned());
    let mut claims = Claims::default();
    change(&mut claims, None, Some(&external));
    assert_eq!(owner(&claims).as_deref(), Some("a"));
    assert_eq!(change(&mut claims, None, Some(&balanced)), ["a"]);
    assert_eq!(owner(&claims).as_deref(), Some("b"));
    let mut turned = Claims::default();
    change(&mut turned, None, Some(&balanced));
    change(&mut turned, None, Some(&external));
    assert_eq!(turned, claims);
    // An older load balancer is an equal.
    let older = Service { created: dated("c", 2).created, ..with_load_balancer("c", [203, 0, 113, 9], 80) };
    assert_eq!(change(&mut claims, None, Some(&older)), ["a", "b"]);
    assert_eq!(owner(&claims).as_deref(), Some("c"));
    change(&mut claims, Some(&older), None);
    assert_eq!(change(&mut claims, Some(&balanced), None), ["a"]);
    assert_eq!(owner(&claims).as_deref(), Some("a"));
    change(&mut claims, Some(&external), None);
    assert_eq!(claims, Claims::default());
}

/// Services that meet at one address of the node and one number.
fn at_the_node(node: [u8; 4]) -> [Service; 7] {
    let both = Service { ports: [ServicePort { node_port: Ok(30_080), ..port("", 30_080) }].into(), ..dated("own", 1) };
    [
        with_external("external", node, 30_080),
        with_external("external2", node, 30_080),
        with_load_balancer("balanced", node, 30_080),
        with_node_port("port", 30_080),
        with_node_port("port2", 30_080),
        with_node_port("other", 30_081),
        Service { external_ips: [Ok(node.into())].into(), ..both },
    ]
}

/// The diagnostics of each stored service about its own claims.
fn told_at(
    claims: &Claims,
    services: &[Service],
    present: &BTreeSet<usize>,
    vip: FrontendAddr,
) -> Vec<(usize, String)> {
    let of = |index: &usize| {
        let name = &services[*index].name;
        let standing = |at| claims.standing(name, Family::V4, at, Protocol::Tcp);
        let vip = [0, 1, 2, 6].contains(index).then(|| standing(vip));
        let node_port = [3, 4, 6].contains(index).then(|| standing(FrontendAddr::NodePort(30_080)));
        let serves = node_port == Some(Standing::Owner);
        let shadow = claims.shadow(name, Family::V4, 30_080, Protocol::Tcp).filter(|_| serves);
        (*index, format!("{vip:?} {node_port:?} {shadow:?}"))
    };
    present.iter().map(of).collect()
}

/// Whatever comes, goes or is an address of the node in whatever order: all who win or lose by it are named.
#[test]
fn node_ports_meet_the_addresses_of_the_node() {
    let node = [192, 0, 2, 10];
    let services = at_the_node(node);
    let vip = FrontendAddr::Vip(node.into(), 30_080);
    let mut claims = Claims::default();
    let (mut present, mut is_address) = (BTreeSet::new(), false);
    let mut state = 1_usize;
    let mut met = BTreeSet::new();
    for _ in 0..3_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (state >> 33) % (services.len() + 1);
        let before = told_at(&claims, &services, &present, vip);
        let dirty: Vec<String> = if let Some(service) = services.get(index) {
            let comes = present.insert(index);
            if !comes {
                present.remove(&index);
            }
            change(&mut claims, Some(service).filter(|_| !comes), Some(service).filter(|_| comes))
        } else {
            is_address = !is_address;
            let addresses = if is_address { [IpAddr::from(node)].into() } else { BTreeSet::new() };
            claims.serve_node_ports_at(addresses).iter().map(|name| name.name().to_owned()).collect()
        };
        let after = told_at(&claims, &services, &present, vip);
        for (other, _) in after.iter().filter(|told| told.0 != index && !before.contains(told)) {
            assert!(dirty.iter().any(|name| name == services[*other].name.name()), "{other} is not among {dirty:?}");
        }
        // One alone has the address: a load balancer, a node port, an external IP.
        let is_there = |indices: &[usize]| indices.iter().any(|index| present.contains(index));
        let owner = claims.owner(Family::V4, vip, Protocol::Tcp).map(|name| name.name());
        let wanted = match () {
            () if is_there(&[2]) => &["balanced"][..],
            () if is_address && is_there(&[3, 4, 6]) && is_there(&[0, 1, 6]) => &["port", "port2", "own"],
            () if is_there(&[0, 1, 6]) => &["external", "external2", "own"],
            () => &[],
        };
        assert_eq!(owner.is_some(), !wanted.is_empty());
        assert!(owner.is_none_or(|owner| wanted.contains(&owner)), "{owner:?}");
        met.insert((owner.map(str::to_owned), is_address));
    }
    assert!(met.len() >= 9, "{met:?}");
    claims.serve_node_ports_at(BTreeSet::new());
    present.iter().for_each(|index| drop(change(&mut claims, Some(&services[*index]), None)));
    assert_eq!(claims, Claims::default());
}
