//! Kernel modules that are missing: IPVS itself, and schedulers.

use std::fs;
use std::process::Command;
use std::time::Duration;

use ferry_lab::loader::NoLoader;
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::patience::until;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, LabMachine, Manifests, Stage, TestService};

use crate::support::{ipvs, run_to_end, server, stage, stage_with};

const SCHEDULER: &str = "ferry.io/ipvs-scheduler";
/// Namespaces that end with earlier tests end a little later than these.
const UNUSED: Duration = Duration::from_secs(10);
/// Missing schedulers are looked for once a minute.
const LOOK: Duration = Duration::from_secs(90);

/// The modules of this machine are not visible as long as this exists, as in a container.
struct Hidden;

// === impl Hidden ===

impl Hidden {
    fn new() -> Self {
        run("mount", &["-t", "tmpfs", "none", "/lib/modules"]);
        Self
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        run("umount", &["/lib/modules"]);
    }
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().expect("a program");
    assert!(status.success(), "{program} {}: {status}", arguments.join(" "));
}

/// The modules of IPVS that are loaded, users first.
fn loaded() -> Vec<String> {
    let listed = fs::read_to_string("/proc/modules").expect("a kernel with modules");
    let names = listed.lines().filter_map(|line| line.split(' ').next()).filter(|name| name.starts_with("ip_vs"));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_by_key(|name| name == "ip_vs");
    names
}

/// Ends the proxy, removes its servers, and unloads IPVS.
fn unload(stage: &mut Stage<'_>) {
    stage.terminate();
    run_to_end(stage.lab, &["--cleanup"]);
    until("IPVS is unloaded", UNUSED, || {
        let names = loaded();
        // One that is still in use is tried again.
        names.is_empty() || Command::new("rmmod").args(names).status().is_ok_and(|status| status.success())
    });
}

/// The log of a start that fails.
fn failing_start(stage: &mut Stage<'_>) -> String {
    stage.start();
    let status = stage.proxy.wait();
    let log = stage.proxy.log();
    assert!(!status.success(), "{log}");
    log
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn without_ipvs_the_advice_is_named_and_a_fallback_serves() {
    let web = || Manifests::new().with(TestService::new("web", 70), &[LabMachine::PodA]);
    // Loads the modules of the fallback.
    let mut stage = stage_with(&ProxyConfig::default(), &web());
    stage.reset(&ipvs(""), &web());
    unload(&mut stage);
    let loader = NoLoader::new();
    let log = failing_start(&mut stage);
    let advice = "run `modprobe -- ip_vs`, and write `ip_vs` to /etc/modules-load.d/kube-proxy.conf";
    assert!(log.contains("the kernel has no IPVS: kernel module ip_vs is not loaded") && log.contains(advice), "{log}");
    let hidden = Hidden::new();
    let log = failing_start(&mut stage);
    assert!(log.contains("as in a container; on the node, ") && log.contains(advice), "{log}");
    drop(hidden);
    let fallback = "---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nproxyModeFallback: [nftables]";
    stage.reset(&ipvs(fallback), &web());
    let mode = |stage: &Stage<'_>| {
        let answer = stage.proxy.get(10249, "/proxyMode").unwrap_or_default();
        answer.rsplit("\r\n").next().unwrap_or_default().to_owned()
    };
    assert_eq!(mode(&stage), "nftables");
    let labels = ["mode=\"nftables\"", "configured=\"ipvs\""];
    assert!((stage.proxy.metric("kubeproxy_engine_mode_info", &labels) - 1.0).abs() < f64::EPSILON);
    let log = stage.proxy.log();
    let told = log.lines().any(|line| line.contains("running in a fallback mode") && line.contains(advice));
    assert!(told, "{log}");
    for family in Family::ALL {
        assert!(stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, 70), 2).all_answered(), "{family}");
    }
    // The next start finds it.
    drop(loader);
    stage.kill();
    stage.start();
    let node = stage.node();
    stage.proxy.wait_for("mode ipvs", |_| server(node, at_cluster_ip(Family::V6, 70)).is_some());
    stage.wait();
    assert_eq!(mode(&stage), "ipvs");
}

/// A subcommand reads from the running proxy which scheduler is in use.
fn assert_nothing_to_do(stage: &Stage<'_>) {
    // The scheduler is logged before the commit that uses another one.
    until("an empty plan", UNUSED, || run_to_end(stage.lab, &["plan"]).0.success());
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_missing_scheduler_is_named_and_the_configured_one_serves() {
    let with = |scheduler| {
        Manifests::new().with(TestService::new("web", 71).annotate(SCHEDULER, scheduler), &[LabMachine::PodA])
    };
    let mut stage = stage(&Manifests::new());
    unload(&mut stage);
    stage.reset(&ipvs(""), &Manifests::new());
    let settings =
        |stage: &Stage<'_>| server(stage.node(), at_cluster_ip(Family::V4, 71)).map(|server| server.settings);
    let loader = NoLoader::new();
    stage.set(&with("lblc"));
    assert_eq!(settings(&stage).as_deref(), Some("rr"));
    let advice = "run `modprobe -- ip_vs_lblc`, and write `ip_vs_lblc` to /etc/modules-load.d/kube-proxy.conf";
    stage.proxy.wait_for("an advice", |proxy| proxy.log().contains(advice));
    let message = "the kernel of this node doesn't have the scheduler lblc: the configured one, rr, is used";
    stage.proxy.wait_for("a message about the Service", |proxy| proxy.log().contains(message));
    assert_nothing_to_do(&stage);
    for family in Family::ALL {
        assert!(stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, 71), 2).all_answered(), "{family}");
    }
    // The operator follows the advice.
    run("modprobe", &["--", "ip_vs_lblc"]);
    until("the Service's own scheduler", LOOK, || settings(&stage).as_deref() == Some("lblc"));
    // It is unloaded while no Service uses it, and asked for again.
    stage.set(&with("rr"));
    run("rmmod", &["ip_vs_lblc"]);
    stage.set(&with("lblc"));
    assert_eq!(settings(&stage).as_deref(), Some("rr"));
    for family in Family::ALL {
        assert!(stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, 71), 2).all_answered(), "{family}");
    }
    assert_nothing_to_do(&stage);
    run("modprobe", &["--", "ip_vs_lblc"]);
    until("the Service's own scheduler again", LOOK, || settings(&stage).as_deref() == Some("lblc"));
    // The configured one is missing: nothing can take its place.
    unload(&mut stage);
    run("modprobe", &["--", "ip_vs"]);
    let file = stage.folder().join("without.yaml");
    ipvs("ipvs: {scheduler: lblc, minSyncPeriod: 1ms}").write(&file);
    let manifests = stage.folder().join("manifests");
    let [file, manifests] = [&file, &manifests].map(|path| path.to_str().expect("text"));
    let (status, log) = run_to_end(stage.lab, &["--config", file, "--manifests", manifests]);
    assert!(!status.success() && log.contains("the kernel has no scheduler lblc") && log.contains(advice), "{log}");
    drop(loader);
}

/// Debian's Linux 6.1 lacks a scheduler that 6.12 has.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_scheduler_that_the_kernel_lacks_is_named() {
    let found = Command::new("modprobe").args(["--dry-run", "--quiet", "ip_vs_twos"]).status().expect("modprobe");
    let web = TestService::new("web", 72).annotate(SCHEDULER, "twos");
    let mut stage = stage(&Manifests::new().with(web, &[LabMachine::PodA, LabMachine::Far]));
    let settings = server(stage.node(), at_cluster_ip(Family::V4, 72)).map(|server| server.settings);
    if !found.success() {
        assert_eq!(settings.as_deref(), Some("rr"));
        let advice = "kernel module ip_vs_twos does not exist on this machine";
        stage.proxy.wait_for("an advice", |proxy| proxy.log().contains(advice));
    } else {
        assert_eq!(settings.as_deref(), Some("twos"));
    }
    for family in Family::ALL {
        let tally = stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, 72), 40);
        assert!(tally.all_answered() && tally.endpoints().len() == 2, "{family}: {tally}");
    }
    assert_nothing_to_do(&stage);
}
