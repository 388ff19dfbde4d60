//! loadBalancerSourceRanges.

use std::time::Duration;

use ferry_lab::lab::{client_address, external_ip};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::{Checks, Family, LabMachine, Manifests, Protocol, SeenSource, TestService};

use crate::support::stage;

const EVERYWHERE: [&str; 3] = ["pod-a:8080", "pod-b:8080", "far:8080"];
const OFTEN: usize = 40;

fn manifests() -> Manifests {
    let pods = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
    let ranged = |name, number: u8, ranges| {
        TestService::new(name, number.into())
            .protocols(&[Protocol::Tcp, Protocol::Udp])
            .node_port(30000 + u16::from(number))
            .external_ip(number)
            .load_balancer(100 + number)
            .source_ranges(ranges)
    };
    // nested, overlapping, equal, with the load balancer's own address inside; the client is in, its address 20 isn't
    let many = [
        "203.0.113.0/28",
        "203.0.113.0/29",
        "203.0.113.10/32",
        "203.0.113.8/29",
        "198.51.100.0/24",
        "10.244.0.11/32",
        "fd00:cc::/123",
        "fd00:cc::/124",
        "fd00:cc::10/128",
        "fd00:cc::/123",
        "fd00:1b::/64",
        "fd00:10:244::11/128",
    ];
    Manifests::new()
        .with(ranged("many", 20, &many), &pods)
        .with(ranged("away", 21, &["10.1.0.0/16", "fd00:77::/64"]), &pods)
        .with(ranged("one-family", 22, &["10.1.0.0/16"]), &pods)
        .with(ranged("edge", 23, &["203.0.113.0/28", "fd00:cc::/123"]).external_local(), &pods)
        .without_endpoints(ranged("empty", 24, &["203.0.113.0/28", "fd00:cc::/123"]))
        .with(ranged("everybody", 25, &["10.1.0.0/16", "0.0.0.0/0", "::/0"]), &pods)
}

#[test]
fn a_load_balancer_serves_its_source_ranges_only() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        let inside = stage.lab.from(LabMachine::Client);
        let outside = inside.bound_to(client_address(family, 20));
        let balancer = |number: u8| at_external_ip(family, 100 + number);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let what = |text: &str| format!("{family} {protocol} {text}");
            let many = balancer(20);
            for from in [LabMachine::Client, LabMachine::Node, LabMachine::PodB] {
                let tally = stage.lab.from(from).ask(protocol, many, OFTEN);
                checks.served(&what(&format!("in range, {from:?}")), &tally, &EVERYWHERE, SeenSource::Masqueraded);
            }
            checks.silent(&what("out of range"), &outside.silence(protocol, many));
            checks.silent(&what("a pod out of range"), &stage.lab.from(LabMachine::PodA).silence(protocol, many));
            for from in [LabMachine::Client, LabMachine::Node, LabMachine::PodB] {
                let tally = stage.lab.from(from).silence(protocol, balancer(21));
                checks.silent(&what(&format!("all out of range, {from:?}")), &tally);
            }
            checks.refused(&what("in range, no endpoints"), &inside.ask(protocol, balancer(24), 2));
            checks.silent(&what("out of range, no endpoints"), &outside.silence(protocol, balancer(24)));
            let everybody = outside.ask(protocol, balancer(25), OFTEN);
            checks.served(&what("ranges with everybody"), &everybody, &EVERYWHERE, SeenSource::Masqueraded);
        }
        let tally = outside.patience(Duration::from_millis(400)).tcp(balancer(22), 1);
        match family {
            Family::V4 => checks.silent("ranges of this family", &tally),
            Family::V6 => checks.that(tally.all_answered(), || format!("ranges of the other family only: {tally}")),
        }
    }
}

#[test]
fn source_ranges_say_nothing_about_other_frontends() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        let outside = stage.lab.from(LabMachine::Client).bound_to(client_address(family, 20));
        for at in [at_cluster_ip(family, 21), at_external_ip(family, 21), at_node_port(family, 30021)] {
            let tally = outside.tcp(at, OFTEN);
            checks.served(&format!("{at} from out of range"), &tally, &EVERYWHERE, SeenSource::Masqueraded);
        }
    }
}

#[test]
fn source_ranges_and_policy_local_go_together() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        let at = at_external_ip(family, 123);
        let inside = stage.lab.from(LabMachine::Client);
        let tally = inside.tcp(at, OFTEN);
        let kept = SeenSource::Kept(LabMachine::Client.address(family));
        checks.served(&format!("{family} in range"), &tally, &["pod-a:8080", "pod-b:8080"], kept);
        let outside = inside.bound_to(client_address(family, 20));
        checks.silent(&format!("{family} out of range"), &outside.silence(Protocol::Tcp, at));
        // a pod is out of range as well, and its short way doesn't help
        checks.silent(&format!("{family} a pod"), &stage.lab.from(LabMachine::PodB).silence(Protocol::Tcp, at));
    }
}

#[test]
fn the_node_reaches_a_load_balancer_address_that_is_its_own() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        // the node is in the range of 23, and not in that of 21; bound here, the address itself is the source
        let bound = [123, 121].map(|number| external_ip(family, number).to_string());
        for address in &bound {
            stage.node().sh("ip", &["addr", "add", address, "dev", "lo"]);
        }
        // the kernel makes an address valid a little later, and chooses another source until then
        until("the addresses are valid", Duration::from_secs(5), || {
            stage.node().sh("ip", &["-6", "addr", "show", "dev", "lo", "tentative"]).is_empty()
        });
        let node = stage.lab.from(LabMachine::Node);
        let allowed = node.tcp(at_external_ip(family, 123), OFTEN);
        let denied = node.silence(Protocol::Tcp, at_external_ip(family, 121));
        for address in &bound {
            stage.node().sh("ip", &["addr", "del", address, "dev", "lo"]);
        }
        checks.served(&format!("{family} in range"), &allowed, &EVERYWHERE, SeenSource::Any);
        checks.silent(&format!("{family} out of range"), &denied);
    }
}
