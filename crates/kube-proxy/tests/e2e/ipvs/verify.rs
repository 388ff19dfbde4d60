//! `kube-proxy verify` and `trace` in mode ipvs: nothing differs after a run, a server that is gone does.

use ferry_lab::objects::at_cluster_ip;
use ferry_lab::patience::until;
use ferry_lab::{Family, LabMachine, Manifests, Stage, TestService};

use crate::support::{LIMIT, run_to_end, stage};

fn verify(stage: &Stage<'_>) -> (Option<i32>, String) {
    inspect(stage, &["verify"])
}

fn inspect(stage: &Stage<'_>, asked: &[&str]) -> (Option<i32>, String) {
    let (config, manifests) = (stage.folder().join("config.yaml"), stage.folder().join("manifests"));
    let (config, manifests) = (config.display().to_string(), manifests.display().to_string());
    let (status, text) = run_to_end(stage.lab, &[asked, &["--config", &config, "--manifests", &manifests]].concat());
    (status.code(), text)
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_server_that_is_gone_is_named() {
    let all = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
    let manifests = Manifests::new()
        .with(TestService::new("web", 60).node_port(30060), &all)
        .with(TestService::new("edge", 61).external_ip(61).external_local(), &all)
        .without_endpoints(TestService::new("empty", 64).node_port(30064));
    let mut stage = stage(&manifests);
    // The former state's servers go after the new ones have come.
    until("the end of the former state", LIMIT, || verify(&stage).0 == Some(0));
    stage.kill();
    let (code, text) = verify(&stage);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("IPv4 in mode ipvs: all ") && text.contains("IPv6 in mode ipvs: all "), "{text}");
    let gone = at_cluster_ip(Family::V4, 60);
    let connection = format!("{} -> {gone}", LabMachine::PodA.address(Family::V4));
    let (code, text) = inspect(&stage, &["trace", &connection]);
    assert!(code == Some(0) && text.contains(&format!("  virtual server TCP {gone} rr\n    destination ")), "{text}");
    stage.node().sh("ipvsadm", &["-D", "-t", &gone.to_string()]);
    let (code, text) = verify(&stage);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("  service demo/web: ") && text.contains(&format!("-> {gone}/TCP: ")), "{text}");
    assert!(text.contains("    a run would create "), "{text}");
    let (code, text) = inspect(&stage, &["trace", &connection]);
    assert!(code == Some(2) && text.contains(&format!("\na run would create virtual server TCP {gone} ")), "{text}");
}
