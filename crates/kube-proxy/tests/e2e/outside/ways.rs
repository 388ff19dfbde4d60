//! Black-box tests of the ways of mode userspace: what is reported, in the log and as Events, where one can't be used or a port of a
//! Service is another program's.

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use ferry_lab::api::ApiServer;
use ferry_lab::loader::NoLoader;
use ferry_lab::seccomp::SeccompProfile;
use serde_json::{Value, json};

use crate::events::{NODE, notes};
use crate::snapshot::{metric, server};
use crate::support::{METRICS, Machine};

/// The modules of mode iptables in the legacy variant, which the kernel can't load by itself without its loader.
const LEGACY: &[&str] = &[
    "iptable_filter",
    "iptable_mangle",
    "iptable_nat",
    "ip6table_filter",
    "ip6table_mangle",
    "ip6table_nat",
    "ip6t_REJECT",
    "ipt_REJECT",
    "xt_MASQUERADE",
    "xt_addrtype",
    "xt_comment",
    "xt_conntrack",
    "xt_mark",
    "xt_nat",
    "xt_recent",
    "xt_statistic",
    "xt_tcpudp",
];
/// The remedy without nf_tables, in the words of the error.
const REMEDY: &str = "or configure userspaceWay: bind";

/// Writes the configuration of mode userspace by this way, for a cluster of a kubeconfig; returns its path.
fn config(machine: &Machine, way: &str) -> String {
    config_in("userspace", machine, way)
}

/// The same in another mode.
fn config_in(mode: &str, machine: &Machine, way: &str) -> String {
    let kubeconfig = machine.path("kubeconfig").display().to_string();
    machine.write(
        "config.yaml",
        &format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n\
             hostnameOverride: node\nclientConnection: {{kubeconfig: {kubeconfig}}}\n---\napiVersion: ferry.io/v1alpha1\n\
             kind: FerryConfiguration\nuserspaceWay: '{way}'\n"
        ),
    )
}

/// The shipped profile without the sockets of netfilter, which the kernel seems to lack then: `EPROTONOSUPPORT`.
fn without_netfilter(machine: &Machine) -> SeccompProfile {
    const AF_NETLINK: u64 = 16;
    const NETLINK_NETFILTER: u64 = 12;
    const EPROTONOSUPPORT: u32 = 93;
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/seccomp/kube-proxy.json");
    let text = fs::read_to_string(shipped).expect("the profile");
    let mut profile: Value = serde_json::from_str(&text).expect("JSON");
    let arguments = [(0, AF_NETLINK), (2, NETLINK_NETFILTER)]
        .map(|(index, value)| json!({"index": index, "value": value, "op": "SCMP_CMP_EQ"}));
    let absent = json!({
        "comment": "netfilter", "names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPROTONOSUPPORT, "args": arguments
    });
    profile.pointer_mut("/syscalls").and_then(Value::as_array_mut).expect("calls").push(absent);
    machine.write("seccomp.json", &profile.to_string());
    SeccompProfile::read(&machine.path("seccomp.json"))
}

/// The only Event about the way, and its type.
fn event_of_way(server: &ApiServer) -> (String, String) {
    let [note] = &notes(server, "ProxyWay", NODE)[..] else { panic!("{:?}", server.events()) };
    let text = |event: &Value, at: &str| event.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    let of_way = server.events().into_iter().find(|event| text(event, "/reason") == "ProxyWay");
    (text(&of_way.expect("it is there"), "/type"), note.clone())
}

/// The last line of a start that ends by an error, its words.
#[track_caller]
fn assert_names(log: &str, words: &[&str]) {
    let line = log.lines().find(|line| line.contains("\"command failed\"")).unwrap_or_else(|| panic!("{log}"));
    assert!(words.iter().all(|word| line.contains(word)), "{words:?} in {line}");
}

#[test]
fn way_redirect_names_nf_tables_where_the_kernel_has_none() {
    let machine = Machine::new();
    let profile = without_netfilter(&machine);
    let manifests = machine.manifests();
    let arguments = ["--config", &config(&machine, "redirect"), "--manifests", &manifests];
    let mut running = machine.start_under(&profile, &arguments);
    assert_eq!(running.wait().code(), Some(1), "{}", running.log());
    assert_names(&running.log(), &["way redirect", "nf_tables", "IPv4", "IPv6", "Protocol not supported", REMEDY]);
}

/// The process has the capability in a user namespace that doesn't own the network.
#[test]
fn way_redirect_names_nf_tables_where_the_network_is_of_another_namespace() {
    let machine = Machine::new();
    let manifests = machine.manifests();
    let arguments = ["--config", &config(&machine, "redirect"), "--manifests", &manifests];
    let mut running = machine.start_through(&["unshare", "--user", "--map-root-user"], &arguments);
    assert_eq!(running.wait().code(), Some(1), "{}", running.log());
    let words = ["way redirect", "nf_tables", "CAP_NET_ADMIN", "Operation not permitted", REMEDY];
    assert_names(&running.log(), &words);
}

#[test]
fn way_redirect_names_the_capability_that_is_missing() {
    let machine = Machine::new();
    let manifests = machine.manifests();
    let output =
        machine.output_without_capability(&["--config", &config(&machine, "redirect"), "--manifests", &manifests]);
    assert_eq!(output.status.code(), Some(1));
    assert_names(
        &String::from_utf8_lossy(&output.stderr),
        &["way redirect", "missing capability CAP_NET_ADMIN", REMEDY],
    );
}

#[test]
fn an_event_of_the_node_says_what_the_preferred_way_lacks() {
    let machine = Machine::new();
    let server = server(&machine);
    let (profile, config) = (without_netfilter(&machine), config(&machine, ""));
    let begins = "traffic reaches the proxy in mode userspace by way bind: ";
    for (is_permitted, words) in
        [(false, ["missing capability", "CAP_NET_ADMIN"]), (true, ["nf_tables", "Protocol not supported"])]
    {
        server.forget_events();
        let mut running = match is_permitted {
            true => machine.start_under(&profile, &["--config", &config]),
            false => {
                let drop = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];
                machine.start_through(&drop, &["--config", &config])
            }
        };
        running.until("an Event", |_| !notes(&server, "ProxyWay", NODE).is_empty());
        let (level, note) = event_of_way(&server);
        assert!(level == "Warning" && note.starts_with(begins), "{level} {note}");
        assert!(words.iter().all(|word| note.contains(word)), "{note}");
        running.until_synced();
        let page = running.get(METRICS, "/metrics").body;
        assert!(page.contains("\nkubeproxy_userspace_way{way=\"bind\"} 1\n"), "{page}");
    }
}

/// A kernel with other parts of netfilter, such as connection tracking, opens the socket of nf_tables and answers each request with `EINVAL`.
#[test]
#[ignore = "needs a kernel that hasn't loaded nf_tables: runs in virtual machines"]
fn without_nf_tables_mode_userspace_binds_and_another_mode_falls_back_to_it() {
    let machine = Machine::new();
    assert!(machine.tool("modprobe", &["nfnetlink"]).status.success());
    let _loader = NoLoader::new();
    let loaded = fs::read_to_string("/proc/modules").expect("a kernel with modules");
    assert!(loaded.contains("nfnetlink") && !loaded.contains("nf_tables"), "{loaded}");
    let added = machine.tool("ip", &["address", "add", "10.244.0.7/32", "dev", "lo"]);
    assert!(added.status.success(), "{added:?}");
    let endpoint = machine.run(|| TcpListener::bind("10.244.0.7:8080").expect("a free port"));
    endpoint.set_nonblocking(true).expect("an option of every socket");
    let server = server(&machine);
    for mode in ["userspace", "nftables", "iptables", "ipvs"] {
        server.forget_events();
        let file = config_in(mode, &machine, "");
        let mut running = machine.start_bare(&["--config", &file, "--proxy-mode-fallback=userspace", "-v=2"]);
        running.until("an Event", |_| !notes(&server, "ProxyWay", NODE).is_empty());
        let (_, note) = event_of_way(&server);
        assert!(["way bind", "nf_tables", "modprobe -- nf_tables"].iter().all(|word| note.contains(word)), "{note}");
        running.until_synced();
        running.until("the Service", |_| machine.run(|| TcpStream::connect("10.96.0.1:80")).is_ok());
        running.until("its endpoint", |_| endpoint.accept().is_ok());
        assert_eq!(running.get(METRICS, "/proxyMode").body, "userspace");
        // A debug line of the hand-over from mode nftables, for each family.
        let absent = "\"Mode is not available here, so it has no rules\"";
        running.until("the hand-over", |running| {
            running
                .log()
                .lines()
                .filter(|line| line.contains(absent) && line.contains("\"nft table kube-proxy\""))
                .count()
                == 2
        });
        let log = running.log();
        let fell_back =
            log.lines().find(|line| line.contains("\"Configured mode can't start, running in a fallback mode\""));
        assert_eq!(fell_back.is_some(), mode != "userspace", "{log}");
        assert!(fell_back.is_none_or(|line| line.contains("modprobe -- nf_tables")), "{log}");
        assert!(!log.contains("Removing rules of an earlier run failed"), "there can be none: {log}");
    }
    // Without a fallback, the error says what to do.
    for mode in ["nftables", "iptables", "ipvs"] {
        let mut running = machine.start_bare(&["--config", &config_in(mode, &machine, "")]);
        assert_eq!(running.wait().code(), Some(1), "{}", running.log());
        assert_names(&running.log(), &[mode, "IPv4", "IPv6", "modprobe -- nf_tables"]);
    }
    for flag in ["--cleanup", "--cleanup-leftovers"] {
        let output = machine.output(&[flag]);
        assert!(output.status.success(), "{flag}: {output:?}");
    }
    // Mode iptables takes the legacy variant where the kernel has that.
    let loaded = machine.tool("modprobe", &[&["--all"], LEGACY].concat());
    assert!(loaded.status.success(), "{loaded:?}");
    // A connection has a route before its rule is looked for.
    let route = machine.tool("ip", &["route", "add", "10.96.0.0/16", "dev", "lo"]);
    assert!(route.status.success(), "{route:?}");
    let mut running = machine.start_bare(&["--config", &config_in("iptables", &machine, "")]);
    running.until_synced();
    let chosen = "\"Chose iptables variant\" variant=\"legacy\"";
    assert!(running.log().lines().any(|line| line.contains(chosen) && line.contains("offers no nf_tables")));
    running.until("the Service", |_| machine.run(|| TcpStream::connect("10.96.0.1:80")).is_ok());
    running.until("its endpoint", |_| endpoint.accept().is_ok());
}

/// A program that listens at all addresses has the port at a service address, too.
#[test]
fn an_event_of_the_node_names_a_port_that_another_program_has() {
    const OTHER: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"other","namespace":"shop"},
        "spec":{"clusterIP":"10.96.0.2","clusterIPs":["10.96.0.2"],"ipFamilies":["IPv4"],"ports":[{"port":81}]}}"#;
    const OF_OTHER: &str = r#"{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",
        "metadata":{"name":"other-1","namespace":"shop","labels":{"kubernetes.io/service-name":"other"}},"addressType":"IPv4",
        "ports":[{"name":"","port":8080}],"endpoints":[{"addresses":["10.244.0.7"]}]}"#;
    const ENDPOINT: &str = "10.244.0.7:8080";
    let machine = Machine::new();
    let added = machine.tool("ip", &["address", "add", "10.244.0.7/32", "dev", "lo"]);
    assert!(added.status.success(), "{added:?}");
    let listen = |at: &str| machine.run(|| TcpListener::bind(at).expect("a free port"));
    let (endpoint, program) = (listen(ENDPOINT), listen("0.0.0.0:80"));
    endpoint.set_nonblocking(true).expect("an option of every socket");
    let server = server(&machine);
    server.put(OTHER);
    server.put(OF_OTHER);
    let mut running = machine.start_bare(&["--config", &config(&machine, "bind")]);
    running.until("an Event", |_| !notes(&server, "ListenerFailed", NODE).is_empty());
    running.until_synced();
    let connect = |at: &str| machine.run(|| -> io::Result<TcpStream> { TcpStream::connect(at) });
    // The endpoint has a connection for each of these.
    running.until("the other Service", |_| connect("10.96.0.2:81").is_ok());
    running.until("its endpoint", |_| endpoint.accept().is_ok());
    let events = notes(&server, "ListenerFailed", NODE);
    let [note] = &events[..] else { panic!("{events:?}") };
    for word in ["IPv4: 1 port of Services", "10.96.0.1:80 over TCP", "in use", "end the program that has the port"] {
        assert!(note.contains(word), "{word} in {note}");
    }
    let log = running.log();
    assert!(log.lines().any(|line| line.starts_with('W') && line.contains("reason=\"ListenerFailed\"")), "{log}");
    let errors = metric(&running, "kubeproxy_userspace_listener_errors_total");
    assert!(errors.len() == 1 && !errors.iter().any(|line| line.ends_with(" 0")), "{errors:?}");
    drop(program);
    running.until("a listener", |_| connect("10.96.0.1:80").is_ok());
    running.until("its endpoint", |_| endpoint.accept().is_ok());
    running.until("the end of the problem", |running| running.log().contains("\"Problem of this node has ended\""));
    assert_eq!(notes(&server, "ListenerFailed", NODE).len(), 1);
}
