//! The self-test of the data path: on demand and as part of health, through the rules of each mode and those of other programs.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::Output;

use ferry_kernel::sysctl;

use crate::control::Socket;
use crate::support::{HEALTHZ, METRICS, Machine, Running, SERVICE, SLICE};

/// The modes of the kernel that these tests run on.
const MODES: [&str; 3] = ["nftables", "iptables", "userspace"];
/// The addresses of the default ranges.
const CONNECTIONS: [&str; 2] = [
    "IPv4: 192.0.2.250 -> 192.0.2.249:80/TCP reaches 192.0.2.251, and its answer comes back: ",
    "IPv6: 2001:db8:7e57::2 -> [2001:db8:7e57::1]:80/TCP reaches 2001:db8:7e57::3, and its answer comes back: ",
];
/// Somebody else's firewall, which drops what is forwarded in one family.
const FIREWALL: &str = "table ip firewall { chain forward { type filter hook forward priority 0; policy drop; }; }";

/// A machine that forwards, with an address of its own on a device, as nodes have, and one Service.
fn machine() -> (Machine, Socket) {
    let machine = Machine::node();
    machine.write("manifests/slice.json", SLICE);
    machine.write("manifests/service.json", SERVICE);
    (machine, Socket::new())
}

fn connect(machine: &Machine, socket: &str, more: &[&str]) -> Output {
    machine.output(&[&["verify", "--connect", "--control-socket", socket], more].concat())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

fn devices(machine: &Machine) -> String {
    text(&machine.tool("ip", &["-brief", "link"]).stdout).to_owned()
}

/// In this mode, connections go through the Service of the test, and nothing of it is left afterwards.
#[track_caller]
fn connects(mode: &str, cluster_cidr: &[&str]) {
    let (machine, socket) = machine();
    let before = devices(&machine);
    let mode_flag = format!("--proxy-mode={mode}");
    let mut running = machine.start_as(&[&[&*mode_flag, "--control-socket", &socket], cluster_cidr].concat());
    running.until_synced();
    for round in ["first", "second"] {
        let asked = connect(&machine, &socket, &[]);
        let said = text(&asked.stdout);
        assert!(asked.status.success(), "{mode}, {round}: {asked:?}\n{}", running.log());
        assert!(CONNECTIONS.iter().all(|connection| said.contains(connection)), "{mode}, {round}: {said}");
    }
    assert!(!devices(&machine).contains("ferry"), "{}", devices(&machine));
    assert_eq!(devices(&machine).lines().count(), before.lines().count() + usize::from(mode == "ipvs"));
    running.until("removal of the Service", |_| {
        let asked = machine.output(&["explain", "svc", "ferry-self-test/data-path", "--control-socket", &socket]);
        text(&asked.stdout).contains("there is no Service ferry-self-test/data-path") || !asked.status.success()
    });
}

#[test]
fn connections_go_through_every_mode() {
    for mode in MODES {
        connects(mode, &[]);
    }
}

#[test]
fn connections_from_outside_of_the_pods_are_masqueraded() {
    for mode in MODES {
        connects(mode, &["--cluster-cidr=10.244.0.0/16,fd00:10:244::/56"]);
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn connections_go_through_mode_ipvs() {
    connects("ipvs", &[]);
    connects("ipvs", &["--cluster-cidr=10.244.0.0/16,fd00:10:244::/56"]);
}

#[test]
fn a_firewall_is_found_on_demand() {
    let (machine, socket) = machine();
    let mut running = machine.start(&["--control-socket", &socket]);
    running.until_synced();
    assert!(machine.tool("nft", &[FIREWALL]).status.success());
    let asked = connect(&machine, &socket, &["--json"]);
    assert_eq!(asked.status.code(), Some(2), "{asked:?}");
    let answer: serde_json::Value = serde_json::from_slice(&asked.stdout).expect("JSON");
    let [v4, v6] = &answer["families"].as_array().expect("a list")[..] else { panic!("{answer}") };
    let error = v4["error"].as_str().expect("an error");
    assert!(error.starts_with("no answer within 2 s: a firewall drops its packets"), "{error}");
    assert!(error.ends_with("see kube-proxy trace --live \"192.0.2.250 -> 192.0.2.249:80/TCP\""), "{error}");
    assert!(v6["error"].is_null() && v6["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{v6}");
    assert_eq!(v6["connection"], "2001:db8:7e57::2 -> [2001:db8:7e57::1]:80/TCP");
}

fn config(machine: &Machine, socket: &str, own: &str) -> String {
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n---\n\
         apiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\ncontrolSocket: {socket}\n{own}\n"
    );
    machine.write("config.yaml", &text)
}

fn start<'a>(machine: &'a Machine, config: &str) -> Running<'a> {
    let mut running =
        machine.start_bare(&["--config", config, "--manifests", &machine.manifests(), "--hostname-override=node"]);
    running.until_synced();
    running
}

fn is_healthy(running: &Running<'_>) -> bool {
    running.get(HEALTHZ, "/healthz").status() == "200"
}

#[test]
fn health_follows_periodic_tests() {
    let (machine, socket) = machine();
    let own = "selfTestPeriod: 1s\nselfTestRanges: [10.99.0.0/29, \"fd00:99::/125\"]";
    let config = config(&machine, &socket, own);
    let mut running = start(&machine, &config);
    let counted = |result: &str| format!("\nkubeproxy_self_tests_total{{ip_family=\"IPv4\",result=\"{result}\"}} ");
    running.until("tests", |running| running.get(METRICS, "/metrics").body.contains(&counted("success")));
    let body = running.get(HEALTHZ, "/healthz").body;
    assert!(is_healthy(&running) && body.contains("\"selfTest\":{\"IPv4\":{\"lastTested\":\""), "{body}");

    assert!(machine.tool("nft", &[FIREWALL]).status.success());
    running.until("an unhealthy answer", |running| !is_healthy(running));
    let body = running.get(HEALTHZ, "/healthz").body;
    assert!(body.contains("\"error\":\"no answer within 2 s: a firewall drops its packets"), "{body}");
    assert!(body.contains("\"nodeEligible\":true,\"healthy\":false"), "{body}");
    assert_eq!(running.get(HEALTHZ, "/livez").status(), "200", "a restart would help nobody");
    let warned = "\"Node may drop traffic of Services\" reason=\"SelfTestFailed\" family=\"IPv4\" problem=\"no answer within 2 s";
    running.until("a warning", |running| running.log().contains(warned));
    assert!(running.get(METRICS, "/metrics").body.contains(&counted("failure")));
    let page = running.get(METRICS, "/ui").body;
    assert!(page.contains("IPv4: has failed ") && page.contains("IPv6: gets through, in "), "{page}");
    let status: serde_json::Value = serde_json::from_str(&running.get(METRICS, "/ui?format=json").body).expect("JSON");
    assert!(status["selfTest"][0]["failures"].as_u64().is_some_and(|failures| failures >= 3), "{status}");

    assert!(machine.tool("nft", &["delete table ip firewall"]).status.success());
    running.until("health", is_healthy);
    running.until("the end of the problem", |running| {
        running.log().contains("\"Problem of this node has ended\" reason=\"SelfTestFailed\" family=\"IPv4\"")
    });
    // On demand it uses what is there, and leaves it.
    let asked = connect(&machine, &socket, &[]);
    assert!(
        asked.status.success() && text(&asked.stdout).contains("10.99.0.2 -> 10.99.0.1:80/TCP reaches"),
        "{asked:?}"
    );
    assert!(is_healthy(&running) && devices(&machine).contains("ferry"));
}

/// A cluster of IPv4 alone, on machines whose kernel has both families: no address of IPv6, which isn't forwarded.
#[test]
fn a_family_of_which_the_node_has_no_address_is_not_tested_by_default() {
    let (machine, socket) = machine();
    assert!(machine.tool("ip", &["address", "del", "fd00:203::1/64", "dev", "uplink"]).status.success());
    machine.run(|| sysctl::write("net/ipv6/conf/all/forwarding", "0")).expect("setting a parameter");
    let mut running = start(&machine, &config(&machine, &socket, "selfTestPeriod: 1s"));
    running.until("a test", |running| running.get(HEALTHZ, "/healthz").body.contains("\"error\":null"));
    let asked = connect(&machine, &socket, &[]);
    assert!(asked.status.success() && !text(&asked.stdout).contains("IPv6"), "{asked:?}");
    assert!(is_healthy(&running) && !running.get(HEALTHZ, "/healthz").body.contains("\"IPv6\":{\"lastTested\""));
}

#[test]
fn a_device_that_another_program_removes_is_replaced() {
    let (machine, socket) = machine();
    let mut running = start(&machine, &config(&machine, &socket, "selfTestPeriod: 1s"));
    let device = |machine: &Machine| {
        let devices = devices(machine);
        devices
            .split_whitespace()
            .find(|name| name.starts_with("ferry"))
            .map(|name| name.split('@').next().unwrap_or(name).to_owned())
    };
    let passes = |running: &Running<'_>| running.get(HEALTHZ, "/healthz").body.matches("\"failures\":0,").count() == 2;
    running.until("a test", passes);
    let first = device(&machine).expect("a device");
    assert!(machine.tool("ip", &["link", "del", &first]).status.success());
    running.until("other devices", |_| device(&machine).is_some_and(|name| name != first));
    running.until("success", passes);
    assert!(is_healthy(&running));
}

#[test]
fn connections_of_others_to_the_endpoint_are_no_obstacle() {
    let (machine, socket) = machine();
    let mut running = start(&machine, &config(&machine, &socket, "selfTestPeriod: 1s"));
    let tested = |running: &Running<'_>| running.get(HEALTHZ, "/healthz").body.contains("\"error\":null");
    running.until("a test", tested);
    // From the node itself, as from any pod: some send nothing, others another token.
    let connections: Vec<TcpStream> = (0..40)
        .map(|n| {
            let mut stream = machine.run(|| TcpStream::connect("192.0.2.251:80")).expect("connecting");
            if n % 2 == 0 {
                stream.write_all(b"another token of its own").expect("writing");
            }
            stream
        })
        .collect();
    let asked = connect(&machine, &socket, &[]);
    assert!(asked.status.success(), "{asked:?}");
    drop(connections);
}

#[test]
fn a_reload_takes_the_test_over_or_ends_it() {
    let (machine, socket) = machine();
    let mut running = start(&machine, &config(&machine, &socket, "selfTestPeriod: 1s"));
    let tested =
        |running: &Running<'_>| running.get(HEALTHZ, "/healthz").body.contains("\"failures\":0,\"error\":null");
    running.until("a test", tested);
    config(&machine, &socket, "selfTestPeriod: 1s\nacceptForward: true");
    running.until("another run", |running| running.log().matches("\"Starting kube-proxy\"").count() == 2);
    running.until_synced();
    running.until("a test of the new run", tested);
    config(&machine, &socket, "acceptForward: true");
    running.until("a third run", |running| running.log().matches("\"Starting kube-proxy\"").count() == 3);
    running.until_synced();
    running.until("the end of the test's Service", |_| !machine.serves("ip", "192.0.2.249"));
    running.until("the end of its devices", |_| !devices(&machine).contains("ferry"));
    assert!(!running.get(HEALTHZ, "/healthz").body.contains("selfTest"));
}

#[test]
fn what_keeps_it_from_testing_is_named() {
    let (machine, socket) = machine();
    machine.run(|| sysctl::write("net/ipv6/conf/all/disable_ipv6", "1")).expect("setting a parameter");
    let config = config(&machine, &socket, "selfTestRanges: [\"fd00:99::/125\"]");
    let arguments = ["--config", &config, "--manifests", &machine.manifests(), "--hostname-override=node"];
    let mut running = machine.start_bare(&arguments);
    running.until_families_synced(&["IPv4"]);
    let asked = connect(&machine, &socket, &[]);
    assert!(
        text(&asked.stderr).contains("no range of FerryConfiguration.selfTestRanges is of a served family"),
        "{asked:?}"
    );
    let config = self::config(&machine, &socket, "selfTestPeriod: 1s\nselfTestRanges: [\"fd00:99::/125\"]");
    let refused =
        machine.output(&["--config", &config, "--manifests", &machine.manifests(), "--hostname-override=node"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("FerryConfiguration.selfTestPeriod: no range of "), "{refused:?}");
    let asked = machine.output(&["verify", "--connect", "--manifests", &machine.manifests(), "--proxy-mode=nftables"]);
    assert_eq!(asked.status.code(), Some(1));
    assert!(text(&asked.stderr).contains("--connect is about a running kube-proxy"), "{asked:?}");
    let asked = connect(&machine, &socket, &["--sample=3"]);
    assert!(text(&asked.stderr).contains("leave --sample and --all out"), "{asked:?}");
}

#[test]
fn without_privileges_it_says_which() {
    let (machine, socket) = machine();
    let without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];
    let manifests = machine.manifests();
    let arguments =
        ["--proxy-mode=nftables", "--hostname-override=node", "--manifests", &manifests, "--control-socket", &socket];
    let mut running = machine.start_through(&without, &arguments);
    running.until_synced();
    let asked = connect(&machine, &socket, &[]);
    assert_eq!(asked.status.code(), Some(1), "{asked:?}");
    assert!(text(&asked.stderr).contains("this needs CAP_SYS_ADMIN beside CAP_NET_ADMIN"), "{asked:?}");
}
