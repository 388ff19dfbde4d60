//! Changes of the configuration file, the kubeconfig and SIGHUP while the proxy runs.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{Machine, Running, notification};

const STARTS: &str = "Starting kube-proxy";
/// Time in which a change that takes effect would have done so.
const UNCHANGED: Duration = Duration::from_millis(1500);

fn config(more: &str) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack: {{maxPerCore: 0, \
         tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n{more}\n"
    )
}

/// The number of runs so far, the first one included.
fn runs(running: &Running<'_>) -> usize {
    running.log().matches(STARTS).count()
}

/// Does something and waits until a new run has taken the process over and has synced.
fn starts_anew(running: &mut Running<'_>, what: &str, change: impl FnOnce()) {
    let before = runs(running);
    change();
    running.until(what, |running| runs(running) > before);
    running.until_synced();
}

/// Does something that changes nothing.
fn goes_on(running: &mut Running<'_>, what: &str, change: impl FnOnce()) {
    let before = runs(running);
    change();
    std::thread::sleep(UNCHANGED);
    running.until(what, |running| runs(running) == before);
}

fn metric(running: &Running<'_>, name: &str) -> String {
    let page = running.get("127.0.0.1:10249", "/metrics").body;
    let line = page.lines().find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("no {name}: {page}")).to_owned()
}

#[test]
fn a_changed_file_takes_effect_however_it_is_replaced() {
    let machine = Machine::new();
    let file = machine.write("config.yaml", &config("mode: nftables"));
    let mut running = machine.start_as(&["--config", &file]);
    running.until_synced();
    let digest = metric(&running, "kubeproxy_config_info");
    goes_on(&mut running, "the same content", || {
        machine.write("config.yaml", &config("mode: nftables"));
    });
    goes_on(&mut running, "a comment", || {
        machine.write("config.yaml", &config("mode: nftables # as ever"));
    });
    starts_anew(&mut running, "a rename", || {
        machine.write("config.yaml", &config("mode: nftables\nnodePortAddresses: [10.0.0.0/8]"));
    });
    assert!(running.log().contains("changed=\"- 10.0.0.0/8\""), "{}", running.log());
    assert_ne!(metric(&running, "kubeproxy_config_info"), digest);
    starts_anew(&mut running, "writing in place", || {
        fs::write(&file, config("mode: nftables\nmetricsBindAddress: 127.0.0.1:10249\nlogging: {verbosity: 4}"))
            .unwrap();
    });
    let name = fs::read_to_string(format!("/proc/{}/comm", running.id())).unwrap();
    assert_eq!(name, "kube-proxy\n", "tools still find it by its name");
    starts_anew(&mut running, "another mode", || {
        machine.write("config.yaml", &config("mode: iptables"));
    });
    running.until("the rules of the new mode alone", |_| {
        machine.tables().iter().all(|table| !table.ends_with("kube-proxy"))
            && machine.iptables("iptables-nft-save").contains("KUBE-SERVICES")
    });
}

#[test]
fn a_mounted_config_map_is_followed() {
    let machine = Machine::new();
    let at = |name: &str| machine.path(&format!("mount/{name}"));
    fs::create_dir_all(at("..1")).unwrap();
    fs::create_dir_all(at("..2")).unwrap();
    fs::write(at("..1/config.conf"), config("mode: nftables")).unwrap();
    fs::write(at("..2/config.conf"), config("mode: nftables\nclusterCIDR: 10.244.0.0/16")).unwrap();
    symlink("..1", at("..data")).unwrap();
    symlink("..data/config.conf", at("config.conf")).unwrap();
    let file = at("config.conf").display().to_string();
    let mut running = machine.start_as(&["--config", &file]);
    running.until_synced();
    starts_anew(&mut running, "..data", || {
        symlink("..2", at("..tmp")).unwrap();
        fs::rename(at("..tmp"), at("..data")).unwrap();
        fs::remove_dir_all(at("..1")).unwrap();
    });
    assert!(running.log().contains("clusterCIDR: 10.244.0.0/16"), "{}", running.log());
}

#[test]
fn an_unusable_file_changes_nothing_and_is_named() {
    let machine = Machine::new();
    machine.install("nft");
    let file = machine.write("config.yaml", &config("mode: nftables"));
    let mut running = machine.start_with_installed(&["--config", &file]);
    running.until_synced();
    let unusable = [
        ("mode: [", "line "),
        ("mode: nftables\nclusterCIDR: 10.0.0.0/33", "(line 5, column 14)"),
        (
            "mode: nftables\nbindAddressHardFail: true\nhealthzBindAddress: 192.0.2.77:1234",
            "listening at 192.0.2.77:1234",
        ),
        // no tool is found there
        ("mode: iptables", "mode iptables can't be used on this machine"),
        ("mode: kernelspace", "must be iptables, ipvs, nftables, userspace or blank"),
    ];
    for (text, reason) in unusable {
        let logged = running.log().len();
        goes_on(&mut running, text, || {
            machine.write("config.yaml", &config(text));
        });
        let log = running.log().split_off(logged);
        let is_named = |line: &str| line.contains("can't be used, keeping the running one") && line.contains(reason);
        assert!(log.lines().any(is_named), "{text}: {log}");
        assert!(metric(&running, "kubeproxy_config_last_reload_successful").ends_with(" 0"));
        assert_eq!(running.get("127.0.0.1:10256", "/livez").status(), "200");
    }
    goes_on(&mut running, "a removed file", || fs::remove_file(&file).unwrap());
    goes_on(&mut running, "the running configuration", || {
        machine.write("config.yaml", &config("mode: nftables"));
    });
    assert!(metric(&running, "kubeproxy_config_last_reload_successful").ends_with(" 1"));
}

/// The rules of the other family would be frozen.
#[test]
fn a_mode_that_serves_a_family_less_is_refused() {
    let machine = Machine::new();
    machine.install("nft");
    for end in ["", "-save", "-restore"] {
        machine.install(&format!("iptables-nft{end}"));
    }
    let file = machine.write("config.yaml", &config("mode: nftables"));
    let mut running = machine.start_with_installed(&["--config", &file]);
    running.until_synced();
    goes_on(&mut running, "a mode without its tool for IPv6", || {
        machine.write("config.yaml", &config("mode: iptables"));
    });
    assert!(
        running.log().contains("it can't serve IPv6 here, which the running configuration serves"),
        "{}",
        running.log()
    );
    // Each trial closes what it has opened: there are many where nobody corrects the file.
    let open = |running: &Running<'_>| {
        ["fd", "task"].map(|what| fs::read_dir(format!("/proc/{}/{what}", running.id())).unwrap().count())
    };
    let refusals = |running: &Running<'_>| running.log().matches("can't be used, keeping the running one").count();
    let (before, known) = (open(&running), refusals(&running));
    for more in 1..=8 {
        running.send(Signal::HUP);
        running.until("another trial", |running| refusals(running) == known + more);
    }
    let after = open(&running);
    assert!(after.iter().zip(before).all(|(after, before)| *after <= before + 3), "{before:?} {after:?}");
}

#[test]
fn hang_ups_are_survived_at_every_moment() {
    let machine = Machine::new();
    let file = machine.write("config.yaml", &config("mode: nftables"));
    let mut running = machine.start_as(&["--config", &file]);
    running.until_synced();
    goes_on(&mut running, "a touch", || assert!(machine.tool("touch", &[&file]).status.success()));
    running.send(Signal::HUP);
    goes_on(&mut running, "a hang-up", || {});
    running.until("the hang-up in the log", |running| running.log().contains("as asked by SIGHUP"));
    for round in 0..10 {
        let before = runs(&running);
        machine.write("config.yaml", &config(&format!("mode: nftables\nclusterCIDR: 10.{round}.0.0/16")));
        running.until("a new run", |running| {
            for signal in [Signal::HUP, Signal::USR1, Signal::USR2, Signal::ALARM] {
                running.send(signal);
            }
            runs(running) > before
        });
        running.until_synced();
    }
}

#[test]
fn systemd_is_notified_of_a_reload() {
    let machine = Machine::new();
    let path = machine.path("notify").display().to_string();
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let file = machine.write("config.yaml", &config("mode: nftables"));
    let running = machine.start_as_with(&[&format!("NOTIFY_SOCKET={path}")], &["--config", &file]);
    notification(&socket, "READY=1");
    machine.write("config.yaml", &config("mode: nftables\nclusterCIDR: 10.0.0.0/16"));
    let reloading = notification(&socket, "RELOADING=1");
    assert!(reloading.last().is_some_and(|state| state.contains("MONOTONIC_USEC=")), "{reloading:?}");
    notification(&socket, "READY=1");
    drop(running);
}

const SERVICE: &str =
    "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n";

/// Starts a copy of the executable, `kube-proxy` in the folder, with this configuration and one Service.
fn start_copy<'a>(machine: &'a Machine, file: &str) -> Running<'a> {
    machine.write("manifests/web.yaml", SERVICE);
    // By another process: one that another test starts may inherit the open file, which then can't be executed.
    let copy = machine.path("kube-proxy").display().to_string();
    assert!(machine.tool("cp", &[env!("CARGO_BIN_EXE_kube-proxy"), &copy]).status.success());
    let manifests = machine.manifests();
    let mut running =
        machine.start_program(&copy, &["--hostname-override=node", "--manifests", &manifests, "--config", file]);
    running.until("the service", |_| machine.serves("ip", "10.96.0.1"));
    running.until_synced();
    running
}

/// As upstream ends with 1 after each change, and its supervisor starts it again.
#[test]
fn a_program_that_cannot_execute_itself_ends_and_asks_for_a_restart() {
    let machine = Machine::new();
    let file = machine.write("config.yaml", &config("mode: nftables"));
    let mut running = start_copy(&machine, &file);
    let copy = machine.path("kube-proxy");
    // Not even root may execute a file that nobody may execute.
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o644)).unwrap();
    machine.write("config.yaml", &config("mode: nftables\nclusterCIDR: 10.244.0.0/16"));
    assert_eq!(running.wait().code(), Some(1), "{}", running.log());
    let log = running.log();
    let last = log.lines().rfind(|line| line.contains("\"command failed\"")).unwrap_or_else(|| panic!("{log}"));
    let reason = "the changed configuration needs a restart: the program can't execute itself: Permission denied";
    assert!(last.contains(reason), "{last}");
    assert!(machine.serves("ip", "10.96.0.1"), "rules outlast the process: {log}");
    drop(running);
    // What a supervisor does.
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let mut running = start_copy(&machine, &file);
    running.until("the changed configuration", |running| {
        running.get("127.0.0.1:10249", "/configz").body.contains("10.244.0.0/16")
    });
}

#[test]
fn a_replaced_or_removed_executable_is_no_obstacle() {
    let machine = Machine::new();
    let file = machine.write("config.yaml", &config("mode: nftables"));
    let mut running = start_copy(&machine, &file);
    starts_anew(&mut running, "another file of this name", || {
        machine.write("kube-proxy", "no program");
        machine.write("config.yaml", &config("mode: nftables\nclusterCIDR: 10.1.0.0/16"));
    });
    starts_anew(&mut running, "no file of this name", || {
        fs::remove_file(machine.path("kube-proxy")).unwrap();
        machine.write("config.yaml", &config("mode: nftables\nclusterCIDR: 10.2.0.0/16"));
    });
    assert!(machine.serves("ip", "10.96.0.1"));
}

/// A change that waits makes the proxy unhealthy after twice the sync period: a minute with the default.
#[test]
fn a_shorter_sync_period_reports_a_waiting_change_sooner() {
    let machine = Machine::new();
    let health = || machine.ask("GET", "127.0.0.1:10256", "/healthz").map(|answer| answer.status().to_owned());
    let is_served = || machine.iptables("iptables-legacy-save").contains("-d 10.96.0.1/32");
    for family in ["iptables", "ip6tables"] {
        machine.iptables(&format!("{family}-legacy -t mangle -N KUBE-IPTABLES-HINT"));
    }
    let file = machine.write("config.yaml", &config("mode: iptables"));
    let mut running = machine.start_as(&["--config", &file]);
    running.until_synced();
    starts_anew(&mut running, "another sync period", || {
        machine.write("config.yaml", &config("mode: iptables\niptables: {minSyncPeriod: 1s, syncPeriod: 1s}"));
    });
    running.until("health", |_| health().as_deref() == Some("200"));
    let lock = fs::File::open(machine.path("xtables.lock")).unwrap();
    lock.lock().unwrap();
    machine.write("manifests/web.yaml", SERVICE);
    // The time limit is a third of what the default takes.
    running.until("503", |_| health().as_deref() == Some("503"));
    assert!(!is_served());
    lock.unlock().unwrap();
    running.until("the rule", |_| is_served());
    running.until("200", |_| health().as_deref() == Some("200"));
}
