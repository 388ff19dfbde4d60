//! Black-box tests of mode iptables, and changes of mode: the rules before, during and after.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;
use std::time::Duration;

use ferry_kube_proxy::planes;
use rustix::process::Signal;

use crate::support::{HEALTHZ, METRICS, Machine, Running};

const VARIANTS: [&str; 2] = ["nft", "legacy"];
const FAMILIES: [&str; 2] = ["iptables", "ip6tables"];
const IPTABLES: &[&str] = &["--proxy-mode=iptables"];
const REMOVED: &str = "\"Removed rules of an earlier run\" family=";

/// A Service with one endpoint and a node port, in both families.
fn web(machine: &Machine) {
    let mut text = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  type: NodePort\n  \
                    clusterIPs: [10.96.0.1, 'fd00:96::1']\n  clusterIP: 10.96.0.1\n  ipFamilies: [IPv4, IPv6]\n  \
                    ports: [{port: 80, nodePort: 30080}]\n"
        .to_owned();
    for (family, endpoint) in [("IPv4", "10.244.1.10"), ("IPv6", "fd00:244::10")] {
        text += &format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web-{}, labels: \
             {{kubernetes.io/service-name: web}}}}\naddressType: {family}\nports: [{{name: '', port: 8080}}]\n\
             endpoints: [{{addresses: ['{endpoint}']}}]\n",
            family.to_lowercase()
        );
    }
    machine.write("manifests/web.yaml", &text);
}

/// Makes this variant the kubelet's, and adds an operator's rules to its tables.
fn prefer(machine: &Machine, variant: &str) {
    for family in ["iptables", "ip6tables"] {
        machine.iptables(&format!("{family}-{variant} -t mangle -N KUBE-IPTABLES-HINT"));
        machine.iptables(&format!("{family}-{variant} -N OPERATOR"));
        machine.iptables(&format!("{family}-{variant} -A OPERATOR -p tcp -m tcp --dport 25 -j DROP"));
        machine.iptables(&format!("{family}-{variant} -A INPUT -j OPERATOR"));
        machine.iptables(&format!("{family}-{variant} -t nat -A PREROUTING -p tcp -m tcp --dport 26 -j RETURN"));
    }
}

/// All tables of a variant in one family, without counters and comments.
fn saved(machine: &Machine, family: &str, variant: &str) -> Vec<String> {
    let text = machine.iptables(&format!("{family}-{variant}-save"));
    let lines = text.lines().filter(|line| line.starts_with(['-', ':']));
    lines.map(|line| line.split(" [").next().unwrap_or_default().to_owned()).collect()
}

/// The lines of a proxy, without the objects that every proxy leaves.
fn ours(machine: &Machine, variant: &str) -> Vec<String> {
    let lines = ["iptables", "ip6tables"].map(|family| saved(machine, family, variant)).concat();
    let stays = ["KUBE-FIREWALL", "KUBE-IPTABLES-HINT"];
    lines.into_iter().filter(|line| line.contains("KUBE-") && !stays.iter().any(|name| line.contains(name))).collect()
}

/// True if the Service is translated in both families.
fn translates(machine: &Machine, variant: &str) -> bool {
    ["10.96.0.1/32", "fd00:96::1/128"].iter().all(|address| {
        let jump = format!("-A KUBE-SERVICES -d {address} -p tcp -m comment --comment \"default/web cluster IP\"");
        ours(machine, variant).iter().any(|line| line.starts_with(&jump) && line.contains("-j KUBE-SVC-"))
    })
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[track_caller]
fn until_translated(running: &mut Running<'_>, machine: &Machine, variant: &str) {
    running.until("the chains", |_| translates(machine, variant));
    running.until_synced();
}

/// A proxy has served the Service in this variant, and been killed.
fn after_iptables(machine: &Machine, variant: &str) {
    web(machine);
    prefer(machine, variant);
    let mut running = machine.start_as(IPTABLES);
    until_translated(&mut running, machine, variant);
    running.signal(Signal::KILL);
}

#[test]
fn a_blank_mode_is_iptables() {
    let machine = Machine::new();
    web(&machine);
    prefer(&machine, "nft");
    let mut running = machine.start_as(&[]);
    until_translated(&mut running, &machine, "nft");
    assert_eq!(running.get(METRICS, "/proxyMode").body, "iptables");
    assert!(running.log().contains("\"Chose iptables variant\" variant=\"nft\""), "{}", running.log());
    let page = running.get(METRICS, "/metrics").body;
    for line in [
        "# HELP kubeproxy_sync_proxy_rules_iptables_total [ALPHA] Total number of iptables rules owned by kube-proxy",
        "# TYPE kubeproxy_sync_proxy_rules_iptables_last gauge",
        "kubeproxy_engine_pending_units{ip_family=\"IPv6\",mode=\"iptables\"} 0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    for table in ["filter", "nat"] {
        let begin = format!("kubeproxy_sync_proxy_rules_iptables_total{{ip_family=\"IPv4\",table=\"{table}\"}} ");
        let rules: usize = page.lines().find_map(|line| line.strip_prefix(&begin)).unwrap().parse().unwrap();
        assert!(rules > 5, "{table}: {rules}");
    }
    assert!(!page.contains("_nftables_") && !page.contains("restore_failures_total{"), "{page}");
    // Node ports on loopback: only with the guard, which is never removed.
    let localnet = || machine.run(|| ferry_kernel::sysctl::read("net.ipv4.conf.all.route_localnet")).unwrap();
    let guard = || saved(&machine, "iptables", "nft").iter().any(|line| line.contains("block incoming localnet"));
    assert_eq!((localnet().as_str(), guard()), ("1", true));
    running.signal(Signal::TERM);
    assert!(translates(&machine, "nft"), "what is in the kernel stays");
    succeeded(&machine.output(&["--cleanup"]));
    assert_eq!((localnet().as_str(), guard()), ("1", true));
}

#[test]
fn node_ports_on_loopback_can_be_declined() {
    let machine = Machine::new();
    web(&machine);
    prefer(&machine, "nft");
    let mut running = machine.start_as(&["--iptables-localhost-nodeports=false"]);
    until_translated(&mut running, &machine, "nft");
    assert_eq!(machine.run(|| ferry_kernel::sysctl::read("net.ipv4.conf.all.route_localnet")).unwrap(), "0");
    let lines = saved(&machine, "iptables", "nft");
    assert!(lines.iter().any(|line| line.starts_with("-A KUBE-SERVICES ! -d 127.0.0.0/8 ")), "{lines:?}");
}

#[test]
fn packets_outside_the_window_are_let_through_where_that_is_wanted() {
    for liberal in [false, true] {
        let machine = Machine::new();
        web(&machine);
        prefer(&machine, "nft");
        let mut running = machine.start_as(if liberal { &["--conntrack-tcp-be-liberal"] } else { &[] });
        until_translated(&mut running, &machine, "nft");
        let parameter = || ferry_kernel::sysctl::read("net.netfilter.nf_conntrack_tcp_be_liberal");
        assert_eq!(machine.run(parameter).unwrap(), if liberal { "1" } else { "0" });
        let lines = saved(&machine, "iptables", "nft");
        assert_eq!(lines.iter().any(|line| line.contains("--ctstate INVALID")), !liberal, "{lines:?}");
    }
}

#[test]
fn a_change_of_mode_leaves_nothing_of_the_other_one() {
    for variant in VARIANTS {
        let machine = Machine::new();
        web(&machine);
        prefer(&machine, variant);
        let before = ["iptables", "ip6tables"].map(|family| saved(&machine, family, variant));
        let mut running = machine.start_as(IPTABLES);
        until_translated(&mut running, &machine, variant);
        running.signal(Signal::KILL);

        let mut running = machine.start(&[]);
        running.until("the map", |_| machine.serves("ip", "10.96.0.1") && machine.serves("ip6", "fd00:96::1"));
        running.until("end of the chains", |_| ours(&machine, variant).is_empty());
        for family in ["IPv4", "IPv6"] {
            let removed = format!("{REMOVED}\"{family}\" mode=\"iptables\" domain=\"iptables-{variant}\" objects=");
            running.until("word of it", |running| running.log().contains(&removed));
        }
        for (family, before) in ["iptables", "ip6tables"].iter().zip(&before) {
            let after = saved(&machine, family, variant);
            let lost: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
            assert!(lost.is_empty(), "{variant}: {lost:?} of somebody else is gone");
        }
        running.signal(Signal::KILL);
        // Once more, with nothing to remove.
        let mut running = machine.start(&["-v=4"]);
        // In each family all domains but the two of mode nftables.
        let looks = (planes::domains().count() - 2) * FAMILIES.len();
        running.until("all looks", |running| running.log().matches("\"No leftover rules found\"").count() == looks);
        assert!(!running.log().contains("earlier run"), "{}", running.log());
        running.signal(Signal::KILL);

        let mut running = machine.start_as(IPTABLES);
        until_translated(&mut running, &machine, variant);
        running.until("end of the tables", |_| !machine.tables().iter().any(|table| table.ends_with("kube-proxy")));
        let removed = format!("{REMOVED}\"IPv6\" mode=\"nftables\" domain=\"nft table kube-proxy\" objects=");
        running.until("word of it", |running| running.log().contains(&removed));
        assert!(translates(&machine, variant));
    }
}

#[test]
fn the_old_mode_serves_until_the_new_one_does() {
    let machine = Machine::new();
    web(&machine);
    prefer(&machine, "legacy");
    let mut running = machine.start(&[]);
    running.until("the map", |_| machine.serves("ip", "10.96.0.1") && machine.serves("ip6", "fd00:96::1"));
    running.signal(Signal::KILL);
    let lock = std::fs::File::create(machine.path("xtables.lock")).unwrap();
    lock.lock().unwrap();
    let mut running = machine.start_as(IPTABLES);
    running.until("two errors", |running| running.log().matches("\"Sync failed, retrying\"").count() == 2);
    assert!(machine.serves("ip", "10.96.0.1") && machine.serves("ip6", "fd00:96::1"));
    assert!(!running.log().contains(REMOVED), "{}", running.log());
    lock.unlock().unwrap();
    until_translated(&mut running, &machine, "legacy");
    running.until("end of the tables", |_| !machine.tables().iter().any(|table| table.ends_with("kube-proxy")));
}

/// A proxy of the other mode that still runs writes its rules anew, and leaves them when it ends.
#[test]
fn rules_that_come_back_are_removed_again() {
    let machine = Machine::new();
    after_iptables(&machine, "nft");
    let rules = FAMILIES.map(|family| machine.iptables(&format!("{family}-nft-save")));
    let mut running = machine.start(&[]);
    running.until("end of the chains", |_| ours(&machine, "nft").is_empty());
    for family in ["IPv4", "IPv6"] {
        let removed = format!("{REMOVED}\"{family}\"");
        running.until("word of it", |running| running.log().contains(&removed));
    }
    for (family, rules) in FAMILIES.iter().zip(rules) {
        machine.write("rules", &rules);
        machine.iptables(&format!("{family}-nft-restore {}", machine.path("rules").display()));
    }
    assert!(translates(&machine, "nft"));
    running.until_within(Duration::from_secs(90), "end of the chains", |_| ours(&machine, "nft").is_empty());
    for family in ["IPv4", "IPv6"] {
        let again = format!(
            "\"Removed rules that another proxy has written again: is a kube-proxy of this mode still running?\" \
                             family=\"{family}\""
        );
        running.until("a warning", |running| running.log().contains(&again));
    }
}

#[test]
fn a_change_of_variant_leaves_nothing_in_the_other_one() {
    let machine = Machine::new();
    after_iptables(&machine, "legacy");
    for family in ["iptables", "ip6tables"] {
        machine.iptables(&format!("{family}-legacy -t mangle -X KUBE-IPTABLES-HINT"));
    }
    prefer(&machine, "nft");
    let mut running = machine.start_as(IPTABLES);
    until_translated(&mut running, &machine, "nft");
    running.until("end of the chains", |_| ours(&machine, "legacy").is_empty());
    assert!(translates(&machine, "nft"));
    assert!(saved(&machine, "iptables", "legacy").iter().any(|line| line == "-A INPUT -j OPERATOR"));
}

#[test]
fn cleanup_says_so_when_it_cannot_write() {
    let machine = Machine::new();
    after_iptables(&machine, "legacy");
    std::fs::remove_file(machine.path("xtables.lock")).unwrap();
    std::fs::create_dir(machine.path("xtables.lock")).unwrap();
    let output = machine.output(&["--cleanup"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("xtables.lock"), "{text}");
    assert!(translates(&machine, "legacy"));
}

#[test]
fn rules_of_the_other_mode_wait_for_a_broken_file_too() {
    let machine = Machine::new();
    after_iptables(&machine, "nft");
    let text = std::fs::read_to_string(machine.path("manifests/web.yaml")).unwrap();
    machine.write("manifests/web.yaml", "a: [");
    let mut running = machine.start(&[]);
    running.until("a warning", |running| running.log().contains("keeping the rules of an earlier run"));
    assert!(translates(&machine, "nft") && machine.tables().iter().all(|table| !table.ends_with("kube-proxy")));
    machine.write("manifests/web.yaml", &text);
    running.until("the map", |_| machine.serves("ip", "10.96.0.1"));
    running.until("end of the chains", |_| ours(&machine, "nft").is_empty());
}

#[test]
fn rules_that_cannot_be_removed_are_named_and_stay() {
    let machine = Machine::new();
    after_iptables(&machine, "legacy");
    let warning = "Removing rules of an earlier run failed";
    let mut running = machine.start_with_installed(&["--proxy-mode=nftables"]);
    running.until("the map", |_| machine.serves("ip", "10.96.0.1"));
    running.until("a warning of each family", |running| running.log().matches(warning).count() == 2);
    let log = running.log();
    let line = log.lines().find(|line| line.contains(warning)).unwrap();
    assert!(line.starts_with('W') && line.contains("not found in PATH"), "{line}");
    assert!(translates(&machine, "legacy"));
    running.signal(Signal::KILL);
    // Clean-up doesn't report success either.
    let output = machine.output_without_tools(&["--cleanup"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(translates(&machine, "legacy"));
    assert!(
        machine.tables().iter().all(|table| !table.ends_with("kube-proxy")),
        "the other mode's are gone all the same"
    );
}

/// As in the image from scratch.
#[test]
fn without_the_tool_rules_of_the_nft_variant_are_removed() {
    let machine = Machine::new();
    web(&machine);
    prefer(&machine, "nft");
    let before = FAMILIES.map(|family| saved(&machine, family, "nft"));
    let others_stay = || {
        for (family, before) in FAMILIES.iter().zip(&before) {
            let after = saved(&machine, family, "nft");
            let lost: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
            assert!(lost.is_empty(), "{family}: {lost:?} of somebody else is gone");
        }
    };
    let mut running = machine.start_as(IPTABLES);
    until_translated(&mut running, &machine, "nft");
    running.signal(Signal::KILL);
    // A network plugin marks its own packets by the chain that the proxy has made.
    for rule in ["-N CNI", "-A CNI -s 10.244.1.10/32 -j KUBE-MARK-MASQ", "-A POSTROUTING -j CNI"] {
        machine.iptables(&format!("iptables-nft -t nat {rule}"));
    }
    let of_plugin = [":KUBE-MARK-MASQ -", "-A CNI -s 10.244.1.10/32 -j KUBE-MARK-MASQ"];
    let mut running = machine.start_with_installed(&["--proxy-mode=nftables"]);
    running.until("the map", |_| machine.serves("ip", "10.96.0.1") && machine.serves("ip6", "fd00:96::1"));
    running.until("end of the chains", |_| ours(&machine, "nft") == of_plugin);
    for family in ["IPv4", "IPv6"] {
        let removed = format!("{REMOVED}\"{family}\" mode=\"iptables\" domain=\"iptables-nft\" objects=");
        running.until("word of it", |running| running.log().contains(&removed));
    }
    others_stay();
    running.signal(Signal::KILL);

    let mut running = machine.start_as(IPTABLES);
    until_translated(&mut running, &machine, "nft");
    running.signal(Signal::KILL);
    succeeded(&machine.output_without_tools(&["--cleanup"]));
    assert_eq!(ours(&machine, "nft"), of_plugin);
    others_stay();
}

#[test]
fn a_family_without_a_tool_is_left_out() {
    let machine = Machine::new();
    web(&machine);
    prefer(&machine, "nft");
    for program in ["iptables-nft", "iptables-nft-restore", "iptables-nft-save"] {
        machine.install(program);
    }
    let mut running = machine.start_with_installed(IPTABLES);
    running.until_families_synced(&["IPv4"]);
    let log = running.log();
    let line = log.lines().find(|line| line.contains("Family can't be served")).unwrap_or_else(|| panic!("{log}"));
    assert!(
        line.starts_with('E') && line.contains("family=\"IPv6\"") && line.contains("ip6tables-nft-restore"),
        "{line}"
    );
    let lines = saved(&machine, "iptables", "nft");
    assert!(lines.iter().any(|line| line.starts_with("-A KUBE-SERVICES -d 10.96.0.1/32 ")), "{lines:?}");
    assert!(!saved(&machine, "ip6tables", "nft").iter().any(|line| line.contains("KUBE-SERVICES")));
}

/// Installs the tools of the legacy variant, with this script in place of one.
fn install_but(machine: &Machine, scripted: &str, script: &str) {
    for family in FAMILIES {
        for program in ["", "-restore", "-save"].map(|end| format!("{family}-legacy{end}")) {
            if program != scripted {
                machine.install(&program);
            }
        }
    }
    let file = machine.write(&format!("tools/{scripted}"), script);
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).expect("making it executable");
}

/// The tool's message on a kernel without the table: no test kernel lacks it.
const NO_TABLE: &str = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'ip6tables-restore v1.8.9 (legacy)' && exit\n\
                        echo \"ip6tables-restore v1.8.9 (legacy): unable to initialize table 'nat'\" >&2\nexit 1\n";

#[test]
fn a_family_whose_table_the_kernel_lacks_is_left_out() {
    let machine = Machine::new();
    web(&machine);
    prefer(&machine, "legacy");
    install_but(&machine, "ip6tables-legacy-restore", NO_TABLE);
    let mut running = machine.start_with_installed(IPTABLES);
    running.until_families_synced(&["IPv4"]);
    let log = running.log();
    let line = log.lines().find(|line| line.contains("Family can't be served")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("family=\"IPv6\"") && line.contains("table nat"), "{line}");
    assert!(
        saved(&machine, "iptables", "legacy").iter().any(|line| line.starts_with("-A KUBE-SERVICES -d 10.96.0.1/32 "))
    );
}

/// Health and logs follow the beginning and the end of the cause.
#[track_caller]
fn suffers(machine: &Machine, running: &mut Running<'_>, variant: &str, named: &str, mend: impl FnOnce()) {
    let before = saved(machine, "iptables", variant);
    let text = std::fs::read_to_string(machine.path("manifests/web.yaml")).expect("the manifest");
    machine.write("manifests/web.yaml", &text.replace("10.244.1.10", "10.244.1.11"));
    running.until("an error", |running| running.log().contains("\"Sync failed, retrying\""));
    let log = running.log();
    let line = log.lines().find(|line| line.contains("Sync failed")).expect("the line");
    assert!(line.starts_with('E') && line.contains(named), "{line}");
    running.until("503", |_| health(machine).as_deref() == Some("503"));
    assert_eq!(saved(machine, "iptables", variant), before);
    mend();
    running.until("200", |_| health(machine).as_deref() == Some("200"));
    let dnat = "-j DNAT --to-destination 10.244.1.11:8080";
    running.until("the rule", |_| saved(machine, "iptables", variant).iter().any(|line| line.ends_with(dnat)));
    let page = running.get(METRICS, "/metrics").body;
    assert!(
        page.contains("\nkubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"} "),
        "{page}"
    );
}

fn health(machine: &Machine) -> Option<String> {
    machine.ask("GET", HEALTHZ, "/healthz").map(|answer| answer.status().to_owned())
}

/// A proxy that serves the Service with removable tools.
fn with_tools_of_its_own(machine: &Machine) -> Running<'_> {
    web(machine);
    prefer(machine, "nft");
    for family in FAMILIES {
        for end in ["", "-restore", "-save"] {
            machine.install(&format!("{family}-nft{end}"));
        }
    }
    let mut running = machine.start_with_installed(HASTY);
    until_translated(&mut running, machine, "nft");
    running
}

const HASTY: &[&str] = &["--proxy-mode=iptables", "--iptables-sync-period=1s"];

#[test]
fn a_tool_that_vanishes_is_named_and_waited_for() {
    let machine = Machine::new();
    let mut running = with_tools_of_its_own(&machine);
    let (tool, aside) = (machine.path("tools/iptables-nft-restore"), machine.path("aside"));
    std::fs::rename(&tool, &aside).unwrap();
    running.kill_children();
    suffers(&machine, &mut running, "nft", "iptables-nft-restore not found in PATH", || {
        std::fs::rename(&aside, &tool).unwrap()
    });
}

/// Nothing is handed over here: what is in force is taken away.
#[test]
fn damage_that_cannot_be_mended_is_unhealthy_until_it_is() {
    let machine = Machine::new();
    let mut running = with_tools_of_its_own(&machine);
    let (tool, aside) = (machine.path("tools/iptables-nft-restore"), machine.path("aside"));
    std::fs::rename(&tool, &aside).unwrap();
    running.kill_children();
    machine.iptables("iptables-nft -t nat -F KUBE-SERVICES");
    running.until("an error", |running| running.log().contains("\"Sync failed, retrying\""));
    running.until("503", |_| health(&machine).as_deref() == Some("503"));
    std::fs::rename(&aside, &tool).unwrap();
    running.until("200", |_| health(&machine).as_deref() == Some("200"));
    assert!(translates(&machine, "nft"));
    running.until("word of it", |running| running.log().contains("\"Sync succeeds again\""));
}

#[test]
fn a_lock_that_is_never_free_is_named_and_waited_for() {
    let machine = Machine::new();
    web(&machine);
    prefer(&machine, "legacy");
    let mut running = machine.start_as(HASTY);
    until_translated(&mut running, &machine, "legacy");
    let lock = std::fs::File::open(machine.path("xtables.lock")).unwrap();
    lock.lock().unwrap();
    suffers(&machine, &mut running, "legacy", "another program has held the lock", || lock.unlock().unwrap());
    let page = running.get(METRICS, "/metrics").body;
    let name = "kubeproxy_engine_lock_wait_seconds_total{ip_family=\"IPv4\",mode=\"iptables\"} ";
    let waited: f64 = page.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap();
    assert!(waited > 4.0, "{waited}");
}

#[test]
fn cleanup_removes_both_variants() {
    removes_both_variants("--cleanup");
}

#[test]
fn the_old_name_of_cleanup_removes_the_same() {
    removes_both_variants("--cleanup-iptables");
}

/// Runs the executable with one flag, which has to end by itself; returns its log.
#[track_caller]
fn ended(machine: &Machine, flag: &str) -> String {
    let mut running = machine.start_bare(&[flag]);
    let status = running.wait();
    let log = running.log();
    assert!(status.success(), "{status}: {log}");
    log
}

/// Rules of both variants are removed by this flag, and no proxy starts.
#[track_caller]
fn removes_both_variants(flag: &str) {
    let machine = Machine::new();
    web(&machine);
    let before = VARIANTS.map(|variant| {
        prefer(&machine, variant);
        let before = saved(&machine, "iptables", variant);
        let mut running = machine.start_as(IPTABLES);
        until_translated(&mut running, &machine, variant);
        running.signal(Signal::KILL);
        machine.iptables(&format!("iptables-{variant} -t mangle -X KUBE-IPTABLES-HINT"));
        machine.iptables(&format!("ip6tables-{variant} -t mangle -X KUBE-IPTABLES-HINT"));
        let left = FAMILIES.map(|family| machine.iptables(&format!("{family}-{variant}-save")));
        (before, left)
    });
    // The second run has removed what the first one left, which comes back.
    let (before, [left, _]) = (before.each_ref().map(|(before, _)| before), before.each_ref().map(|(_, left)| left));
    for (family, text) in FAMILIES.iter().zip(left) {
        machine.write("left", text);
        let file = machine.path("left");
        machine.iptables(&format!("{family}-{}-restore {}", VARIANTS[0], file.display()));
    }
    // A proxy of the same mode takes over all of it.
    let text = succeeded(&machine.output(&["--cleanup-leftovers"]));
    assert!(text.contains("mode=\"iptables\" family=\"IPv4\""), "{text}");
    assert!(VARIANTS.iter().all(|variant| translates(&machine, variant)));
    let text = ended(&machine, flag);
    for variant in VARIANTS {
        assert!(text.contains(&format!("domain=\"iptables-{variant}\" objects=")), "{text}");
        assert_eq!(ours(&machine, variant), [""; 0]);
    }
    for (variant, before) in VARIANTS.iter().zip(before) {
        let after = saved(&machine, "iptables", variant);
        let lost: Vec<_> = before.iter().filter(|line| !after.contains(line) && !line.contains("HINT")).collect();
        assert!(lost.is_empty(), "{variant}: {lost:?} of somebody else is gone");
    }
    let text = ended(&machine, flag);
    assert!(!text.contains("objects="), "{text}");
}

/// Runs the real tool, except for table mangle, which this kernel seems to lack: only a canary uses it.
const NO_MANGLE: &str = "#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
                         [ \"$1\" = --version ] && exec iptables-legacy-restore --version\ninput=$(cat)\n\
                         case \"$input\" in *'*mangle'*)\n\
                         echo \"iptables-restore v1.8.9 (legacy): unable to initialize table 'mangle'\" >&2\nexit 2;;\nesac\n\
                         printf '%s\\n' \"$input\" | iptables-legacy-restore \"$@\"\n";

#[test]
fn a_family_whose_kernel_lacks_mangle_is_served() {
    let machine = Machine::new();
    web(&machine);
    prefer(&machine, "legacy");
    install_but(&machine, "iptables-legacy-restore", NO_MANGLE);
    let mut running = machine.start_with_installed(IPTABLES);
    until_translated(&mut running, &machine, "legacy");
    let log = running.log();
    let line = log.lines().find(|line| line.contains("Kernel lacks this table")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.starts_with('W') && line.contains("mangle"), "{line}");
    let canaries = FAMILIES.map(|family| {
        saved(&machine, family, "legacy").iter().filter(|line| line.starts_with(":KUBE-PROXY-CANARY")).count()
    });
    assert_eq!(canaries, [2, 3]);
    assert_eq!(health(&machine).as_deref(), Some("200"));
}
