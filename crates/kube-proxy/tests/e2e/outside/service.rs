//! The running program: HTTP responses, signals and termination, leftovers.

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;

use rustix::process::Signal;

use crate::support::{HEALTHZ, METRICS, Machine};

const TABLES: [&str; 2] = ["table ip kube-proxy", "table ip6 kube-proxy"];

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.96.0.1\n  \
                       ports: [{port: 80}]\n";

fn node(taint: &str) -> String {
    format!("apiVersion: v1\nkind: Node\nmetadata: {{name: node}}\nspec: {{taints: [{taint}]}}\n")
}

#[test]
fn health_is_answered() {
    let machine = Machine::new();
    let mut running = machine.start(&[]);
    running.until_synced();
    // Although the address is written 0.0.0.0, both families are served.
    for at in [HEALTHZ, "[::1]:10256"] {
        let answer = running.get(at, "/healthz");
        assert_eq!(answer.status(), "200", "{}", answer.body);
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        let body = answer.body;
        for part in [
            "{\"lastUpdated\":\"20",
            "Z\",\"currentTime\":\"20",
            "\"nodeEligible\":true,\"healthy\":true,\"status\":{\"IPv4\":{\"lastUpdated\":\"20",
            "\"IPv6\":{\"lastUpdated\":\"20",
        ] {
            assert!(body.contains(part), "{part}: {body}");
        }
        assert!(body.ends_with("\",\"healthy\":true}}}"), "{body}");
    }
    let answer = running.get(HEALTHZ, "/livez?verbose");
    assert_eq!(answer.status(), "200");
    assert!(!answer.body.contains("nodeEligible"), "{}", answer.body);
    for method in ["HEAD", "POST", "PUT"] {
        assert_eq!(machine.ask(method, HEALTHZ, "/healthz").unwrap().status(), "200", "{method}");
    }
    let answer = running.get(HEALTHZ, "/metrics");
    assert_eq!((answer.status(), answer.body.as_str()), ("404", "404 page not found\n"));
    let page = running.get(METRICS, "/metrics").body;
    assert!(page.contains("\nkubeproxy_proxy_healthz_total{code=\"200\"} 5\n"), "{page}");
    assert!(page.contains("\nkubeproxy_proxy_livez_total{code=\"200\"} 1\n"), "{page}");
}

#[test]
fn a_node_that_drains_is_not_for_load_balancers() {
    let machine = Machine::new();
    machine.write("manifests/node.yaml", &node("{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}"));
    let mut running = machine.start(&[]);
    running.until_synced();
    running.until("503", |running| running.get(HEALTHZ, "/healthz").status() == "503");
    let answer = running.get(HEALTHZ, "/healthz");
    assert!(answer.body.contains("\"nodeEligible\":false,\"healthy\":true"), "{}", answer.body);
    assert_eq!(running.get(HEALTHZ, "/livez").status(), "200");
    machine.write("manifests/node.yaml", &node(""));
    running.until("200", |running| running.get(HEALTHZ, "/healthz").status() == "200");
    machine.write("manifests/node.yaml", &node("{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}"));
    running.until("503", |running| running.get(HEALTHZ, "/healthz").status() == "503");
    // Without a manifest the machine itself is the node, and that doesn't drain.
    std::fs::remove_file(machine.path("manifests/node.yaml")).unwrap();
    running.until("200", |running| running.get(HEALTHZ, "/healthz").status() == "200");
}

#[test]
fn metrics_are_served() {
    let machine = Machine::new();
    let mut running = machine.start(&["--metrics-bind-address=0.0.0.0:10249"]);
    running.until("the first sync of IPv4", |_| {
        let page = machine.ask("GET", METRICS, "/metrics");
        page.is_some_and(|page| page.body.contains("kubeproxy_engine_pending_units{ip_family=\"IPv4\","))
    });
    let answer = running.get("[::1]:10249", "/metrics");
    assert_eq!(answer.status(), "200");
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8; escaping=underscores");
    assert!(answer.header("process-start-time-unix").parse::<u64>().unwrap() > 1_700_000_000);
    for line in [
        "# HELP kubeproxy_sync_proxy_rules_duration_seconds [ALPHA] SyncProxyRules latency in seconds",
        "# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram",
        "kubeproxy_engine_pending_units{ip_family=\"IPv4\",mode=\"nftables\"} 0",
    ] {
        assert!(answer.body.lines().any(|found| found == line), "{line}\n{}", answer.body);
    }
    let answer = running.get(METRICS, "/proxyMode");
    assert_eq!((answer.status(), answer.body.as_str()), ("200", "nftables"));
    assert_eq!(running.get(METRICS, "/healthz").body, "ok");
    let answer = running.get(METRICS, "/");
    assert_eq!((answer.status(), answer.body.as_str()), ("404", "404 page not found\n"));
}

#[test]
fn signals_leave_everything_in_place_and_cleanup_removes_it() {
    let machine = Machine::new();
    machine.write("manifests/web.yaml", SERVICE);
    assert!(machine.tables().is_empty());
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2)] {
        let mut running = machine.start(&[]);
        running.until("both tables", |_| machine.tables() == TABLES);
        assert_eq!(running.signal(signal).signal(), Some(number));
        assert_eq!(machine.tables(), TABLES);
    }
    assert!(machine.tool("nft", &["add", "table", "ip", "other"]).status.success());
    // No other proxy has taken over, so there are no leftovers.
    let output = machine.output(&["--cleanup-leftovers"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(machine.tables().len(), 3);
    for _ in 0..2 {
        let output = machine.output(&["--cleanup"]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(machine.tables(), ["table ip other"]);
    }
    assert!(machine.output(&["--cleanup-leftovers"]).status.success());
}

/// The kernel drops signals to the first process of a container unless it handles them.
#[test]
fn the_first_process_of_a_container_ends_when_asked() {
    let machine = Machine::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut running = machine.start_as_first_process();
        running.until_synced();
        running.until("both tables", |_| machine.tables() == TABLES);
        assert_eq!(running.signal_first_process(signal).code(), Some(code), "{}", running.log());
        assert_eq!(machine.tables(), TABLES);
    }
}

#[test]
fn without_ipv6_the_other_family_is_served() {
    let machine = Machine::new();
    machine.run(|| ferry_kernel::sysctl::write("net/ipv6/conf/all/disable_ipv6", "1")).unwrap();
    machine.write("manifests/web.yaml", SERVICE);
    let mut running = machine.start(&[]);
    running.until_families_synced(&["IPv4"]);
    assert_eq!(machine.tables(), TABLES[..1]);
    let body = running.get(HEALTHZ, "/healthz").body;
    assert!(body.contains("\"status\":{\"IPv4\":{") && !body.contains("IPv6"), "{body}");
}

#[test]
fn a_family_that_is_switched_off_leaves_no_stale_rules() {
    let machine = Machine::new();
    machine.write("manifests/web.yaml", &SERVICE.replace("10.96.0.1", "'fd00::1'"));
    let mut running = machine.start(&[]);
    running.until("both tables", |_| machine.serves("ip6", "fd00::1") && machine.tables() == TABLES);
    running.signal(Signal::KILL);
    machine.run(|| ferry_kernel::sysctl::write("net/ipv6/conf/all/disable_ipv6", "1")).unwrap();
    let mut running = machine.start(&[]);
    running.until("end of its rules", |_| machine.tables() == TABLES[..1]);
    let removed = "\"Removed rules of an earlier run\" family=\"IPv6\" mode=\"nftables\" \
                   domain=\"nft table kube-proxy\" objects=";
    running.until("word of it", |running| running.log().contains(removed));
    running.signal(Signal::KILL);
    let mut running = machine.start(&[]);
    running.until_families_synced(&["IPv4"]);
    assert!(!running.log().contains("earlier run"), "{}", running.log());
}

#[test]
fn an_address_in_use_is_fatal_if_asked() {
    for (address, message) in [
        (HEALTHZ, "healthz server failed: failed to start proxy healthz on 127.0.0.1:10256: "),
        (METRICS, "starting metrics server failed: "),
    ] {
        let machine = Machine::new();
        let _occupied = machine.run(|| TcpListener::bind(address)).unwrap();
        let mut running = machine.start(&["--bind-address-hard-fail", "--healthz-bind-address=127.0.0.1"]);
        assert_eq!(running.wait().code(), Some(1));
        let log = running.log();
        // Other threads may have said something since.
        let said = log.lines().any(|line| line.contains("\"command failed\"") && line.contains(message));
        assert!(said, "{log}");
    }
}

#[test]
fn an_address_in_use_is_tried_again() {
    let machine = Machine::new();
    let occupied = machine.run(|| TcpListener::bind(HEALTHZ)).unwrap();
    let mut running = machine.start(&["--healthz-bind-address=127.0.0.1"]);
    running.until_synced();
    running
        .until("complaint", |running| running.log().contains("\"Bind failed, retrying every 5 s\" server=\"healthz\""));
    drop(occupied);
    running.until("health", |_| machine.ask("GET", HEALTHZ, "/healthz").is_some());
}

#[test]
fn a_broken_manifest_is_named_with_its_place() {
    let machine = Machine::new();
    machine.write("manifests/web.yaml", SERVICE);
    let mut running = machine.start(&[]);
    running.until_synced();
    let file = machine.write("manifests/web.yaml", &SERVICE.replace("[{port: 80}]", "7"));
    running.until("error", |running| {
        let wanted = format!(
            "\"Malformed manifest, keeping the last good state of its objects\" file=\"{file}\" line=6 column="
        );
        running.log().lines().any(|line| line.starts_with('E') && line.contains(&wanted))
    });
    let output = machine.tool("nft", &["list", "map", "ip", "kube-proxy", "service-ips"]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("10.96.0.1"));
}

#[test]
fn rules_of_an_earlier_run_wait_until_a_broken_file_is_readable() {
    const HELD: &str = "keeping the rules of an earlier run";
    let machine = Machine::new();
    let config = machine.write(
        "config.yaml",
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
         healthzBindAddress: 127.0.0.1:10256\nnftables: {syncPeriod: 1s, minSyncPeriod: 0s}\n",
    );
    let (web, other) = (|ip: &str| SERVICE.replace("10.96.0.1", ip), SERVICE.replace("web", "other"));
    let other = |ip: &str| other.replace("10.96.0.1", ip);
    // Without rules of an earlier run, readable manifests are served at once.
    machine.write("manifests/web.yaml", "a: [");
    machine.write("manifests/other.yaml", &other("10.96.0.2"));
    let mut running = machine.start(&["--config", &config]);
    running.until("the other service", |_| machine.serves("ip", "10.96.0.2"));
    assert!(!running.log().contains(HELD), "{}", running.log());
    machine.write("manifests/web.yaml", &web("10.96.0.1"));
    running.until("the service", |_| machine.serves("ip", "10.96.0.1"));
    machine.write("manifests/web.yaml", "a: [");
    running.until("error", |running| running.log().matches("Malformed manifest").count() == 2);
    let before = machine.rules();

    running.signal(Signal::KILL);
    let mut running = machine.start(&["--config", &config]);
    running.until("warning", |running| running.log().contains(HELD));
    assert!(running.log().contains("web.yaml\" line=1 column="), "{}", running.log());
    machine.write("manifests/other.yaml", &other("10.96.0.3"));
    running.until("503", |_| machine.ask("GET", HEALTHZ, "/healthz").is_some_and(|answer| answer.status() == "503"));
    assert_eq!(machine.rules(), before);
    machine.write("manifests/web.yaml", &web("10.96.0.4"));
    running.until("both", |_| machine.serves("ip", "10.96.0.4") && machine.serves("ip", "10.96.0.3"));
    assert!(!machine.serves("ip", "10.96.0.1") && !machine.serves("ip", "10.96.0.2"));
    running.until("200", |running| running.get(HEALTHZ, "/healthz").status() == "200");

    // Removing the file resolves it, too.
    machine.write("manifests/web.yaml", "a: [");
    running.signal(Signal::KILL);
    let mut running = machine.start(&["--config", &config]);
    running.until("warning", |running| running.log().contains(HELD));
    assert!(machine.serves("ip", "10.96.0.4"));
    std::fs::remove_file(machine.path("manifests/web.yaml")).unwrap();
    running.until("removal", |_| !machine.serves("ip", "10.96.0.4"));
    assert!(machine.serves("ip", "10.96.0.3"));
}
