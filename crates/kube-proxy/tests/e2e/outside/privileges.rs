//! The privileges of a run: `CAP_NET_ADMIN`, a root file system and parameters of the kernel that can't be written, no shell and no
//! tool that the mode doesn't need; as root and as another user.

use ferry_kernel::ipset;
use rustix::process::Signal;

use crate::support::{HEALTHZ, Machine, Running};

/// The user that has no file.
const NOBODY: u32 = 65_534;
/// The tools of mode iptables.
const TOOLS: [&str; 3] = ["iptables", "iptables-restore", "iptables-save"];
/// The only mention of what a run without other privileges goes on without.
const NOT_SET: &str = "Failed to set connection tracking parameters, keeping the kernel's values";
/// Part of the warning of mode userspace on a kernel before 6.12 whose parameters can't be written.
const EARLY_DEMUX: &str = "Can't set net.ipv4.tcp_early_demux=0";
/// Part of the error of a user who may not read the list of legacy tables.
const UNREADABLE: &str = "_tables_names needs user 0 or CAP_DAC_READ_SEARCH";

/// A machine with one Service at this address.
fn machine(address: &str) -> Machine {
    let machine = Machine::new();
    add(&machine, "web", address);
    machine
}

fn add(machine: &Machine, name: &str, address: &str) {
    add_as(machine, name, &format!("spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}"));
}

/// The same with a Service of this specification.
fn add_as(machine: &Machine, name: &str, specification: &str) {
    let slice = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-1, labels: \
         {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\nports: [{{name: '', port: 8080}}]\n\
         endpoints: [{{addresses: [10.244.1.10]}}]\n"
    );
    let service = format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n{specification}\n");
    machine.write(&format!("manifests/{name}.yaml"), &format!("{service}---\n{slice}"));
}

/// The configuration of a mode, with this period in seconds, which has no effect but a new run.
fn configure(machine: &Machine, mode: &str, period: u32) {
    machine.write(
        "config.yaml",
        &format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n\
             configSyncPeriod: {period}s\nconntrack: {{tcpEstablishedTimeout: 1h1m}}\n"
        ),
    );
}

#[track_caller]
fn until_healthy(running: &mut Running<'_>) {
    running.until_synced();
    assert_eq!(running.get(HEALTHZ, "/healthz").status(), "200", "{}", running.log());
}

/// The warnings and errors, without those about the Node of these tests, which has no address.
fn complaints(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.starts_with(['W', 'E']) && !line.contains("nodePortAddresses")).collect()
}

/// Waits until that many runs have looked for all that other modes may have left: the routes of way bind are the last.
fn until_handed_over(running: &mut Running<'_>, runs: usize) {
    running.until("the end of hand-over", |running| {
        let log = running.log();
        ["IPv4", "IPv6"].iter().all(|family| {
            let is_last = |line: &&str| line.contains("domain=\"local routes to Services\"") && line.contains(family);
            log.lines().filter(is_last).count() == runs
        })
    });
}

/// Installs the tools of both families, of this variant.
fn install(machine: &Machine, variant: &str) {
    for tool in TOOLS {
        let of_variant = tool.replacen("iptables", &format!("iptables-{variant}"), 1);
        for name in [of_variant.clone(), of_variant.replacen("ip", "ip6", 1)] {
            machine.install(&name);
        }
    }
}

/// Runs a mode with these privileges, twice in one process, with changes: it starts no child process. Returns the log.
#[track_caller]
fn runs_without_children(
    machine: &Machine,
    mode: &str,
    (user, capabilities): (u32, &str),
    serves: impl Fn(&str) -> bool,
) -> String {
    configure(machine, mode, 900);
    let mut running = machine.start_confined(user, capabilities, &["--config=/mnt/config.yaml", "-v=2"]);
    running.until("its start", |running| running.log().contains("\"Starting kube-proxy\""));
    // those of the shell that prepared the place
    let children = running.children();
    running.until("the service", |_| serves("10.96.0.1"));
    until_healthy(&mut running);
    until_handed_over(&mut running, 1);
    // A new run in the same process has the same privileges.
    configure(machine, mode, 800);
    running.until("a second run", |running| running.log().matches("\"Starting kube-proxy\"").count() == 2);
    add(machine, "more", "10.96.0.2");
    running.until("another service", |_| serves("10.96.0.2"));
    until_healthy(&mut running);
    until_handed_over(&mut running, 2);
    let log = running.log();
    assert_eq!(running.children(), children, "no child process, user {user} with {capabilities}: {log}");
    log
}

#[test]
fn mode_nftables_needs_net_admin_alone_and_starts_no_process() {
    for (user, capabilities, is_readable) in
        [(0, "+net_admin", true), (NOBODY, "+net_admin", false), (NOBODY, "+net_admin,+dac_read_search", true)]
    {
        let machine = machine("10.96.0.1");
        let serves = |address: &str| machine.serves("ip", address);
        let log = runs_without_children(&machine, "nftables", (user, capabilities), serves);
        let who = format!("user {user} with {capabilities}");
        let (not_set, unreadable): (Vec<_>, Vec<_>) =
            complaints(&log).into_iter().partition(|line| line.contains(NOT_SET));
        assert_eq!(not_set.len(), 2, "once for each run, {who}: {log}");
        assert!(unreadable.iter().all(|line| line.contains(UNREADABLE)), "{who}: {unreadable:#?}");
        for gone_without in ["Reading forward chains failed", "Removing rules of an earlier run failed"] {
            let is_told = unreadable.iter().any(|line| line.contains(gone_without));
            assert_ne!(is_told, is_readable, "{gone_without}, {who}: {unreadable:#?}");
        }
        assert!(log.contains("\"Setting the OOM score failed\" score=-999"), "{who}: {log}");
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn mode_ipvs_needs_net_admin_alone_after_initialisation_and_starts_no_process() {
    let machine = machine("10.96.0.1");
    let manifests = machine.manifests();
    let start = ["--init-only", "--proxy-mode=ipvs", "--hostname-override=node", "--manifests", &manifests];
    let output = machine.output(&start);
    assert!(output.status.success(), "{output:?}");
    let serves = |address: &str| {
        let listed = String::from_utf8(machine.tool("ipvsadm", &["-ln"]).stdout).expect("text");
        listed.lines().any(|line| line.starts_with("TCP ") && line.contains(&format!(" {address}:80 ")))
    };
    let log = runs_without_children(&machine, "ipvs", (0, "+net_admin"), serves);
    let others: Vec<_> = complaints(&log).into_iter().filter(|line| !line.contains(NOT_SET)).collect();
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn mode_userspace_needs_net_admin_alone_and_starts_no_process() {
    for (user, capabilities) in [(0, "+net_admin"), (NOBODY, "+net_admin,+dac_read_search")] {
        let machine = machine("10.96.0.1");
        // Its table has the name and the map of mode nftables: traffic reaches it by way redirect.
        let serves = |address: &str| machine.serves("ip", address);
        let log = runs_without_children(&machine, "userspace", (user, capabilities), serves);
        assert_eq!(log.matches("\"Using userspace Proxier\"").count(), 2, "user {user} with {capabilities}: {log}");
        let is_other = |line: &&str| !line.contains(NOT_SET) && !line.contains(EARLY_DEMUX);
        let others: Vec<_> = complaints(&log).into_iter().filter(is_other).collect();
        assert!(others.is_empty(), "user {user} with {capabilities}: {others:#?}");
    }
}

#[test]
fn mode_iptables_needs_net_admin_alone_after_initialisation() {
    let open = |machine: &Machine| {
        let manifests = machine.manifests();
        let start = ["--init-only", "--proxy-mode=iptables", "--hostname-override=node", "--manifests", &manifests];
        let output = machine.output(&start);
        assert!(output.status.success(), "{output:?}");
    };
    for (user, capabilities) in [(0, "+net_admin"), (NOBODY, "+net_admin,+dac_read_search")] {
        let machine = machine("10.96.0.1");
        install(&machine, "nft");
        open(&machine);
        let mut running = machine.start_confined(user, capabilities, &["--proxy-mode=iptables", "-v=2"]);
        running.until("the service", |_| machine.iptables("iptables-nft-save").contains("10.96.0.1/32"));
        until_healthy(&mut running);
        let log = running.log();
        assert!(complaints(&log).iter().all(|line| line.contains(NOT_SET)), "user {user}: {log}");
    }
}

/// Many source ranges of a Service are an ipset where the tool may ask for one, and rules where it may not.
#[test]
fn mode_iptables_needs_net_raw_for_ipsets_alone() {
    let rules = |machine: &Machine| machine.iptables("iptables-nft-save").matches(" -s 198.51.").count();
    let has_set = |machine: &Machine| machine.iptables("iptables-nft-save").contains("--match-set FERRY-SRC-");
    let machine = machine("10.96.0.1");
    install(&machine, "nft");
    let ranges: Vec<String> = (0..70).map(|number| format!("198.51.{number}.0/25")).collect();
    let ranged = format!(
        "spec: {{type: LoadBalancer, clusterIP: 10.96.0.2, ports: [{{port: 80}}], loadBalancerSourceRanges: [{}]}}\n\
         status: {{loadBalancer: {{ingress: [{{ip: 203.0.113.1}}]}}}}",
        ranges.join(", ")
    );
    add_as(&machine, "ranged", &ranged);
    let start = ["--proxy-mode=iptables", "--iptables-localhost-nodeports=false"];
    let mut running = machine.start_confined(0, "+net_admin", &start);
    running.until("a rule for each range", |_| rules(&machine) == 70);
    until_healthy(&mut running);
    assert!(running.log().contains("iptables needs CAP_NET_RAW for match set"), "{}", running.log());
    running.signal(Signal::KILL);
    let mut running = machine.start_confined(0, "+net_admin,+net_raw", &start);
    // On a kernel without ipset they stay rules.
    let lacks = |running: &Running<'_>| running.log().contains("Can't use ipset");
    running.until("a set", |running| {
        (has_set(&machine) && rules(&machine) == 0) || lacks(running) && rules(&machine) == 70
    });
    until_healthy(&mut running);
    running.signal(Signal::KILL);
    let sets = || machine.run(ipset::sets).map_or(0, |sets| sets.len());
    let mut running = machine.start(&[]);
    running.until("the end of the set after another mode has taken over", |_| sets() == 0);
    running.signal(Signal::KILL);
    let mut running = machine.start_confined(0, "+net_admin,+net_raw", &start);
    running.until("the rules", |_| has_set(&machine) || rules(&machine) == 70);
    running.signal(Signal::KILL);
    let output = machine.output(&["--cleanup"]);
    assert!(output.status.success() && sets() == 0, "{output:?}");
}

#[test]
fn mode_iptables_names_what_it_lacks() {
    let machine = machine("10.96.0.1");
    install(&machine, "nft");
    for (user, arguments, error) in [
        (0, &["--proxy-mode=iptables"][..], "need net.ipv4.conf.all.route_localnet=1, which can't be set here"),
        (NOBODY, &["--proxy-mode=iptables", "--iptables-localhost-nodeports=false"], UNREADABLE),
    ] {
        let mut running = machine.start_confined(user, "+net_admin", arguments);
        assert_eq!(running.wait().code(), Some(1));
        assert!(running.log().contains(error), "{}", running.log());
    }
}

#[test]
fn the_legacy_variant_needs_net_raw() {
    let arguments = ["--proxy-mode=iptables", "--iptables-localhost-nodeports=false"];
    let machine = machine("10.96.0.1");
    install(&machine, "legacy");
    // The lock file can't be made where the file system is read-only.
    machine.write("xtables.lock", "");
    let mut running = machine.start_confined(0, "+net_admin", &arguments);
    running.until("an error", |running| running.log().contains("CAP_NET_RAW"));
    running.signal(Signal::KILL);
    let mut running = machine.start_confined(0, "+net_admin,+net_raw", &arguments);
    running.until("the service", |_| machine.iptables("iptables-legacy-save").contains("10.96.0.1/32"));
    until_healthy(&mut running);
}
