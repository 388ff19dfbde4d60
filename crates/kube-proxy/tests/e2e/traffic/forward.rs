//! Chains of other programs whose policy drops forwarded packets.

use std::time::Duration;

use ferry_lab::objects::at_node_port;
use ferry_lab::patience::{until, within};
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, Lab, LabMachine, Manifests, Stage, TestService};

use crate::support::{EXECUTABLE, folder, run_to_end};

/// nf_tables is read a second after the last time at the earliest, and legacy tables every 15 s.
const LIMIT: Duration = Duration::from_secs(20);

/// Programs that set the policy, as commands; `%` is the policy. Then the number of chains.
const FIREWALLS: [(&[&str], usize); 3] = [
    (&["iptables-nft -P FORWARD %", "ip6tables-nft -P FORWARD %"], 2),
    (
        &["nft add table inet fw", "nft add chain inet fw onward { type filter hook forward priority 0 ; policy % ; }"],
        1,
    ),
    (&["iptables-legacy -P FORWARD %", "ip6tables-legacy -P FORWARD %"], 2),
];

fn manifests() -> Manifests {
    Manifests::new().with(TestService::new("web", 90).node_port(30090), &[LabMachine::PodA, LabMachine::Far])
}

fn accepting() -> ProxyConfig {
    ProxyConfig::with("---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nacceptForward: true")
}

fn run(lab: &Lab, command: &str) -> String {
    let (program, arguments) = command.split_once(' ').expect("a command with arguments");
    lab.host(LabMachine::Node).sh(program, &arguments.split(' ').collect::<Vec<_>>())
}

fn set_policy(lab: &Lab, commands: &[&str], policy: &str) {
    for command in commands {
        let policy = if command.starts_with("nft ") { policy.to_lowercase() } else { policy.to_owned() };
        run(lab, &command.replace('%', &policy));
    }
}

/// True if both endpoints answer outsiders, pods and the other node's pod, in both families.
fn serves(lab: &Lab) -> bool {
    let patience = Duration::from_millis(200);
    Family::ALL.into_iter().all(|family| {
        let froms = [LabMachine::Client, LabMachine::PodB, LabMachine::Far];
        froms
            .into_iter()
            .all(|from| lab.from(from).patience(patience).tcp(at_node_port(family, 30090), 6).all_answered())
    })
}

/// True if nothing is answered.
fn is_lost(lab: &Lab) -> bool {
    let at = |family| at_node_port(family, 30090);
    Family::ALL.into_iter().all(|family| {
        lab.from(LabMachine::Client).patience(Duration::from_millis(200)).tcp(at(family), 1).endpoints().is_empty()
    })
}

/// The commands in the latest warnings of each family.
fn advised(stage: &Stage<'_>) -> Vec<String> {
    let log = stage.proxy.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("reason=\"ForwardPolicyDrop\"")).collect();
    let commands = warnings.iter().rev().take(2).filter_map(|line| line.split('`').nth(1).map(str::to_owned));
    let mut commands: Vec<String> = commands.collect();
    commands.sort_unstable();
    commands.dedup();
    commands
}

#[test]
fn a_policy_of_drop_is_reported_with_the_command_that_mends_it() {
    let lab = Lab::new();
    let stage = Stage::new(&lab, EXECUTABLE, &folder("forward-reported"), ProxyConfig::default(), &manifests());
    assert!(serves(&lab));
    for (round, (commands, chains)) in FIREWALLS.into_iter().enumerate() {
        let count = |text: &str| stage.proxy.log().matches(text).count();
        set_policy(&lab, commands, "DROP");
        assert!(is_lost(&lab), "{commands:?}");
        let warned = "Node may drop traffic of Services";
        let took = until("a warning of each family", LIMIT, || count(warned) == 2 * (round + 1));
        println!("{}: reported after {took:?}", commands[0]);
        let advised = advised(&stage);
        assert_eq!(advised.len(), chains, "{advised:?}");
        advised.iter().for_each(|command| drop(run(&lab, command)));
        assert!(serves(&lab), "{advised:?}\n{}", stage.proxy.log());
        until("the end of the warnings", LIMIT, || count("Problem of this node has ended") == 2 * (round + 1));
        set_policy(&lab, commands, "ACCEPT");
    }
}

#[test]
fn the_rule_is_written_if_asked_for_and_goes_with_the_mode() {
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("forward-accepted"), accepting(), &manifests());
    let written = || {
        let listed = lab.host(LabMachine::Node).sh("nft", &["list", "ruleset"]);
        listed.lines().filter(|line| line.contains("accept comment \"kube-proxy\"")).count()
    };
    for (commands, chains) in FIREWALLS.into_iter().take(2) {
        set_policy(&lab, commands, "DROP");
        let took = until("service", LIMIT, || serves(&lab));
        println!("{}: mended after {took:?}", commands[0]);
        assert_eq!(written(), chains, "{}", stage.proxy.log());
        set_policy(&lab, commands, "ACCEPT");
        until("the rule's end", LIMIT, || written() == 0);
    }
    assert!(!stage.proxy.log().contains("ForwardPolicyDrop"), "{}", stage.proxy.log());

    let (docker, _) = FIREWALLS[0];
    set_policy(&lab, docker, "DROP");
    until("the rule", LIMIT, || written() == 2);
    // what is listed can be loaded by the tool whose table it is
    let saved = run(&lab, "iptables-nft-save -t filter");
    assert!(
        saved.contains("-A FORWARD -m conntrack --ctstate DNAT -m comment --comment kube-proxy -j ACCEPT"),
        "{saved}"
    );
    run(&lab, "iptables-nft -F FORWARD");
    assert!(within(LIMIT, || serves(&lab) && written() == 2), "{}", stage.proxy.log());
    stage.restart();
    assert!(serves(&lab) && written() == 2);

    // mode iptables has rules of its own for it
    stage.reset(&ProxyConfig { more: accepting().more, ..ProxyConfig::iptables() }, &manifests());
    until("the rule's end", LIMIT, || written() == 0);
    assert!(serves(&lab), "{}", stage.proxy.log());

    stage.reset(&accepting(), &manifests());
    until("the rule", LIMIT, || written() == 2);
    stage.kill();
    let (status, log) = run_to_end(&lab, "forward-cleanup", &["--cleanup"]);
    assert!(status.success(), "{log}");
    assert_eq!(written(), 0, "{log}");
    assert!(!run(&lab, "nft list ruleset").contains("kube-proxy"));
}
