//! Mode userspace: changes of mode and configuration under connections, established connections, endpoints that fail, what reaches a
//! listener directly, and upstream's chains.

mod bind;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ferry_kernel::iptables::Backend;
use ferry_lab::iptables;
use ferry_lab::objects::{EndpointCondition, at_cluster_ip, at_node_port};
use ferry_lab::patience::{slowly, until};
use ferry_lab::probe::{Echo, Hammer, Held};
use ferry_lab::proxy::{NFTABLES, ProxyConfig, USERSPACE};
use ferry_lab::{Family, Lab, LabMachine, Manifests, ProbeOutcome, Protocol, Stage, TestService};
use socket2::{Domain, Socket, Type};

use crate::health::{edge, is_told, one};
use crate::support::{EXECUTABLE, alone, folder};

/// Below TCP's retransmission timeout of 1 s, so that a lost packet is detected.
const NO_RETRY: Duration = Duration::from_millis(900);
/// Changes of the configuration.
const CHANGES: usize = 10;
/// The port of a health check.
const HEALTH_CHECK: u16 = 31061;
/// The port of a server that holds connections, on pods.
const ECHO: u16 = 7000;
/// Ports from which a client connects to two Services, outside the range of those that the kernel gives out.
const CLIENT_PORTS: [u16; 3] = [20_001, 20_002, 20_003];

fn config(more: &str) -> ProxyConfig {
    ProxyConfig { mode: USERSPACE, more: more.to_owned(), ..ProxyConfig::default() }
}

fn own(settings: &str) -> ProxyConfig {
    config(&format!("---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n{settings}\n"))
}

fn stage<'a>(lab: &'a Lab, name: &str, config: ProxyConfig, manifests: &Manifests) -> Stage<'a> {
    Stage::new(lab, EXECUTABLE, &folder(name), config, manifests)
}

fn busy() -> Manifests {
    Manifests::new().with(TestService::new("busy", 46).node_port(30046), &[LabMachine::PodA, LabMachine::Far])
}

fn hammers(lab: &Lab) -> Vec<Hammer> {
    let of = |family| {
        let client = |place| lab.from(place).patience(NO_RETRY);
        [
            client(LabMachine::PodB).hammer(Protocol::Tcp, at_cluster_ip(family, 46)),
            client(LabMachine::Client).hammer(Protocol::Tcp, at_node_port(family, 30046)),
        ]
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

/// Each connection was answered. Those that were not are shown with the time at which they ended, since the first connection of all.
fn assert_unharmed(what: &str, hammers: Vec<Hammer>) {
    let of_hammers: Vec<_> = hammers.into_iter().map(Hammer::stop).collect();
    let outcomes =
        || of_hammers.iter().enumerate().flat_map(|(hammer, outcomes)| outcomes.iter().map(move |o| (hammer, o)));
    let begun = outcomes().map(|(_, (at, _))| *at).min();
    let failed = outcomes().filter(|(_, (_, outcome))| !matches!(outcome, ProbeOutcome::Answered(_)));
    let failed: Vec<_> =
        failed.map(|(hammer, (at, outcome))| (hammer, begun.map(|begun| *at - begun), outcome)).collect();
    println!("{what}: {} connections, {} failed", outcomes().count(), failed.len());
    assert!(outcomes().count() > 100 && failed.is_empty(), "{failed:?}");
}

/// A service whose endpoints hold connections.
fn held_by(places: &[LabMachine]) -> Manifests {
    let service = TestService::new("held", 47);
    let endpoints = service.endpoints(ECHO, places);
    Manifests::new().with_endpoints(service, endpoints)
}

/// A connection from an address and port, which others may use, too.
fn connected(from: SocketAddr, to: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("an option of every socket");
    socket.bind(&from.into()).expect("binding to an address of the place");
    socket.connect(&to.into()).expect("a connection to the first Service");
    socket
}

fn echo(lab: &Lab, place: LabMachine) -> Echo {
    let at = Family::ALL.map(|family| SocketAddr::new(place.address(family), ECHO));
    Echo::start(lab.host(place), &at)
}

/// Waits until three connections of each family to the Service `held` are relayed to this endpoint.
///
/// A client is connected before the relay chooses an endpoint: without the wait, a change made after it could move the connection.
fn until_three_are_relayed_to(place: LabMachine, stage: &Stage<'_>) {
    for family in Family::ALL {
        let endpoint = format!("endpoint=\"{}\"", SocketAddr::new(place.address(family), ECHO));
        let labels = [endpoint.as_str(), "service=\"held\""];
        let open = || stage.proxy.metric("kubeproxy_userspace_endpoint_open_connections", &labels);
        until("three connections to an endpoint", slowly(Duration::from_secs(10)), || open() == 3.0);
    }
}

#[test]
fn changes_of_mode_and_settings_fail_no_new_connection() {
    let (_turn, lab) = (alone(), Lab::new());
    let mut stage = stage(&lab, "userspace-modes", config(""), &busy());
    let hammers = hammers(&lab);
    for change in 0..CHANGES {
        let runs = stage.proxy.log().matches("Starting kube-proxy").count();
        let changed = match change % 5 {
            0 => ProxyConfig { mode: NFTABLES, ..ProxyConfig::default() },
            1 | 3 => config(""),
            2 => ProxyConfig::iptables(),
            _ => own(&format!("userspaceUDPTimeout: {}ms", 300 + change)),
        };
        stage.reconfigure(&changed);
        stage.proxy.wait_for("a new run", |proxy| proxy.log().matches("Starting kube-proxy").count() > runs);
        stage.proxy.wait_until_synced(&Family::ALL);
        std::thread::sleep(slowly(Duration::from_millis(300)));
    }
    assert_unharmed("changes of mode userspace", hammers);
}

/// Load balancers ask the proxy itself, in both ways: the port of a health check is no frontend.
#[test]
fn health_checks_of_load_balancers_are_answered() {
    use EndpointCondition::{Ready, Terminating};
    let (_turn, lab) = (alone(), Lab::new());
    let service = edge("edge", 60, HEALTH_CHECK);
    for way in ["redirect", "bind"] {
        let manifests = one(&service, &[(LabMachine::PodA, Ready), (LabMachine::Far, Ready)]);
        let name = format!("userspace-health-{way}");
        let mut stage = stage(&lab, &name, own(&format!("userspaceWay: {way}")), &manifests);
        for (condition, count) in [(Ready, 1), (Terminating, 0), (Ready, 1)] {
            stage.set(&one(&service, &[(LabMachine::PodA, condition), (LabMachine::Far, Ready)]));
            for family in Family::ALL {
                is_told(&lab, at_node_port(family, HEALTH_CHECK), "edge", count);
            }
        }
    }
}

#[test]
fn an_established_connection_outlives_its_endpoint_in_the_slices_and_new_ones_go_elsewhere() {
    let (_turn, lab) = (alone(), Lab::new());
    let _servers = [echo(&lab, LabMachine::PodA), echo(&lab, LabMachine::Far)];
    let mut stage =
        stage(&lab, "userspace-held", own("userspaceTerminationGracePeriod: 1s"), &held_by(&[LabMachine::PodA]));
    let to = Family::ALL.map(|family| at_cluster_ip(family, 47));
    let held = Held::open(lab.host(LabMachine::PodB), &to, 3);
    until_three_are_relayed_to(LabMachine::PodA, &stage);
    stage.set(&held_by(&[LabMachine::Far]));
    let begun = Instant::now();
    let now = Held::open(lab.host(LabMachine::PodB), &to, 3);
    until_three_are_relayed_to(LabMachine::Far, &stage);
    // The grace ends the old ones, and no others.
    let open = || stage.proxy.metric("kubeproxy_userspace_open_connections", &["service=\"held\""]);
    assert_eq!(open(), 12.0, "{}", stage.proxy.get(10249, "/metrics").unwrap_or_default());
    until("the end of the grace", slowly(Duration::from_secs(10)), || open() == 6.0);
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
    until("a client notices with its next exchange", slowly(Duration::from_secs(10)), || held.is_broken());
    let (held, now) = (held.finish(), now.finish());
    assert!(held.exchanges > 0 && !held.broken.is_empty(), "{held:?}");
    assert!(now.exchanges > 0 && now.broken.is_empty(), "{now:?}");
}

/// Readiness, terminating state or a change of policy is no end: only an endpoint that leaves the slices loses its connections.
#[test]
fn connections_of_an_endpoint_that_is_listed_outlive_the_grace_period() {
    for (way, name) in [("", "userspace-listed"), ("userspaceWay: bind\n", "userspace-listed-bind")] {
        let (_turn, lab) = (alone(), Lab::new());
        let _servers = [echo(&lab, LabMachine::PodA), echo(&lab, LabMachine::Far)];
        let settings = format!("{way}userspaceTerminationGracePeriod: 1s");
        let mut stage = stage(&lab, name, own(&settings), &held_by(&[LabMachine::PodA]));
        let to = Family::ALL.map(|family| at_cluster_ip(family, 47));
        let held = Held::open(lab.host(LabMachine::PodB), &to, 3);
        let at_pod = |family| format!("endpoint=\"{}\"", SocketAddr::new(LabMachine::PodA.address(family), ECHO));
        until_three_are_relayed_to(LabMachine::PodA, &stage);
        let service = TestService::new("held", 47);
        let far_and = |service: &TestService, condition| {
            let endpoints = service.endpoints(ECHO, &[LabMachine::Far]).and(LabMachine::PodA, condition);
            Manifests::new().with_endpoints(service.clone(), endpoints)
        };
        let stays = |stage: &mut Stage<'_>, manifests: &Manifests, step: &str| {
            stage.set(manifests);
            std::thread::sleep(slowly(Duration::from_secs(2)));
            assert!(!held.is_broken(), "{way}{step}");
        };
        for condition in [EndpointCondition::Unready, EndpointCondition::Terminating] {
            stays(&mut stage, &far_and(&service, condition), &format!("{condition:?}"));
        }
        // No frontend leads to any endpoint.
        let unready = service.endpoints(ECHO, &[]).and(LabMachine::PodA, EndpointCondition::Unready);
        stays(&mut stage, &Manifests::new().with_endpoints(service.clone(), unready), "the only endpoint is unready");
        stays(&mut stage, &held_by(&[LabMachine::PodA]), "the only endpoint is ready again");
        for family in Family::ALL {
            let endpoint = at_pod(family);
            for direction in ["direction=\"to_endpoints\"", "direction=\"to_clients\""] {
                let bytes = stage.proxy.metric("kubeproxy_userspace_endpoint_bytes_total", &[&endpoint, direction]);
                assert!(bytes > 0.0, "{way}{family} {endpoint} {direction}");
            }
        }
        let local = service.clone().internal_local();
        stays(&mut stage, &far_and(&local, EndpointCondition::Ready), "policy Local");
        stays(&mut stage, &far_and(&local, EndpointCondition::Unready), "policy Local without endpoints here");
        stays(&mut stage, &far_and(&local, EndpointCondition::Ready), "policy Local with its endpoint again");
        stage.set(&held_by(&[LabMachine::Far]));
        until("the end of the grace", slowly(Duration::from_secs(10)), || held.is_broken());
        held.finish();
    }
}

/// Zero is not the default, and no period that never ends.
#[test]
fn without_a_grace_period_connections_of_a_removed_endpoint_are_cut_at_once() {
    for (way, name) in [("", "userspace-cut"), ("userspaceWay: bind\n", "userspace-cut-bind")] {
        let (_turn, lab) = (alone(), Lab::new());
        let _servers = [echo(&lab, LabMachine::PodA), echo(&lab, LabMachine::Far)];
        let settings = format!("{way}userspaceTerminationGracePeriod: 0s");
        let mut stage = stage(&lab, name, own(&settings), &held_by(&[LabMachine::PodA]));
        let to = Family::ALL.map(|family| at_cluster_ip(family, 47));
        let of_families = to.map(|to| Held::open(lab.host(LabMachine::PodB), &[to], 1));
        let open = || stage.proxy.metric("kubeproxy_userspace_endpoint_open_connections", &["service=\"held\""]);
        until("both connections", slowly(Duration::from_secs(5)), || open() == 2.0);
        stage.set(&held_by(&[LabMachine::Far]));
        let new = Held::open(lab.host(LabMachine::PodB), &to, 1);
        for held in of_families {
            until("the cut", slowly(Duration::from_secs(1)), || held.is_broken());
            held.finish();
        }
        let new = new.finish();
        assert!(new.broken.is_empty(), "{way}{new:?}");
    }
}

#[test]
fn connections_from_one_port_of_a_client_reach_two_services_at_once() {
    let (_turn, lab) = (alone(), Lab::new());
    let _server = echo(&lab, LabMachine::PodA);
    let manifests =
        held_by(&[LabMachine::PodA]).with(TestService::new("second", 48), &[LabMachine::PodA, LabMachine::Far]);
    let _stage = stage(&lab, "userspace-one-port", config(""), &manifests);
    for (family, port) in Family::ALL.into_iter().flat_map(|family| CLIENT_PORTS.map(|port| (family, port))) {
        let source = SocketAddr::new(LabMachine::PodB.address(family), port);
        let first = lab.host(LabMachine::PodB).run(move || connected(source, at_cluster_ip(family, 47)));
        let second = lab.from(LabMachine::PodB).bound_to_port(source).tcp(at_cluster_ip(family, 48), 1);
        assert!(second.all_answered(), "from {source}: {second:?}");
        drop(first);
    }
}

#[test]
fn an_endpoint_that_refuses_costs_no_connection_and_is_counted() {
    let (_turn, lab) = (alone(), Lab::new());
    // Nobody listens there on pod-b.
    let _server = echo(&lab, LabMachine::PodA);
    let stage = stage(&lab, "userspace-refusing", config(""), &held_by(&[LabMachine::PodA, LabMachine::PodB]));
    let to = Family::ALL.map(|family| at_cluster_ip(family, 47));
    let held = Held::open(lab.host(LabMachine::Far), &to, 10);
    std::thread::sleep(slowly(Duration::from_millis(100)));
    let held = held.finish();
    assert!(held.broken.is_empty(), "{held:?}");
    for family in Family::ALL {
        let endpoint = format!("endpoint=\"{}\"", SocketAddr::new(LabMachine::PodB.address(family), ECHO));
        assert!(stage.proxy.metric("kubeproxy_userspace_endpoint_failures_total", &[&endpoint]) >= 1.0, "{family}");
        let family = format!("ip_family=\"{family}\"");
        let labels = ["service=\"held\"", "namespace=\"demo\"", "protocol=\"TCP\"", &family];
        assert_eq!(stage.proxy.metric("kubeproxy_userspace_connections_total", &labels), 10.0);
        assert!(stage.proxy.metric("kubeproxy_userspace_retries_total", &labels) >= 1.0);
        let bytes = |direction: &str| {
            let labels = [labels[0], labels[1], labels[2], labels[3], direction];
            stage.proxy.metric("kubeproxy_userspace_bytes_total", &labels)
        };
        assert!(bytes("direction=\"to_endpoints\"") > 0.0 && bytes("direction=\"to_clients\"") > 0.0);
    }
}

/// The relay reads no protocol: whatever a client sends, or doesn't, it has one connection for as long as it likes.
#[test]
fn silent_clients_have_one_connection_each_up_to_the_limit_and_stop_no_others() {
    const LIMIT: usize = 3;
    let (_turn, lab) = (alone(), Lab::new());
    let _server = echo(&lab, LabMachine::PodA);
    let manifests = held_by(&[LabMachine::PodA]).with(TestService::new("web", 48), &[LabMachine::PodA]);
    let settings = own(&format!("userspaceMaxConnectionsPerPort: {LIMIT}"));
    let stage = stage(&lab, "userspace-silent", settings, &manifests);
    let client = lab.host(LabMachine::PodB);
    for family in Family::ALL {
        let at = at_cluster_ip(family, 47);
        let connected = move || TcpStream::connect(at).expect("a listener accepts");
        let silent: Vec<TcpStream> = client.run(move || (0..LIMIT - 1).map(|_| connected()).collect());
        let mut garbled = client.run(connected);
        garbled.write_all(&[0xff; 4096]).expect("room in the buffers");
        let of_family = format!("ip_family=\"{family}\"");
        let labels = ["service=\"held\"", &of_family];
        let open = || stage.proxy.metric("kubeproxy_userspace_open_connections", &labels);
        until("all connections", slowly(Duration::from_secs(5)), || open() == LIMIT as f64);
        let refused = || {
            let labels = [labels[0], labels[1], "reason=\"limit\""];
            stage.proxy.metric("kubeproxy_userspace_refused_total", &labels)
        };
        assert_eq!(refused(), 0.0, "{family}");
        let one_more = lab.from(LabMachine::PodB).patience(NO_RETRY).tcp(at, 1);
        assert!(one_more.all(&ProbeOutcome::Reset), "{family}: {one_more}");
        assert_eq!((refused(), open()), (1.0, LIMIT as f64), "{family}");
        let other = lab.from(LabMachine::PodB).patience(NO_RETRY).tcp(at_cluster_ip(family, 48), 4 * LIMIT);
        assert!(other.all_answered(), "{family}: {other}");
        drop((silent, garbled));
        until("their end", slowly(Duration::from_secs(5)), || open() == 0.0);
        let again = Held::open(client, &[at], LIMIT);
        until("all connections", slowly(Duration::from_secs(5)), || open() == LIMIT as f64);
        let again = again.finish();
        assert!(again.broken.is_empty(), "{family}: {again}");
    }
}

#[test]
fn a_terminated_proxy_lets_connections_end_for_a_while() {
    let (_turn, lab) = (alone(), Lab::new());
    let _server = echo(&lab, LabMachine::PodA);
    let config = own("userspaceDrainTimeout: 3s");
    let mut stage = stage(&lab, "userspace-drain", config, &held_by(&[LabMachine::PodA]));
    let to = [at_cluster_ip(Family::V4, 47)];
    // With an open connection it takes as long as it may, without one no time.
    let held = Held::open(lab.host(LabMachine::PodB), &to, 1);
    let [at] = to;
    let until_refused = lab.host(LabMachine::PodB).thread(move || {
        until("the end of accepting", slowly(Duration::from_secs(10)), || TcpStream::connect(at).is_err());
        Instant::now()
    });
    let (_, long) = stage.terminate();
    let ended = Instant::now();
    let refused = until_refused.join().expect("it is refused");
    assert!(
        refused + Duration::from_secs(2) < ended,
        "refused {:?} before the end",
        ended.checked_duration_since(refused)
    );
    let fate = held.finish();
    assert!(fate.exchanges > 0 && long >= Duration::from_secs(3), "{long:?} {fate:?}");
    assert!(long < Duration::from_secs(3) + slowly(Duration::from_secs(2)), "it never ends by itself: {long:?}");
    stage.start();
    let (_, short) = stage.terminate();
    assert!(short < Duration::from_secs(2), "{short:?}");
}

#[test]
fn a_listener_is_not_reached_by_its_own_port() {
    let (_turn, lab) = (alone(), Lab::new());
    let manifests = Manifests::new()
        .with(TestService::new("web", 48), &[LabMachine::PodA])
        .with(TestService::new("dns", 49).protocols(&[Protocol::Udp]), &[LabMachine::PodA]);
    let stage = stage(&lab, "userspace-direct", config("portRange: 61000-61003"), &manifests);
    assert!(lab.from(LabMachine::Client).ask(Protocol::Udp, at_cluster_ip(Family::V4, 49), 1).all_answered());
    let sockets = stage.node().sh("ss", &["-Hlnut4"]);
    let listening = |protocol: &str| -> Vec<u16> {
        let lines = sockets.lines().filter(|line| line.starts_with(protocol));
        let ports = lines.filter_map(|line| line.split_whitespace().nth(4)?.rsplit_once(':')?.1.parse().ok());
        ports.filter(|port| (61_000..=61_003).contains(port)).collect()
    };
    for (protocol, name, count) in [(Protocol::Tcp, "tcp", 2), (Protocol::Udp, "udp", 1)] {
        let ports = listening(name);
        assert_eq!(ports.len(), count, "{sockets}");
        for port in ports {
            let at = SocketAddr::new(ferry_lab::lab::node_addresses(Family::V4)[0], port);
            let tally = lab.from(LabMachine::Client).ask(protocol, at, 1);
            assert_eq!(tally.0, [ProbeOutcome::Refused], "{at} {protocol}");
        }
    }
}

#[test]
fn chains_of_upstreams_mode_are_removed_in_both_families_and_variants() {
    let (_turn, lab) = (alone(), Lab::new());
    let node = lab.host(LabMachine::Node);
    let tools = Family::ALL.map(|family| Backend::ALL.map(|variant| (family, iptables::tool(variant, family))));
    let tools = tools.as_flattened();
    for (family, tool) in tools {
        for (table, chain, from) in [
            ("nat", "KUBE-PORTALS-CONTAINER", "PREROUTING"),
            ("nat", "KUBE-PORTALS-HOST", "OUTPUT"),
            ("nat", "KUBE-NODEPORT-CONTAINER", "PREROUTING"),
            ("nat", "KUBE-NODEPORT-HOST", "OUTPUT"),
            ("filter", "KUBE-NODEPORT-NON-LOCAL", "INPUT"),
        ] {
            node.sh(tool, &["-t", table, "-N", chain]);
            node.sh(tool, &["-t", table, "-I", from, "-j", chain]);
        }
        let (portal, port) = (at_cluster_ip(*family, 46).ip().to_string(), ["--to-ports", "40000"]);
        let rule = ["-t", "nat", "-A", "KUBE-PORTALS-CONTAINER", "-d", &portal, "-p", "tcp", "-j", "REDIRECT"];
        node.sh(tool, &[&rule[..], &port].concat());
        // Another program's chain of nearly the same name.
        node.sh(tool, &["-t", "nat", "-N", "KUBE-PORTALS"]);
        node.sh(tool, &["-t", "nat", "-A", "PREROUTING", "-j", "KUBE-PORTALS"]);
    }
    let mut stage = stage(&lab, "userspace-portals", config(""), &busy());
    // Five chains of each variant, for each family.
    let removed = "domain=\"iptables chains of mode userspace\" objects=10";
    stage.proxy.wait_for("the removal of upstream's chains", |proxy| proxy.log().matches(removed).count() == 2);
    for (family, tool) in tools {
        let rules = node.sh(&format!("{tool}-save"), &[]);
        let chains: Vec<&str> = rules.lines().filter(|line| line.contains("KUBE-")).collect();
        assert_eq!(chains, [":KUBE-PORTALS - [0:0]", "-A PREROUTING -j KUBE-PORTALS"], "{tool}");
        assert!(lab.from(LabMachine::PodB).tcp(at_cluster_ip(*family, 46), 3).all_answered(), "{family}");
    }
}
