//! The machine around the proxy: busy neighbours, a family that is off or fails, a process namespace.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferry_lab::lab::NODE_NAME;
use ferry_lab::nft::{self, Ruleset};
use ferry_lab::objects::{at_cluster_ip, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::proxy::{IPTABLES, NFTABLES, ProxyConfig};
use ferry_lab::stage::ManifestDirectory;
use ferry_lab::{Checks, Family, Lab, LabMachine, Manifests, ProxyProcess, SeenSource, TestService};

use crate::support::{EXECUTABLE, alone, folder, stage};

const ALL_PODS: [LabMachine; 3] = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
const ALL_ENDPOINTS: [&str; 3] = ["pod-a:8080", "pod-b:8080", "far:8080"];
const OFTEN: usize = 40;

fn manifests() -> Manifests {
    let mut manifests = Manifests::new().with(TestService::new("web", 80).node_port(30080), &ALL_PODS);
    for number in 0..200 {
        manifests = manifests.with(TestService::new(&format!("other-{number}"), 500 + number), &ALL_PODS);
    }
    manifests
}

#[test]
fn a_busy_neighbour_costs_little() {
    let stage = stage(&manifests());
    let measure = |seconds| {
        let (start, before) = (Instant::now(), stage.proxy.cpu_time());
        sleep(Duration::from_secs(seconds));
        (stage.proxy.cpu_time() - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0
    };
    // what the proxy still does for those who had the stage before is none of an idle one's work
    until("the proxy rests", Duration::from_secs(30), || measure(1) < 1.0);
    let idle = measure(5);
    let stop = Arc::new(AtomicBool::new(false));
    let neighbour = {
        let stop = Arc::clone(&stop);
        stage.node().thread(move || {
            let mut commits = 0;
            while !stop.load(Ordering::Relaxed) {
                let script = "add table ip neighbour\nadd set ip neighbour s { type ipv4_addr; }\n\
                              flush set ip neighbour s\nadd element ip neighbour s { 10.1.1.1, 10.1.1.2, 10.1.1.3 }\n";
                let mut child =
                    Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("starting nft");
                child.stdin.take().expect("piped").write_all(script.as_bytes()).expect("feeding nft");
                assert!(child.wait().expect("waiting for nft").success());
                commits += 1;
                sleep(Duration::from_millis(100));
            }
            commits
        })
    };
    let before = stage.proxy.metric("kubeproxy_engine_repairs_total", &[]);
    let busy = measure(5);
    stop.store(true, Ordering::Relaxed);
    let commits = neighbour.join().expect("the neighbour ends");
    let repairs = stage.proxy.metric("kubeproxy_engine_repairs_total", &[]) - before;
    nft::load(stage.node(), "delete table ip neighbour");
    println!("processor use: idle {idle:.2} %, beside a neighbour of {commits} commits in 5 s {busy:.2} %");
    assert!(repairs.abs() < 0.5, "{repairs} repairs of what nobody damaged");
    assert!(idle < 2.0, "idle: {idle} %");
    assert!(busy < 5.0, "beside a neighbour: {busy} %");
}

#[test]
fn without_ipv6_the_other_family_is_served() {
    let _turn = alone();
    let lab = Lab::new();
    let node = lab.host(LabMachine::Node);
    for key in ["all", "default", "lo", "vpoda", "vpodb", "vfar", "vcli"] {
        node.sysctl(&format!("net/ipv6/conf/{key}/disable_ipv6"), "1");
    }
    let mut directory = ManifestDirectory::new(&folder("no-ipv6"));
    directory.write(&manifests());
    let mut proxy = directory.start(node, EXECUTABLE, &ProxyConfig::default());
    serves(&lab, &mut proxy, &directory);
    proxy.wait_until_healthy();
}

#[test]
fn a_family_that_fails_leaves_the_other_serving() {
    let _turn = alone();
    let lab = Lab::new();
    let node = lab.host(LabMachine::Node);
    // a table that belongs to another process can't be touched by anybody else
    let mut owner = node.spawn("nft", &["-i".to_owned()], |command| {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    });
    let mut input = owner.stdin.take().expect("piped");
    input.write_all(b"add table ip6 kube-proxy { flags owner; }\n").expect("feeding nft");
    input.flush().expect("feeding nft");
    until("the table is there", Duration::from_secs(5), || nft::list(node).contains("ip6 kube-proxy"));

    let mut directory = ManifestDirectory::new(&folder("one-family"));
    directory.write(&manifests());
    let mut proxy = directory.start(node, EXECUTABLE, &ProxyConfig::default());
    serves(&lab, &mut proxy, &directory);
    assert!(Ruleset::of(node).names("ip6 kube-proxy").next().is_none(), "the owner's table isn't empty");

    // its owner ends, and the table with it: the family comes
    drop(input);
    owner.wait().expect("waiting for nft");
    let at = directory.marker(Family::V6);
    let client = lab.from(LabMachine::Node).patience(Duration::from_millis(100));
    let elapsed = until("the other family is served", Duration::from_secs(70), || client.tcp(at, 1).all_answered());
    println!("a family that failed is served {elapsed:?} after its obstacle is gone");
}

/// Waits until IPv4 is served, and checks that it is.
fn serves(lab: &Lab, proxy: &mut ProxyProcess<'_>, directory: &ManifestDirectory) {
    let at = directory.marker(Family::V4);
    let client = lab.from(LabMachine::Node).patience(Duration::from_millis(100));
    proxy.wait_for("manifests in force", |_| client.tcp(at, 1).all_answered());
    let mut checks = Checks::new();
    for from in [LabMachine::PodB, LabMachine::Node, LabMachine::Client] {
        for at in [at_cluster_ip(Family::V4, 80), at_node_port(Family::V4, 30080)] {
            let tally = lab.from(from).tcp(at, OFTEN);
            checks.served(&format!("{at} from {from:?}"), &tally, &ALL_ENDPOINTS, SeenSource::Any);
        }
    }
}

#[test]
fn with_net_admin_alone_connections_are_served() {
    let _turn = alone();
    for mode in [NFTABLES, IPTABLES] {
        let lab = Lab::new();
        let node = lab.host(LabMachine::Node);
        let name = format!("net-admin-alone-{mode}");
        let mut directory = ManifestDirectory::new(&folder(&name));
        directory.write(&manifests());
        let config = folder(&name).join("config.yaml");
        ProxyConfig { mode, ..ProxyConfig::default() }.write(&config);
        let (config, objects) = (config.display().to_string(), directory.manifests().display().to_string());
        let only = "-all,+net_admin";
        let (bounding, inheritable) = (format!("--bounding-set={only}"), format!("--inh-caps={only}"));
        let confined = [&bounding, &inheritable, "--no-new-privs", "--", EXECUTABLE];
        let arguments = ["--config", &config, "--manifests", &objects];
        let arguments = [&confined[..], &arguments].concat();
        let mut proxy = ProxyProcess::start_by(node, "setpriv", &folder(&name), &arguments);
        serves(&lab, &mut proxy, &directory);
    }
}

#[test]
fn in_a_process_namespace_it_knows_its_own_commits() {
    let _turn = alone();
    let lab = Lab::new();
    let node = lab.host(LabMachine::Node);
    let mut directory = ManifestDirectory::new(&folder("pid-namespace"));
    directory.write(&manifests());
    let config = folder("pid-namespace").join("config.yaml");
    ProxyConfig::default().write(&config);
    let (config, objects) = (config.display().to_string(), directory.manifests().display().to_string());
    let arguments =
        ["--pid", "--fork", "--kill-child", EXECUTABLE, "--config", &config, "--manifests", &objects, "-v=2"];
    let mut proxy = ProxyProcess::start_by(node, "unshare", &folder("pid-namespace"), &arguments);
    for number in 0..5 {
        directory.write(&manifests().with(TestService::new("more", 90 + number), &ALL_PODS));
        for family in Family::ALL {
            let (at, client) =
                (directory.marker(family), lab.from(LabMachine::Node).patience(Duration::from_millis(100)));
            proxy.wait_for("manifests in force", |_| client.tcp(at, 1).all_answered());
        }
    }
    sleep(Duration::from_millis(500));
    let generation = nft::generation(node);
    sleep(Duration::from_millis(500));
    assert_eq!(nft::generation(node), generation, "it goes on committing\n{}", proxy.log());
    let repairs = proxy.metric("kubeproxy_engine_repairs_total", &[]);
    assert!(repairs.abs() < 0.5, "{repairs} repairs of its own commits on {NODE_NAME}\n{}", proxy.log());
}
