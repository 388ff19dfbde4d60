//! Foreign changes, foreign directors, and ends of the proxy at any moment.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ferry_lab::lab::{cluster_ip, external_ip};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::{slowly, until};
use ferry_lab::{Checks, Family, Host, LabMachine, Manifests, ProxyProcess, SeenSource, Stage, TestService, nft};

use crate::support::{LIMIT, Statistics, counted, folder, run_to_end, server, servers, settled, stage};

/// The time within which a deleted virtual server is back: two seconds. Where a look takes longer than 18 ms, as in busy emulated
/// machines, looks are further apart.
const NOTICED: Duration = Duration::from_secs(12);
/// Time limit of what is tried again with growing pauses.
const RETRIED: Duration = Duration::from_secs(30);
/// The services of the load.
const MANY: u16 = 300;

fn manifests() -> Manifests {
    Manifests::new()
        .with(TestService::new("web", 30).node_port(30030).external_ip(30), &[LabMachine::PodA])
        .with(TestService::new("other", 31).external_ip(31), &[LabMachine::PodB])
}

/// Every frontend of the services, from everywhere.
fn served(stage: &Stage<'_>) -> bool {
    Family::ALL.into_iter().all(|family| {
        let to = [at_cluster_ip(family, 30), at_node_port(family, 30030), at_external_ip(family, 31)];
        to.iter().all(|to| {
            let tally = stage.lab.from(LabMachine::Client).patience(slowly(Duration::from_millis(200))).tcp(*to, 1);
            tally.all_answered()
        })
    })
}

/// Does something to the node's kernel, and waits until it is made up for.
fn repaired(stage: &Stage<'_>, what: &str, limit: Duration, spoil: impl FnOnce(&Host)) {
    // a set: the tool's order is that of the kernel's hash table
    let names = || servers(stage.node()).into_iter().map(|server| server.name).collect::<BTreeSet<_>>();
    let (wanted, start) = (names(), Instant::now());
    spoil(stage.node());
    until(what, limit, || names() == wanted && served(stage));
    println!("{what}: made up for after {:?}", start.elapsed());
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn foreign_changes_are_repaired() {
    let stage = stage(&manifests());
    assert!(served(&stage));
    let [web, web_v6] = Family::ALL.map(|family| at_cluster_ip(family, 30).to_string());
    let [address, address_v6] = Family::ALL.map(|family| cluster_ip(family, 30).to_string());
    repaired(&stage, "deleted servers, and a changed one", NOTICED, |node| {
        node.sh("ipvsadm", &["-E", "-t", &web, "-s", "wrr"]);
        node.sh("ipvsadm", &["-D", "-t", &at_external_ip(Family::V4, 31).to_string()]);
        node.sh("ipvsadm", &["-D", "-t", &web_v6]);
    });
    let settings = || server(stage.node(), at_cluster_ip(Family::V4, 30)).map(|server| server.settings);
    until("the configured scheduler", NOTICED, || settings().as_deref() == Some("rr"));
    repaired(&stage, "all servers deleted", NOTICED, |node| drop(node.sh("ipvsadm", &["-C"])));
    repaired(&stage, "deleted addresses", LIMIT, |node| {
        node.sh("ip", &["addr", "del", &format!("{address}/32"), "dev", "kube-ipvs0"]);
        node.sh("ip", &["addr", "del", &format!("{address_v6}/128"), "dev", "kube-ipvs0"]);
    });
    repaired(&stage, "the device deleted", LIMIT, |node| drop(node.sh("ip", &["link", "del", "kube-ipvs0"])));
    repaired(&stage, "the tables flushed", LIMIT, |node| {
        node.sh("nft", &["flush", "table", "ip", "kube-proxy"]);
        node.sh("nft", &["flush", "table", "ip6", "kube-proxy"]);
    });
    repaired(&stage, "the tables deleted", LIMIT, |node| drop(node.sh("nft", &["flush", "ruleset"])));
    for table in ["ip", "ip6"] {
        until("the table is back", LIMIT, || {
            stage.node().sh("nft", &["list", "ruleset"]).contains(&format!("table {table} kube-proxy"))
        });
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_device_of_another_type_is_named() {
    let mut stage = stage(&manifests());
    let node = stage.node();
    stage.terminate();
    run_to_end(stage.lab, &["--cleanup"]);
    node.sh("ip", &["link", "add", "kube-ipvs0", "type", "bridge"]);
    stage.start();
    let status = stage.proxy.wait();
    let log = stage.proxy.log();
    assert_eq!(status.code(), Some(1), "{log}");
    let advice = "kube-ipvs0";
    assert!(log.lines().any(|line| line.contains(advice) && line.contains("rename or delete it")), "{log}");
    node.sh("ip", &["link", "del", "kube-ipvs0"]);
    stage.start();
    stage.wait();
    assert!(served(&stage));
    // While it runs: suspended, since it makes up for a deletion faster than the tool starts.
    stage.proxy.suspend();
    node.sh("ip", &["link", "del", "kube-ipvs0"]);
    node.sh("ip", &["link", "add", "kube-ipvs0", "type", "bridge"]);
    stage.proxy.go_on();
    stage.proxy.wait_for("an advice", |proxy| {
        proxy.log().lines().any(|line| line.contains(advice) && line.contains("rename or delete it"))
    });
    node.sh("ip", &["link", "del", "kube-ipvs0"]);
    until("all is served again", RETRIED, || served(&stage));
}

/// The time of the last change that was queued for a family's engine, and that of its last successful sync.
fn queued_and_synced(proxy: &ProxyProcess<'_>, family: Family) -> (f64, f64) {
    let label = format!("ip_family=\"{family}\"");
    let time = |of: &str| proxy.metric(&format!("kubeproxy_sync_proxy_rules_last{of}_timestamp_seconds"), &[&label]);
    // In this order: a change between the two readings can't make an old sync look newer than the change.
    (time("_queued"), time(""))
}

/// A change that comes into force while a unit is in quarantine counts as synced: an alert that compares the times stays quiet.
fn assert_synced_beside_quarantine(stage: &mut Stage<'_>, manifests: &Manifests) {
    let holds_a_unit = |proxy: &ProxyProcess<'_>| proxy.metric("kubeproxy_engine_quarantined_units", &[]) >= 1.0;
    stage.proxy.wait_for("a unit in quarantine", holds_a_unit);
    let before = Family::ALL.map(|family| queued_and_synced(&stage.proxy, family).0);
    // with another marker, in both families
    stage.set(manifests);
    for (family, before) in Family::ALL.into_iter().zip(before) {
        stage.proxy.wait_for("a sync that counts", |proxy| {
            let (queued, synced) = queued_and_synced(proxy, family);
            before < queued && queued <= synced
        });
    }
    stage.proxy.wait_for("a unit still in quarantine", holds_a_unit);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_foreign_director_keeps_its_server_and_one_service_waits() {
    let mut stage = stage(&manifests());
    let node = stage.node();
    let foreign =
        ["203.0.113.1:30032".parse::<SocketAddr>(), "198.51.100.32:80".parse()].map(|at| at.expect("an address"));
    for at in foreign {
        node.sh("ipvsadm", &["-A", "-t", &at.to_string(), "-s", "wlc"]);
        node.sh("ipvsadm", &["-a", "-t", &at.to_string(), "-r", "192.168.9.2:9090", "-m"]);
    }
    let address = format!("{}/32", external_ip(Family::V4, 32));
    node.sh("ip", &["addr", "add", &address, "dev", "lo"]);
    let contested = TestService::new("contested", 32).node_port(30032).external_ip(32);
    let all = manifests().with(contested, &[LabMachine::PodA]).with(TestService::new("fine", 33), &[LabMachine::PodA]);
    stage.replace(&all);
    let is_named = |line: &str| {
        let server = foreign.iter().any(|at| line.contains(&format!("virtual server TCP {at} is another program's")));
        server && line.contains("service demo/contested")
    };
    stage.proxy.wait_for("the name of a server", |proxy| proxy.log().lines().any(is_named));
    let mut checks = Checks::new();
    for family in Family::ALL {
        let client = stage.lab.from(LabMachine::Client);
        until("the others are served", LIMIT, || client.tcp(at_cluster_ip(family, 33), 1).all_answered());
        checks.that(served(&stage), || format!("{family}: the others"));
    }
    assert_synced_beside_quarantine(&mut stage, &all);
    for at in foreign {
        let kept = server(node, at).is_some_and(|server| server.settings == "wlc" && server.endpoints.len() == 1);
        checks.that(kept, || format!("{at} is the director's: {:?}", server(node, at)));
        node.sh("ipvsadm", &["-D", "-t", &at.to_string()]);
    }
    node.sh("ip", &["addr", "del", &address, "dev", "lo"]);
    for to in [at_node_port(Family::V4, 30032), at_external_ip(Family::V4, 32), at_cluster_ip(Family::V4, 32)] {
        until(&format!("{to} is served"), RETRIED, || {
            let tally = stage.lab.from(LabMachine::Client).patience(slowly(LIMIT / 10)).tcp(to, 1);
            tally.endpoints().contains_key("pod-a:8080")
        });
    }
    stage.wait();
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_first_load_that_is_killed_is_completed_by_the_next_run() {
    let many = (0..MANY).fold(Manifests::new(), |all, number| {
        all.with(TestService::new(&format!("many-{number}"), 1000 + number), &[LabMachine::PodA, LabMachine::PodB])
    });
    let mut stage = stage(&Manifests::new());
    let node = stage.node();
    for part in [1, usize::from(MANY), usize::from(MANY) * 3 / 2] {
        stage.terminate();
        run_to_end(stage.lab, &["--cleanup"]);
        stage.replace(&many);
        stage.start();
        // `ipvsadm` takes longer than the load.
        let count = || {
            let listed = node.run(|| std::fs::read_to_string("/proc/thread-self/net/ip_vs"));
            listed.unwrap_or_default().lines().filter(|line| line.starts_with("TCP")).count()
        };
        stage.proxy.wait_for("a part", |_| count() >= part);
        stage.kill();
        let cut = count();
        stage.start();
        stage.proxy.wait_until_synced(&Family::ALL);
        stage.wait();
        let all = servers(node);
        // and the marker
        assert_eq!(all.len(), 2 * usize::from(MANY) + 2, "killed at {cut}");
        assert!(all.iter().all(|server| server.endpoints.len() == 2 || !server.name.ends_with(":80")), "{all:?}");
        let addresses = node.sh("ip", &["-o", "addr", "show", "kube-ipvs0"]).lines().count();
        assert_eq!(addresses, all.len(), "killed at {cut}");
        println!("killed at {cut} of {}, completed", all.len());
    }
    let mut checks = Checks::new();
    for family in Family::ALL {
        for number in [1000, 1150, 999 + MANY] {
            let tally = stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, number), 4);
            checks.served(&format!("{number}"), &tally, &["pod-a:8080", "pod-b:8080"], SeenSource::Any);
        }
    }
}

/// Starts a tool that prints changes of the kernel to a file.
fn monitor(node: &Host, name: &str, arguments: &[&str]) -> Child {
    let file = File::create(folder("shared").join(name)).expect("a file");
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    node.spawn(name, &arguments, |command| {
        command.stdin(Stdio::null()).stdout(file);
    })
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_restart_with_unchanged_objects_writes_nothing() {
    let mut stage =
        stage(&manifests().with(TestService::new("sticks", 33).affinity(60), &[LabMachine::PodA, LabMachine::Far]));
    let node = stage.node();
    let _statistics = Statistics::of(node);
    assert!(served(&stage));
    // those that have served; the readiness of the stage connects to another server
    let served_by = [at_cluster_ip(Family::V4, 30), at_cluster_ip(Family::V6, 30), at_external_ip(Family::V4, 31)];
    let counts = || served_by.map(|at| counted(node).get(&format!("TCP {at}")).copied().unwrap_or_default());
    let counts = || settled(counts, |one, other| one == other && !other.contains(&0));
    let monitors = [monitor(node, "nft", &["monitor"]), monitor(node, "ip", &["monitor", "link", "address"])];
    node.sh("ip", &["link", "set", "lo", "mtu", "65535"]);
    let printed = |name: &str| std::fs::read_to_string(folder("shared").join(name)).expect("what it printed");
    until("the monitor listens", LIMIT, || {
        node.sh("ip", &["link", "set", "lo", "mtu", "65536"]);
        node.sh("ip", &["link", "set", "lo", "mtu", "65535"]);
        !printed("ip").is_empty()
    });
    let (generation, before) = (nft::generation(node), counts());
    let listed = printed("ip").lines().filter(|line| line.contains("kube-ipvs0")).count();
    stage.restart();
    assert_eq!(counts(), before, "no server was made anew");
    assert_eq!(nft::generation(node), generation, "no rule was written");
    for mut monitor in monitors {
        monitor.kill().expect("it runs");
        monitor.wait().expect("it ends");
    }
    let after = printed("ip").lines().filter(|line| line.contains("kube-ipvs0")).count();
    assert_eq!((printed("nft").as_str(), after), ("", listed));
}
