//! Mode userspace under systemd, which keeps the listening sockets from the end of the program to its next start.

use std::path::Path;
use std::time::Duration;

use ferry_lab::objects::at_cluster_ip;
use ferry_lab::patience::{slowly, until};
use ferry_lab::probe::Hammer;
use ferry_lab::proxy::{ProxyConfig, USERSPACE};
use ferry_lab::{Family, Lab, LabMachine, ProbeOutcome, Protocol};

use crate::package::{WEB, configure, install_in, is_on_page, serves};
use crate::support::unpacked;
use crate::systemd::Machine;

/// Restarts in each way.
const RESTARTS: usize = 5;
/// Time for clients between two restarts.
const BETWEEN: Duration = Duration::from_millis(300);
/// Way bind listens at the Service's port, 80.
const DROP_IN: &str = "[Service]\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\n";

#[test]
fn a_restart_in_mode_userspace_refuses_no_connection() {
    let lab = Lab::new();
    let root = unpacked("sockets");
    install_in(&root, "1.0.0");
    let units = root.join("etc/systemd/system/kube-proxy.service.d");
    std::fs::create_dir_all(&units).unwrap();
    std::fs::write(units.join("bind.conf"), DROP_IN).unwrap();
    let machine = Machine::boot(lab.host(LabMachine::Node), &root);
    for way in ["redirect", "bind"] {
        configure_way(&root, way);
        machine.run("systemctl restart kube-proxy");
        until("service", slowly(Duration::from_secs(20)), || serves(&lab));
        let metric = format!("kubeproxy_userspace_way{{way=\"{way}\"}} 1");
        assert!(is_on_page(&lab, &metric), "{metric}");
        restart(&machine, &lab, way);
    }
}

fn configure_way(root: &Path, way: &str) {
    let own = format!("---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nuserspaceWay: {way}");
    configure(root, &ProxyConfig { mode: USERSPACE, ..ProxyConfig::with(&own) });
}

fn restart(machine: &Machine, lab: &Lab, way: &str) {
    let client = || lab.from(LabMachine::PodB).patience(slowly(Duration::from_secs(5)));
    let hammers = Family::ALL.map(|family| client().hammer(Protocol::Tcp, at_cluster_ip(family, WEB)));
    let mut id = machine.property("MainPID");
    for _ in 0..RESTARTS {
        machine.run("systemctl restart kube-proxy");
        let before = std::mem::replace(&mut id, machine.property("MainPID"));
        assert_ne!(id, before, "a restart");
        std::thread::sleep(BETWEEN);
    }
    let outcomes: Vec<ProbeOutcome> = hammers.into_iter().flat_map(Hammer::stop).map(|(_, outcome)| outcome).collect();
    let failed: Vec<&ProbeOutcome> =
        outcomes.iter().filter(|outcome| !matches!(outcome, ProbeOutcome::Answered(_))).collect();
    println!("way {way}: {} connections over {RESTARTS} restarts, {} failed", outcomes.len(), failed.len());
    let first = failed.iter().take(5).collect::<Vec<_>>();
    assert!(outcomes.len() > 100 && failed.is_empty(), "way {way}: {first:?}\n{}", machine.journal());
    let kept = machine.property("NFileDescriptorStore");
    assert_eq!(kept, "0", "a running proxy has its sockets itself");
}
