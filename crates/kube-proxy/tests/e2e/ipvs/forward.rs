//! A chain of another program whose policy drops forwarded packets, as Docker's. Answers of pods pass it, since IPVS itself forwards
//! nothing.

use std::time::Duration;

use ferry_lab::objects::at_node_port;
use ferry_lab::patience::{slowly, until, within};
use ferry_lab::{Family, Lab, LabMachine, Manifests, TestService};

use crate::support::{ipvs, run_to_end, stage_with};

/// nf_tables is read a second after the last time at the earliest.
const LIMIT: Duration = Duration::from_secs(20);
/// The log's words for what drops traffic.
const WARNED: &str = "reason=\"ForwardPolicyDrop\"";

/// The policy of the node's chains while this exists. Their tables, which the tool creates, go with it: later tests share the node, and some
/// compare all of its rules.
struct Policy<'a>(&'a Lab);

impl<'a> Policy<'a> {
    fn drop(lab: &'a Lab) -> Self {
        for tool in ["iptables-nft", "ip6tables-nft"] {
            lab.host(LabMachine::Node).sh(tool, &["-P", "FORWARD", "DROP"]);
        }
        Self(lab)
    }
}

impl Drop for Policy<'_> {
    fn drop(&mut self) {
        for family in ["ip", "ip6"] {
            // A test that has failed may have left none.
            drop(self.0.host(LabMachine::Node).feed("nft", &["delete", "table", family, "filter"], ""));
        }
    }
}

fn manifests() -> Manifests {
    Manifests::new().with(TestService::new("web", 90).node_port(30090), &[LabMachine::PodA])
}

/// True if the endpoint answers outsiders in both families.
fn serves(lab: &Lab) -> bool {
    let client = lab.from(LabMachine::Client).patience(slowly(Duration::from_millis(300)));
    Family::ALL.into_iter().all(|family| client.tcp(at_node_port(family, 30090), 2).all_answered())
}

/// True if no outsider gets an answer, in neither family.
fn is_lost(lab: &Lab) -> bool {
    let client = lab.from(LabMachine::Client).patience(slowly(Duration::from_millis(300)));
    Family::ALL.into_iter().all(|family| client.tcp(at_node_port(family, 30090), 1).endpoints().is_empty())
}

/// The number of accepting rules that the proxy has written in chains of others.
fn written(lab: &Lab) -> usize {
    let listed = lab.host(LabMachine::Node).sh("nft", &["list", "ruleset"]);
    listed.lines().filter(|line| line.contains("accept comment \"kube-proxy\"")).count()
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_policy_of_drop_is_reported_with_the_command_that_mends_it() {
    let mut stage = stage_with(&ipvs(""), &manifests());
    assert!(serves(stage.lab));
    let _policy = Policy::drop(stage.lab);
    assert!(is_lost(stage.lab));
    // A start finds it, too.
    stage.restart();
    until("a warning of each family", LIMIT, || stage.proxy.log().matches(WARNED).count() >= Family::ALL.len());
    let log = stage.proxy.log();
    let warnings = log.lines().filter(|line| line.contains(WARNED));
    for command in warnings.filter_map(|line| line.split('`').nth(1)) {
        let (program, arguments) = command.split_once(' ').expect("a command with arguments");
        stage.node().sh(program, &arguments.split(' ').collect::<Vec<_>>());
    }
    assert!(within(LIMIT, || serves(stage.lab)), "{log}");
    until("the end of the warnings", LIMIT, || stage.proxy.log().contains("Problem of this node has ended"));
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn the_rule_is_written_if_asked_for_and_goes_at_clean_up() {
    let accepting = ipvs("---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nacceptForward: true");
    let mut stage = stage_with(&accepting, &manifests());
    let _policy = Policy::drop(stage.lab);
    until("service", LIMIT, || serves(stage.lab) && written(stage.lab) == Family::ALL.len());
    stage.restart();
    assert!(serves(stage.lab) && written(stage.lab) == Family::ALL.len(), "{}", stage.proxy.log());
    stage.kill();
    let (status, log) = run_to_end(stage.lab, &["--cleanup"]);
    assert!(status.success(), "{log}");
    assert_eq!(written(stage.lab), 0, "{log}");
    stage.restart();
}
