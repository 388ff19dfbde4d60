//! Mode iptables: choice of the variant, rules besides services, repair, and foreign rules.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferry_lab::iptables::{self, Backend, HINT, IptablesRules};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::{until, within};
use ferry_lab::probe::{Echo, Held};
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Checks, Family, Host, Lab, LabMachine, Manifests, SeenSource, Stage, TestService};
use socket2::{Domain, Socket, Type};

use crate::support::{EXECUTABLE, alone, folder};

const ALL_PODS: [LabMachine; 3] = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
const ALL_ENDPOINTS: [&str; 3] = ["pod-a:8080", "pod-b:8080", "far:8080"];
const REPAIRS: &str = "kubeproxy_engine_repairs_total";
const RUNS: &str = "kubeproxy_engine_tool_runs_total";
/// Time limit of repairs.
const LIMIT: Duration = Duration::from_millis(1500);
const TABLES: [&str; 3] = ["mangle", "filter", "nat"];
/// Port of metrics, on loopback only.
const METRICS: u16 = 10249;

fn manifests() -> Manifests {
    Manifests::new()
        .with(TestService::new("web", 80).node_port(30080), &ALL_PODS)
        .with(TestService::new("edge", 81).external_ip(81).external_local(), &ALL_PODS)
        .with(
            TestService::new("ranges", 82).load_balancer(182).source_ranges(&["203.0.113.0/24", "fd00:cc::/64"]),
            &[LabMachine::PodA],
        )
        .with(TestService::new("sticky", 83).affinity(600), &ALL_PODS)
        .without_endpoints(TestService::new("empty", 84).node_port(30084).external_ip(84))
}

/// Starts a proxy beside a kubelet with this variant.
fn beside<'a>(lab: &'a Lab, backend: Backend, name: &str, more: &str) -> Stage<'a> {
    iptables::hint(lab.host(LabMachine::Node), backend);
    start(lab, &format!("iptables-{name}-{}", backend.name()), more)
}

fn start<'a>(lab: &'a Lab, name: &str, more: &str) -> Stage<'a> {
    let config = ProxyConfig { more: more.to_owned(), ..ProxyConfig::iptables() };
    let mut stage = Stage::new(lab, EXECUTABLE, &folder(name), config, &manifests());
    stage.proxy.wait_until_synced(&Family::ALL);
    stage
}

/// The variants with rules of a proxy.
fn variants(node: &Host) -> Vec<Backend> {
    Backend::ALL.into_iter().filter(|backend| !IptablesRules::of(node, *backend).of_proxy().is_empty()).collect()
}

fn rules_of(node: &Host, backend: Backend, family: Family, table: &str, chain: &str) -> String {
    IptablesRules::of(node, backend).rules(family, table, chain).join("\n")
}

#[test]
fn the_kubelets_variant_is_taken() {
    let _turn = alone();
    for backend in Backend::ALL {
        let lab = Lab::new();
        let stage = beside(&lab, backend, "hint", "");
        assert_eq!(variants(stage.node()), [backend], "{}", stage.proxy.log());
        let log = stage.proxy.log();
        assert!(log.lines().any(|line| line.contains(HINT)), "the reason isn't told:\n{log}");
    }
}

#[test]
fn without_a_hint_the_canary_decides() {
    let _turn = alone();
    for backend in Backend::ALL {
        let lab = Lab::new();
        for family in Family::ALL {
            iptables::run(lab.host(LabMachine::Node), backend, family, "-t mangle -N KUBE-KUBELET-CANARY");
        }
        let stage = start(&lab, &format!("iptables-canary-{}", backend.name()), "");
        assert_eq!(variants(stage.node()), [backend], "{}", stage.proxy.log());
    }
}

#[test]
fn without_a_kubelet_rules_decide() {
    let _turn = alone();
    for backend in Backend::ALL {
        let lab = Lab::new();
        let node = lab.host(LabMachine::Node);
        for address in ["192.0.2.77", "192.0.2.78", "192.0.2.79"] {
            iptables::run(node, backend, Family::V4, &format!("-A INPUT -s {address} -j DROP"));
        }
        let stage = start(&lab, &format!("iptables-rules-{}", backend.name()), "");
        assert_eq!(variants(stage.node()), [backend], "{}", stage.proxy.log());
    }
}

#[test]
fn rules_in_both_variants_are_warned_of() {
    let _turn = alone();
    let lab = Lab::new();
    let node = lab.host(LabMachine::Node);
    for (backend, number) in [(Backend::Nft, 1), (Backend::Legacy, 3)] {
        for last in 0..number {
            iptables::run(node, backend, Family::V4, &format!("-A INPUT -s 192.0.2.{last} -j DROP"));
        }
    }
    let stage = start(&lab, "iptables-both", "");
    assert_eq!(variants(node), [Backend::Legacy], "{}", stage.proxy.log());
    let log = stage.proxy.log();
    let warned = log.lines().any(|line| line.starts_with('W') && line.contains("legacy") && line.contains("nft"));
    assert!(warned, "no warning:\n{log}");
}

#[test]
fn damage_is_mended_and_counted() {
    let _turn = alone();
    for backend in Backend::ALL {
        let lab = Lab::new();
        let mut stage = beside(&lab, backend, "damage", "");
        let node = lab.host(LabMachine::Node);
        // An engine that reads between two of the commands repairs one Service before the others.
        let rules = || IptablesRules::of(node, backend).sorted_dispatch();
        let intact = rules();
        let mut checks = Checks::new();
        let mut worst = (Duration::ZERO, "");
        for family in Family::ALL {
            for (what, commands) in damages(&intact, family) {
                // a new process has no memory of earlier repairs, and so doesn't take this test for a second writer
                stage.restart();
                let before = stage.proxy.metric(REPAIRS, &[]);
                for command in &commands {
                    iptables::run(node, backend, family, command);
                }
                let (begun, mut now) = (Instant::now(), IptablesRules::default());
                let mended = within(LIMIT, || {
                    now = rules();
                    now == intact
                });
                checks.that(mended, || {
                    format!("{} {family}, {what}: not mended\n{}", backend.name(), intact.difference(&now))
                });
                if mended && begun.elapsed() > worst.0 {
                    worst = (begun.elapsed(), what);
                }
                // the metric counts it only when the engine's sync pass ends, after the commit
                let counted = !mended || within(LIMIT, || stage.proxy.metric(REPAIRS, &[]) > before);
                checks.that(counted, || format!("{} {family}, {what}: mended, but not counted", backend.name()));
            }
        }
        println!("{}: damage mended: worst {:?} ({})", backend.name(), worst.0, worst.1);
    }
}

/// Foreign changes of a family's rules: description, and arguments of the tool.
fn damages(intact: &IptablesRules, family: Family) -> Vec<(&'static str, Vec<String>)> {
    let chain = |class: &str| {
        let mut names = intact.names(family, "nat").filter(|name| name.starts_with(class));
        names.next().expect("a chain of this class").to_owned()
    };
    let (service, endpoint) = (chain("KUBE-SVC-"), chain("KUBE-SEP-"));
    let all = |what: &str| TABLES.map(|table| format!("-t {table} {what}"));
    vec![
        ("all rules flushed", all("-F").to_vec()),
        // but the kubelet's hint
        ("everything deleted", [&all("-F")[..], &all("-X")[1..]].concat()),
        ("the rules of nat flushed", vec!["-t nat -F".to_owned()]),
        ("a service's chain flushed", vec![format!("-t nat -F {service}")]),
        ("an endpoint's rule deleted", vec![format!("-t nat -D {endpoint} 2")]),
        ("a dispatch rule deleted", vec!["-t nat -D KUBE-SERVICES 1".to_owned()]),
        ("all dispatch rules flushed", vec!["-t nat -F KUBE-SERVICES".to_owned()]),
        ("a refusal deleted", vec!["-t filter -D KUBE-EXTERNAL-SERVICES 1".to_owned()]),
        ("a jump deleted", vec!["-t filter -D FORWARD 1".to_owned()]),
        ("a strange rule inserted", vec!["-t nat -I KUBE-SERVICES -j RETURN".to_owned()]),
        ("a strange rule appended", vec![format!("-t nat -A {service} -j RETURN")]),
        ("the canary deleted", vec!["-t mangle -X KUBE-PROXY-CANARY".to_owned()]),
    ]
}

#[test]
fn connections_survive_a_flush_and_new_ones_are_served_again() {
    let _turn = alone();
    for backend in Backend::ALL {
        let lab = Lab::new();
        let node = lab.host(LabMachine::Node);
        let mut stage = beside(&lab, backend, "flush", "");
        let at = Family::ALL.map(|family| SocketAddr::new(LabMachine::Far.address(family), 7777));
        let _echo = Echo::start(lab.host(LabMachine::Far), &at);
        let held = TestService::new("held", 85).node_port(30085).external_ip(85);
        let endpoints = held.endpoints(7777, &[LabMachine::Far]);
        stage.set(&manifests().with_endpoints(held, endpoints));
        // without any user the kernel gives up tracking connections, and translating them; on a node there are others
        let track = "chain tracked { type filter hook forward priority -300; ct state established counter; }";
        ferry_lab::nft::load(node, &format!("table inet stranger {{\n{track}\n}}\n"));
        let to = Family::ALL.map(|family| [at_node_port(family, 30085), at_external_ip(family, 85)]).concat();
        let held = Held::open(lab.host(LabMachine::Client), &to, 4);
        for family in Family::ALL {
            for table in TABLES {
                iptables::run(node, backend, family, &format!("-t {table} -F"));
            }
        }
        let begun = Instant::now();
        for family in Family::ALL {
            let client = lab.from(LabMachine::Client).patience(Duration::from_millis(50));
            until("a service answers again", LIMIT * 2, || client.tcp(at_cluster_ip(family, 80), 1).all_answered());
        }
        println!("{}: flushed, served again in both families after {:?}", backend.name(), begun.elapsed());
        sleep(Duration::from_millis(300));
        let fate = held.finish();
        assert!(fate.broken.is_empty() && fate.exchanges > 0, "{}: {fate}", backend.name());
    }
}

#[test]
fn a_restart_writes_nothing() {
    let _turn = alone();
    for backend in Backend::ALL {
        let lab = Lab::new();
        let mut stage = beside(&lab, backend, "restart", "");
        let node = lab.host(LabMachine::Node);
        let (before, generation) = (IptablesRules::of(node, backend), ferry_lab::nft::generation(node));
        for _ in 0..2 {
            stage.restart();
            // what it might do a moment later counts too
            sleep(Duration::from_millis(500));
            let log = stage.proxy.log();
            assert_eq!(ferry_lab::nft::generation(node), generation, "{}\n{log}", backend.name());
            let runs = stage.proxy.samples(RUNS, &[]).unwrap_or_else(|| panic!("no {RUNS}\n{log}"));
            assert!(runs.abs() < 0.5, "{}: {runs} runs of the tool\n{log}", backend.name());
            assert!(
                IptablesRules::of(node, backend) == before,
                "{}",
                before.difference(&IptablesRules::of(node, backend))
            );
        }
    }
}

/// CVE-2020-8558: with route_localnet, the network must not reach listeners on 127.0.0.1.
#[test]
fn loopback_is_closed_to_the_network() {
    let _turn = alone();
    for backend in Backend::ALL {
        let lab = Lab::new();
        let node = lab.host(LabMachine::Node);
        let mut stage = beside(&lab, backend, "loopback", "");
        let setting = node.run(|| std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/route_localnet"));
        assert_eq!(setting.expect("a setting").trim(), "1");
        // an attacker that sends packets to loopback over the wire
        let attacker = lab.host(LabMachine::Client);
        attacker.sysctl("net/ipv4/conf/all/route_localnet", "1");
        attacker.sysctl("net/ipv4/conf/all/rp_filter", "0");
        attacker.sh("ip", &["addr", "del", "127.0.0.1/8", "dev", "lo"]);
        attacker.sh("ip", &["route", "add", "127.0.0.0/8", "via", "203.0.113.1"]);
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS));
        assert!(!connects_to(attacker, at), "{}: loopback is open", backend.name());
        // where this would succeed without the guard
        stage.proxy.suspend();
        let guard = rules_of(node, backend, Family::V4, "filter", "KUBE-FIREWALL");
        iptables::run(node, backend, Family::V4, "-t filter -F KUBE-FIREWALL");
        let answered = connects_to(attacker, at);
        assert!(
            answered,
            "{}: without the guard loopback has to be open, else nothing is shown\n{guard}",
            backend.name()
        );
        stage.proxy.go_on();
        until("the guard stands again", LIMIT, || {
            rules_of(node, backend, Family::V4, "filter", "KUBE-FIREWALL") == guard
        });
        assert!(!connects_to(attacker, at), "{}: loopback is open again", backend.name());
        stage.kill();
        let left = rules_of(node, backend, Family::V4, "filter", "KUBE-FIREWALL");
        assert_eq!(left, guard, "{}: it stays when nobody runs", backend.name());
    }
}

/// True if a handshake is answered, by the process or by its kernel.
fn connects_to(host: &Host, at: SocketAddr) -> bool {
    let source = SocketAddr::new(LabMachine::Client.address(Family::V4), 0);
    host.run(move || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&source.into()).expect("an address of its own");
        socket.connect_timeout(&at.into(), Duration::from_millis(400)).is_ok()
    })
}

#[test]
fn loopback_serves_node_ports_where_it_may() {
    let _turn = alone();
    let lab = Lab::new();
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let setting = || {
        let text =
            lab.host(LabMachine::Node).run(|| std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/route_localnet"));
        text.expect("a setting").trim().to_owned()
    };
    let mut checks = Checks::new();
    let stage = start(&lab, "iptables-no-localhost", "iptables: {localhostNodePorts: false, minSyncPeriod: 1ms}");
    checks.refused("switched off", &lab.from(LabMachine::Node).tcp(at(30080), 2));
    checks.that(setting() == "0", || "switched off, but route_localnet is on".to_owned());
    let firewall = rules_of(stage.node(), Backend::Nft, Family::V4, "filter", "KUBE-FIREWALL");
    checks.that(firewall.is_empty(), || format!("switched off, but there is a guard: {firewall}"));
    drop(stage);
    let mut stage = start(&lab, "iptables-localhost", "");
    let tally = lab.from(LabMachine::Node).tcp(at(30080), 40);
    checks.served("switched on", &tally, &ALL_ENDPOINTS, SeenSource::Masqueraded);
    checks.that(setting() == "1", || "switched on, but route_localnet is off".to_owned());
    stage.proxy.wait_for("packets to loopback are counted", |proxy| {
        proxy.metric("kubeproxy_iptables_localhost_nodeports_accepted_packets_total", &[]) >= 40.0
    });
    let v6 = SocketAddr::new(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), 30080);
    checks.refused("IPv6", &lab.from(LabMachine::Node).tcp(v6, 2));
}

#[test]
fn invalid_packets_are_dropped_and_counted() {
    let _turn = alone();
    for backend in Backend::ALL {
        let lab = Lab::new();
        let mut stage = beside(&lab, backend, "invalid", "");
        let dropped = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total";
        let before = stage.proxy.metric(dropped, &[]);
        let to = SocketAddr::new(LabMachine::PodA.address(Family::V4), 0);
        lab.host(LabMachine::Client).run(move || {
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(socket2::Protocol::TCP)).expect("a raw socket");
            // a segment with the wrong checksum is part of no connection
            let mut segment = [0; 20];
            segment[..4].copy_from_slice(&[0x9c, 0x40, 0x1f, 0x90]);
            segment[12..14].copy_from_slice(&[0x50, 0x10]);
            for _ in 0..3 {
                socket.send_to(&segment, &to.into()).expect("sending a segment");
            }
        });
        stage.proxy.wait_for("invalid packets are counted", |proxy| proxy.metric(dropped, &[]) >= before + 3.0);
    }
}

#[test]
fn the_mark_is_what_the_configuration_says() {
    let _turn = alone();
    let lab = Lab::new();
    let stage = start(&lab, "iptables-mark", "iptables: {masqueradeBit: 7, masqueradeAll: true, minSyncPeriod: 1ms}");
    let mut checks = Checks::new();
    for family in Family::ALL {
        let rules = |table: &str, chain: &str| rules_of(stage.node(), Backend::Nft, family, table, chain);
        let (mark, masquerade) = (rules("nat", "KUBE-MARK-MASQ"), rules("nat", "KUBE-POSTROUTING"));
        checks.that(mark == "-j MARK --set-xmark 0x80/0x80", || format!("{family}: {mark}"));
        for part in ["! --mark 0x80/0x80 -j RETURN", "--set-xmark 0x80/0x0", "-j MASQUERADE --random-fully"] {
            checks.that(masquerade.contains(part), || format!("{family}: no {part} in\n{masquerade}"));
        }
        let forward = rules("filter", "KUBE-FORWARD");
        checks.that(forward.contains("--mark 0x80/0x80 -j ACCEPT"), || format!("{family}: {forward}"));
        for from in [LabMachine::PodB, LabMachine::Node, LabMachine::Client] {
            let tally = lab.from(from).tcp(at_cluster_ip(family, 80), 40);
            checks.served(&format!("{family} from {from:?}"), &tally, &ALL_ENDPOINTS, SeenSource::Masqueraded);
        }
    }
}

#[test]
fn what_a_kubelet_has_stays() {
    let _turn = alone();
    for backend in Backend::ALL {
        let lab = Lab::new();
        let node = lab.host(LabMachine::Node);
        let rule = "-s 192.0.2.99/32 -m comment --comment \"of the kubelet\" -j DROP";
        let text =
            format!("*filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A KUBE-FIREWALL {rule}\nCOMMIT\n");
        iptables::restore(node, backend, Family::V4, &text);
        let mut stage = beside(&lab, backend, "kubelet", "");
        let firewall = || rules_of(node, backend, Family::V4, "filter", "KUBE-FIREWALL");
        assert!(firewall().contains(rule), "{}: {}", backend.name(), firewall());
        stage.kill();
        let (status, log) =
            crate::support::run_to_end(&lab, &format!("iptables-kubelet-cleanup-{}", backend.name()), &["--cleanup"]);
        assert!(status.success(), "{log}");
        assert!(firewall().contains(rule), "{}, after clean-up: {}", backend.name(), firewall());
        let left = IptablesRules::of(node, backend);
        assert!(left.of_proxy().is_empty(), "{}: left: {:?}", backend.name(), left.of_proxy());
        assert!(
            left.names(Family::V4, "mangle").any(|name| name == HINT),
            "{}: the kubelet's hint is gone",
            backend.name()
        );
    }
}

/// Number of services whose rules are left.
const MANY: usize = 3000;

/// Upstream's leftovers of many services, and a foreign rule that jumps to one of its chains.
fn many() -> String {
    let name = |class: &str, number: usize| {
        let digits = format!("{number:016}").bytes().map(|digit| char::from(digit - b'0' + b'A')).collect::<String>();
        format!("KUBE-{class}-{digits}")
    };
    let mut text = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:HOSTPORT - [0:0]\n\
                    -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n-A HOSTPORT -j KUBE-MARK-MASQ\nCOMMIT\n"
        .to_owned();
    for section in (0..MANY).collect::<Vec<_>>().chunks(200) {
        text += "*nat\n";
        for (class, number) in section.iter().flat_map(|number| [("SVC", *number), ("SEP", *number)]) {
            text += &format!(":{} - [0:0]\n", name(class, number));
        }
        for number in section {
            let (service, endpoint) = (name("SVC", *number), name("SEP", *number));
            text += &format!("-A {service} -m comment --comment \"gone\" -j {endpoint}\n");
            text += &format!("-A {endpoint} -p tcp -m tcp -j DNAT --to-destination 10.244.9.9:80\n");
        }
        text += "COMMIT\n";
    }
    text += "*nat\n";
    for number in 0..MANY {
        let (high, low) = (number / 250, number % 250);
        let service = name("SVC", number);
        text += &format!("-A KUBE-SERVICES -d 10.96.{high}.{low}/32 -p tcp -m tcp --dport 80 -j {service}\n");
    }
    text + "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\nCOMMIT\n"
}

#[test]
fn what_is_left_of_thousands_of_services_is_cleaned_up() {
    let _turn = alone();
    for backend in Backend::ALL {
        let lab = Lab::new();
        let node = lab.host(LabMachine::Node);
        iptables::restore(node, backend, Family::V4, &many());
        let begun = Instant::now();
        let folder = format!("iptables-many-{}", backend.name());
        let (status, log) = crate::support::run_to_end(&lab, &folder, &["--cleanup"]);
        println!("{}: {MANY} services cleaned up in {:?}: {status}", backend.name(), begun.elapsed());
        let left = IptablesRules::of(node, backend).of_proxy();
        // a foreign rule jumps to it
        let expected = ["IPv4 nat HOSTPORT: -j KUBE-MARK-MASQ", "chain IPv4 nat KUBE-MARK-MASQ"];
        assert!(
            left.iter().eq(expected),
            "{}: left: {:?}\n{log}",
            backend.name(),
            left.iter().take(9).collect::<Vec<_>>()
        );
    }
}
