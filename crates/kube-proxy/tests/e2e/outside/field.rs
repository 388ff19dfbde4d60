//! Command lines and files of real clusters, unchanged but for addresses and paths: the executable starts with them against an
//! API server and serves its Services in the mode that they configure.

use ferry_api::object::Kind;
use ferry_lab::api::{ApiServer, ApiServerOptions};

use crate::support::{METRICS, Machine, Running, SERVICE, SLICE};

/// The name of the node, as the command lines pass it.
const NODE: &str = "ip-192-0-2-10.internal";
/// The address of the node, on its loopback device.
const ADDRESS: &str = "192.0.2.10";
/// Part of the line about a configuration without nodePortAddresses.
const ADVICE: &str = "nodePortAddresses is unset; ";
/// What kubeadm writes as `config.conf`; `FOLDER` is `/var/lib/kube-proxy` there.
const KUBEADM: &str = include_str!("field/kubeadm.yaml");
/// What kubeadm writes as `kubeconfig.conf`; `SERVER` is the control plane, `FOLDER` the service account's directory there.
const KUBEADM_KUBECONFIG: &str = include_str!("field/kubeadm-kubeconfig.yaml");
/// A file of Kubernetes 1.14's time; `NODE_IP` is the node's own address there, `KUBECONFIG` a path.
const OF_1_14: &str = include_str!("field/of-1.14.yaml");

/// A node of a cluster: a machine, and an API server that it reaches on loopback.
struct Node {
    machine: Machine,
    server: ApiServer,
}

// === impl Node ===

impl Node {
    fn new() -> Self {
        let machine = Machine::new();
        let output = machine.tool("ip", &["address", "add", &format!("{ADDRESS}/32"), "dev", "lo"]);
        assert!(output.status.success(), "{output:?}");
        let server = machine.run(|| ApiServer::start(ApiServerOptions::secure()));
        server.put(&format!(
            r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{NODE}"}},
                "spec":{{"podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24"]}},
                "status":{{"addresses":[{{"type":"InternalIP","address":"{ADDRESS}"}}]}}}}"#
        ));
        server.put(SERVICE);
        server.put(SLICE);
        Self { machine, server }
    }

    /// The path of a kubeconfig for the server.
    fn kubeconfig(&self) -> String {
        self.machine.write("kubeconfig", &self.server.kubeconfig_text())
    }

    /// The path of a kubeconfig with the right credentials and another server, which `--master` replaces.
    fn kubeconfig_of_another_server(&self) -> String {
        let text = self.server.kubeconfig_text().replace(&self.server.url(), "https://192.0.2.99:6443");
        self.machine.write("kubeconfig", &text)
    }

    /// Starts the executable; returns it once it serves the Service of the API server in this mode, by the log, by `/proxyMode`
    /// and in the kernel.
    #[track_caller]
    fn start(&self, mode: &str, metrics: &str, arguments: &[&str]) -> Running<'_> {
        let mut running = self.machine.start_bare(arguments);
        running.until("its mode", |running| running.log().contains(&format!("\"Using {mode} Proxier\"")));
        running.until("the Service in the kernel", |_| self.serves(mode));
        let answer = running.get(metrics, "/proxyMode");
        assert_eq!((answer.status(), &*answer.body), ("200", mode), "{}", running.log());
        let log = running.log();
        assert!(log.contains(&format!("\"Successfully retrieved NodeIPs\" NodeIPs=\"{ADDRESS}")), "{log}");
        // Upstream logs its advice about nodePortAddresses as an error, too.
        let mut errors = log.lines().filter(|line| line.starts_with('E') && !line.contains(ADVICE));
        assert_eq!(errors.next(), None, "{log}");
        assert!(
            self.server.requests().iter().any(|request| request.path_and_query.contains(NODE)),
            "the Node of this name"
        );
        assert!(self.server.delete(Kind::Service, "shop/web").is_some());
        running.until("end of the Service in the kernel", |_| !self.serves(mode));
        self.server.put(SERVICE);
        running
    }

    /// True if the cluster IP leads to the endpoint.
    fn serves(&self, mode: &str) -> bool {
        match mode {
            "nftables" => self.machine.serves("ip", "10.96.0.1"),
            "ipvs" => {
                let listed = self.machine.tool("ipvsadm", &["-ln"]);
                let listed = String::from_utf8(listed.stdout).expect("text");
                let server = listed.split("\nTCP ").find(|server| server.trim_start().starts_with("10.96.0.1:80 rr"));
                server.is_some_and(|server| server.contains("-> 10.244.0.7:8080 "))
            }
            _ => {
                let rules = ["iptables-nft-save", "iptables-legacy-save"].map(|tool| self.machine.iptables(tool));
                rules.iter().any(|rules| rules.contains("-d 10.96.0.1/32") && rules.contains("10.244.0.7:8080"))
            }
        }
    }

    /// Starts the executable in mode ipvs. Where the kernel has IPVS it serves, else it ends with an error that names what is
    /// missing, and with a fallback it runs in that.
    #[track_caller]
    fn start_in_mode_ipvs(&self, metrics: &str, arguments: &[&str]) {
        if ferry_kernel::module::find("ip_vs").is_present() {
            self.start("ipvs", metrics, arguments);
            return;
        }
        let mut running = self.machine.start_bare(arguments);
        assert_eq!(running.wait().code(), Some(1), "{}", running.log());
        let log = running.log();
        let line = log.lines().rfind(|line| line.contains("\"command failed\"")).unwrap_or_else(|| panic!("{log}"));
        let lacks = "\"command failed\" err=\"mode ipvs can't be used on this machine: IPv4: not usable here: the kernel has no IPVS: kernel module ip_vs ";
        assert!(line.contains(lacks) && line.contains("`modprobe -- ip_vs`"), "{line}");
        drop(running);
        let with_fallback = [arguments, &["--proxy-mode-fallback=nftables"]].concat();
        let running = self.start("nftables", metrics, &with_fallback);
        let log = running.log();
        let message =
            "\"Configured mode can't start, running in a fallback mode\" configured=\"ipvs\" mode=\"nftables\"";
        assert!(log.contains(message), "{log}");
    }
}

/// True if the log has this message about a flag, as a warning.
fn warns(log: &str, message: &str, flag: &str) -> bool {
    log.lines().any(|line| line.starts_with('W') && line.ends_with(&format!("\"{message}\" flag=\"{flag}\"")))
}

#[test]
fn a_configuration_file_with_flags_of_glog() {
    let node = Node::new();
    let file = node.machine.write(
        "config.yaml",
        &format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: {NODE}\n\
             clientConnection: {{kubeconfig: {}}}\nclusterCIDR: 10.244.0.0/16\nmode: nftables\n",
            node.kubeconfig()
        ),
    );
    let running = node.start("nftables", METRICS, &[&format!("--config={file}"), "--logtostderr=true", "--v=2"]);
    let log = running.log();
    assert!(warns(&log, "Flag was removed upstream and has no effect", "logtostderr"), "{log}");
    assert!(log.contains("] FLAG: --v=\"2\"\n"), "{log}");
}

#[test]
fn a_master_and_a_kubeconfig_in_mode_iptables() {
    let node = Node::new();
    let kubeconfig = node.kubeconfig_of_another_server();
    let arguments = [
        &format!("--master={}", node.server.url())[..],
        &format!("--kubeconfig={kubeconfig}"),
        "--proxy-mode=iptables",
        "--v=1",
        "--logtostderr=true",
        "--cluster-cidr=10.244.0.0/16",
    ];
    // The command line has no name for the node: it is the host's.
    let host = rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase();
    node.server.put(&format!(
        r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{host}"}},"spec":{{}},
            "status":{{"addresses":[{{"type":"InternalIP","address":"{ADDRESS}"}}]}}}}"#
    ));
    let mut running = node.machine.start_bare(&arguments);
    running.until("its mode", |running| running.log().contains("\"Using iptables Proxier\""));
    running.until("the Service in the kernel", |_| node.serves("iptables"));
    assert_eq!(running.get(METRICS, "/proxyMode").body, "iptables");
    let log = running.log();
    assert!(log.contains(&format!("] FLAG: --master=\"{}\"\n", node.server.url())), "{log}");
    assert!(log.contains("] FLAG: --cluster-cidr=\"10.244.0.0/16\"\n"), "{log}");
    assert!(warns(&log, "Flag was removed upstream and has no effect", "logtostderr"), "{log}");
    // The range of pods is known: others are masqueraded on their way to a cluster IP.
    let rules = ["iptables-nft-save", "iptables-legacy-save"].map(|tool| node.machine.iptables(tool)).concat();
    assert!(rules.contains("! -s 10.244.0.0/16 -d 10.96.0.1/32"), "{rules}");
}

#[test]
fn flags_of_mode_ipvs_with_a_gate_of_its_first_releases() {
    let node = Node::new();
    let arguments = [
        &format!("--bind-address={ADDRESS}")[..],
        &format!("--hostname-override={NODE}"),
        "--masquerade-all",
        "--feature-gates=SupportIPVSProxyMode=true",
        "--proxy-mode=ipvs",
        "--ipvs-min-sync-period=5s",
        "--ipvs-sync-period=5s",
        "--ipvs-scheduler=rr",
        &format!("--kubeconfig={}", node.kubeconfig()),
        "--cluster-cidr=10.244.0.0/16",
    ];
    node.start_in_mode_ipvs(METRICS, &arguments);
    let log = std::fs::read_to_string(node.machine.path("log")).expect("the log of the last start");
    assert!(log.contains("unrecognized feature gate: SupportIPVSProxyMode"), "{log}");
}

/// The file of Kubernetes 1.14's time for this node.
fn of_1_14(node: &Node) -> String {
    OF_1_14.replace("KUBECONFIG", &node.kubeconfig()).replace("NODE_NAME", NODE).replace("NODE_IP", ADDRESS)
}

#[test]
fn a_file_of_kubernetes_1_14() {
    let node = Node::new();
    let file = node.machine.write("kube-proxy.yaml", &of_1_14(&node));
    node.start_in_mode_ipvs(&format!("{ADDRESS}:10249"), &[&format!("--config={file}")]);
    let log = std::fs::read_to_string(node.machine.path("log")).expect("the log of the last start");
    let line = log.lines().find(|line| line.contains("\"Using lenient decoding as strict decoding failed\""));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    for section in ["kubeProxyIPTablesConfiguration", "kubeProxyIPVSConfiguration"] {
        assert!(line.contains(&format!("unknown field \\\"{section}\\\"")), "{line}");
    }
}

/// With another mode in the same file it runs in that, at the node's own address.
#[test]
fn a_file_of_that_time_in_mode_iptables() {
    let node = Node::new();
    let text = of_1_14(&node).replace("mode: \"ipvs\"", "mode: \"iptables\"");
    let file = node.machine.write("kube-proxy.yaml", &text);
    let mut running = node.start("iptables", &format!("{ADDRESS}:10249"), &[&format!("--config={file}")]);
    running.until("health", |running| running.get(&format!("{ADDRESS}:10256"), "/healthz").status() == "200");
    assert!(node.machine.ask("GET", METRICS, "/metrics").is_none());
}

#[test]
fn the_two_files_of_kubeadm() {
    let node = Node::new();
    let folder = node.machine.path("").display().to_string();
    let folder = folder.trim_end_matches('/');
    let kubeconfig = node.server.kubeconfig_text();
    let field = |name: &str| {
        let line = kubeconfig.lines().find_map(|line| line.split_once(&format!("{name}: "))).expect("a field");
        line.1.trim_end_matches('}').to_owned()
    };
    let decoded = node.machine.write("ca.b64", &field("certificate-authority-data"));
    let authority = node.machine.tool("base64", &["--decode", &decoded]);
    node.machine.write("ca.crt", std::str::from_utf8(&authority.stdout).expect("a certificate"));
    node.machine.write("token", &field("token"));
    let of_kubeadm = KUBEADM_KUBECONFIG.replace("FOLDER", folder).replace("SERVER", &node.server.url());
    node.machine.write("kubeconfig.conf", &of_kubeadm);
    let file = node.machine.write("config.conf", &KUBEADM.replace("FOLDER", folder));
    // The kubelet has replaced $(NODE_NAME) of the DaemonSet.
    let arguments = [&format!("--config={file}")[..], &format!("--hostname-override={NODE}")];
    let mut running = node.start("iptables", METRICS, &arguments);
    running.until("health", |running| running.get("127.0.0.1:10256", "/healthz").status() == "200");
    let log = running.log();
    assert!(!log.contains("lenient") && !log.contains("Flag is ignored"), "{log}");
    let advice = format!(
        "\"Kube-proxy configuration may be incomplete or incorrect\" err=\"{ADVICE}NodePort connections will be \
         accepted on all local IPs. Consider using `--nodeport-addresses primary`\""
    );
    assert!(log.lines().any(|line| line.starts_with('E') && line.ends_with(&advice)), "{advice}\n{log}");
    // At level 0 the log names version, effective mode, addresses, IP families and each kernel parameter that is set.
    for line in [
        "\"Starting kube-proxy\" version=\"v1.",
        "\"kube-proxy running in dual-stack mode\" primary ipFamily=\"IPv4\"",
        "\"Set sysctl\" entry=\"net.netfilter.nf_conntrack_tcp_timeout_close_wait\" value=\"3600\"",
        "\"Set sysctl\" entry=\"net.ipv4.conf.all.route_localnet\" value=\"1\"",
    ] {
        assert!(log.contains(line), "{line}\n{log}");
    }
}

#[test]
fn the_arguments_of_k3s() {
    let node = Node::new();
    let arguments = [
        "--cluster-cidr=10.42.0.0/16",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-close-wait=0s",
        "--conntrack-tcp-timeout-established=0s",
        "--healthz-bind-address=127.0.0.1",
        &format!("--hostname-override={NODE}"),
        &format!("--kubeconfig={}", node.kubeconfig()),
        "--proxy-mode=iptables",
    ];
    let mut running = node.start("iptables", METRICS, &arguments);
    running.until("health", |running| running.get("127.0.0.1:10256", "/healthz").status() == "200");
    assert!(node.machine.ask("GET", &format!("{ADDRESS}:10256"), "/healthz").is_none(), "on loopback only");
    let log = running.log();
    assert!(!log.contains("nf_conntrack"), "zero leaves the kernel's values: {log}");
    assert!(!log.contains("Flag "), "{log}");
}

#[test]
fn the_arguments_of_kops() {
    let node = Node::new();
    let (master, kubeconfig) = (format!("--master={}", node.server.url()), node.kubeconfig_of_another_server());
    let (kubeconfig, name) = (format!("--kubeconfig={kubeconfig}"), format!("--hostname-override={NODE}"));
    let common = ["--cluster-cidr=100.96.0.0/11", "--conntrack-max-per-core=131072", &name, &kubeconfig, &master];
    let running = node.start("iptables", METRICS, &[&common[..], &["--oom-score-adj=-998", "--v=2"]].concat());
    assert!(running.log().contains("] FLAG: --oom-score-adj=\"-998\"\n"), "{}", running.log());
    drop(running);
    // Its releases for Kubernetes up to 1.25 let the program write a file of its own.
    let older = [
        "--oom-score-adj=-998",
        "--resource-container=",
        "--alsologtostderr=true",
        "--log-file=/var/log/kube-proxy.log",
        "--logtostderr=false",
        "--v=2",
    ];
    let running = node.start("iptables", METRICS, &[&common[..], &older].concat());
    let log = running.log();
    for flag in ["resource-container", "alsologtostderr", "log-file", "logtostderr"] {
        assert!(warns(&log, "Flag was removed upstream and has no effect", flag), "{flag}\n{log}");
    }
}
