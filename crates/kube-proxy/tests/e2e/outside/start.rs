//! What surrounds a run: initialisation alone, parameters of the kernel, checks against the node, signals, systemd.

use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use ferry_kernel::sysctl;
use ferry_lab::api::{ApiServer, ApiServerOptions};
use rustix::process::Signal;

use crate::support::{Machine, notification};

const TABLES: [&str; 2] = ["table ip kube-proxy", "table ip6 kube-proxy"];
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.96.0.1\n  \
                       ports: [{port: 80}]\n";
const ROUTE_LOCALNET: &str = "net.ipv4.conf.all.route_localnet";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn signals_of_log_rotation_have_no_effect() {
    let machine = Machine::new();
    let mut running = machine.start(&[]);
    running.until_synced();
    running.until("the tables of both families", |_| machine.tables() == TABLES);
    for signal in [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::USR1] {
        running.send(signal);
        assert_eq!(running.get("127.0.0.1:10256", "/livez").status(), "200", "{signal:?}");
    }
    assert_eq!(running.signal(Signal::QUIT).code(), Some(2));
    assert_eq!(machine.tables(), TABLES);
}

#[test]
fn systemd_is_notified_of_rules_in_force_of_life_and_of_the_end() {
    let machine = Machine::new();
    let path = machine.path("notify").display().to_string();
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let variables = [&format!("NOTIFY_SOCKET={path}")[..], "WATCHDOG_USEC=200000"];
    // An unreadable file holds back the first rules where an earlier run's serve.
    machine.write("manifests/web.yaml", SERVICE);
    let mut earlier = machine.start(&[]);
    earlier.until("the service", |_| machine.serves("ip", "10.96.0.1"));
    earlier.signal(Signal::KILL);
    machine.write("manifests/web.yaml", "a: [");
    let mut running = machine.start_with(&variables, &[]);
    let alive = [notification(&socket, "WATCHDOG=1"), notification(&socket, "WATCHDOG=1")].concat();
    assert!(alive.iter().any(|state| state.starts_with("STATUS=Waiting for")), "{alive:?}");
    assert!(!alive.iter().any(|state| state.contains("READY")), "{alive:?}");
    std::fs::remove_file(machine.path("manifests/web.yaml")).expect("the file is there");
    notification(&socket, "READY=1\nSTATUS=");
    assert_eq!(running.signal(Signal::TERM).signal(), Some(15));
    notification(&socket, "STOPPING=1");
}

#[test]
fn initialisation_alone_leaves_nothing_to_write() {
    let machine = Machine::new();
    let manifests = machine.manifests();
    let start = [
        "--init-only",
        "--proxy-mode=iptables",
        "--hostname-override=node",
        "--manifests",
        &manifests,
        "--conntrack-udp-timeout=31s",
    ];
    let output = machine.output(&start);
    let log = text(&output.stderr);
    assert!(output.status.success(), "{log}");
    for family in ["IPv4", "IPv6"] {
        let line = format!("\"System initialized and --init-only specified\" family=\"{family}\" mode=\"iptables\"");
        assert!(log.contains(&line), "{log}");
    }
    assert!(log.contains("\"Set sysctl\" entry=\"net.netfilter.nf_conntrack_udp_timeout\" value=\"31\""), "{log}");
    let parameters =
        || [ROUTE_LOCALNET, "net.netfilter.nf_conntrack_udp_timeout"].map(sysctl::read).map(Result::unwrap);
    assert_eq!(machine.run(parameters), ["1", "31"]);
    let saved = || [machine.iptables("iptables-nft-save"), machine.iptables("iptables-legacy-save")].concat();
    // without the time of the listing
    let rules = || saved().lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let before = rules();
    assert_eq!(before.matches("--comment \"block incoming localnet connections\"").count(), 1, "{before}");
    assert!(before.contains("-A INPUT -j KUBE-FIREWALL") && !before.contains("KUBE-SERVICES"), "{before}");
    // The same where nothing can be written.
    let output = machine.output_with_read_only_parameters(&start);
    let log = text(&output.stderr);
    assert!(output.status.success() && !log.contains("Set sysctl"), "{log}");
    assert_eq!(rules(), before);
}

/// The Node arrives late, and its range of pods, which this configuration needs, later still.
#[test]
fn initialisation_alone_waits_for_the_node_of_an_api_server() {
    const NODE: &str = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"node"},"spec":{RANGE},
        "status":{"addresses":[{"type":"InternalIP","address":"192.0.2.10"}]}}"#;
    let machine = Machine::new();
    let server = machine.run(|| ApiServer::start(ApiServerOptions::secure()));
    server.put(crate::support::SERVICE);
    let kubeconfig = machine.write("kubeconfig", &server.kubeconfig_text());
    let mut running = machine.start_bare(&[
        "--init-only",
        "--proxy-mode=nftables",
        "--hostname-override=node",
        "--kubeconfig",
        &kubeconfig,
        "--detect-local-mode=NodeCIDR",
        "--conntrack-udp-timeout=31s",
    ]);
    running.until("a question about the Node", |_| {
        server.requests().iter().any(|request| request.path_and_query.contains("/nodes"))
    });
    for range in ["", r#""podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24"]"#] {
        std::thread::sleep(Duration::from_millis(500));
        assert!(running.is_running() && !running.log().contains("System initialized"), "{}", running.log());
        server.put(&NODE.replace("RANGE", range));
    }
    assert_eq!(running.wait().code(), Some(0), "{}", running.log());
    let log = running.log();
    for family in ["IPv4", "IPv6"] {
        let line = format!("\"System initialized and --init-only specified\" family=\"{family}\" mode=\"nftables\"");
        assert!(log.contains(&line), "{log}");
    }
    let set = machine.run(|| sysctl::read("net.netfilter.nf_conntrack_udp_timeout")).expect("the parameter");
    assert_eq!(set, "31");
    assert_eq!(machine.tables(), [""; 0], "no rules of a proxy: {log}");
}

/// What a start would refuse, this refuses, too.
#[test]
fn initialisation_alone_fails_without_the_credentials_of_its_api_server() {
    let machine = Machine::new();
    let missing = machine.path("missing").display().to_string();
    let flags = ["--init-only", "--proxy-mode=nftables", "--hostname-override=node", "--kubeconfig", &missing];
    let mut running = machine.start_bare(&flags);
    assert_eq!(running.wait().code(), Some(1), "{}", running.log());
    let log = running.log();
    assert!(log.contains("\"command failed\"") && log.contains(&missing), "{log}");
}

#[test]
fn health_is_served_nowhere_if_so_configured() {
    let machine = Machine::new();
    let mut running = machine.start(&["--healthz-port=0", "--metrics-bind-address=127.0.0.1", "--metrics-port=10300"]);
    running.until("metrics", |_| machine.ask("GET", "127.0.0.1:10300", "/proxyMode").is_some());
    assert!(machine.ask("GET", "127.0.0.1:10256", "/livez").is_none());
    let log = running.log();
    let told = |flag: &str| log.lines().any(|line| line.starts_with(&format!("Flag --{flag} has been deprecated, ")));
    assert!(told("healthz-port") && told("metrics-port"), "{log}");
}

#[test]
fn the_stack_is_named_and_checked_against_the_configuration() {
    let machine = Machine::new();
    let mut running = machine.start(&["--nodeport-addresses=10.0.0.0/8", "--bind-address=192.0.2.1"]);
    running.until("its stack", |running| {
        running.log().contains("\"kube-proxy running in dual-stack mode\" primary ipFamily=\"IPv4\"")
    });
    let log = running.log();
    assert!(log.contains("\"Successfully retrieved NodeIPs\" NodeIPs=\"192.0.2.1,"), "{log}");
    let line = "\"Kube-proxy configuration may be incomplete or incorrect\" err=\"cluster is IPv4-primary but nodePortAddresses \
                contains only IPv4 addresses; ";
    assert!(log.contains(line), "{log}");
    running.signal(Signal::KILL);

    machine.run(|| sysctl::write("net/ipv6/conf/all/disable_ipv6", "1")).expect("root");
    for (arguments, error) in [
        (
            "--cluster-cidr=fd00::/48",
            "kube-proxy configuration is incorrect: cluster is IPv4-only but clusterCIDRs contains only IPv6 addresses",
        ),
        ("--bind-address=2001:db8::1", "no support for primary IP family \\\"IPv6\\\""),
    ] {
        let mut running = machine.start(&[arguments]);
        assert_eq!(running.wait().code(), Some(1));
        let log = running.log();
        assert!(log.contains(&format!("\"command failed\" err=\"{error}\"")), "{log}");
    }
}
