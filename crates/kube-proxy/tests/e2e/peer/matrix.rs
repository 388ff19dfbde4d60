//! Services of each kind, and the required results of connections to them, whichever proxy serves them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ferry_lab::lab::{client_address, cluster_ip};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::probe::Hammer;
use ferry_lab::proxy::{IPTABLES, NFTABLES};
use ferry_lab::{Checks, Family, Lab, LabMachine, Manifests, ProbeTally, Protocol, SeenSource, TestService};

/// The services with endpoints.
pub(crate) const NAMES: [&str; 6] = ["web", "edge", "edge-away", "inner", "sticky", "ranges"];
/// Health check node port of the service `edge`.
pub(crate) const HEALTH_CHECK: u16 = 31081;
/// The service without endpoints.
pub(crate) const EMPTY: &str = "empty";

const ALL_PODS: [LabMachine; 3] = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
const ALL_ENDPOINTS: [&str; 3] = ["pod-a:8080", "pod-b:8080", "far:8080"];
const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
const OFTEN: usize = 40;

/// One service of each kind.
pub(crate) fn manifests() -> Manifests {
    let [web, edge, edge_away, inner, sticky, ranges] = NAMES;
    Manifests::new()
        .with(TestService::new(web, 80).protocols(&BOTH).node_port(30080).external_ip(80).load_balancer(180), &ALL_PODS)
        .with(
            TestService::new(edge, 81)
                .node_port(30081)
                .external_ip(81)
                .load_balancer(181)
                .external_local()
                .health_check(HEALTH_CHECK),
            &[LabMachine::PodA, LabMachine::Far],
        )
        .with(TestService::new(edge_away, 82).node_port(30082).external_ip(82).external_local(), &[LabMachine::Far])
        .with(TestService::new(inner, 83).internal_local(), &[LabMachine::PodA, LabMachine::Far])
        .with(TestService::new(sticky, 84).node_port(30084).affinity(10800), &ALL_PODS)
        .with(
            TestService::new(ranges, 85)
                .node_port(30085)
                .load_balancer(185)
                .source_ranges(&["203.0.113.0/28", "fd00:cc::/123"]),
            &ALL_PODS,
        )
        .without_endpoints(TestService::new(EMPTY, 86).node_port(30086).external_ip(86))
}

/// Checks all connections in these families, as in mode nftables.
pub(crate) fn check(lab: &Lab, who: &str, families: &[Family]) {
    check_in(NFTABLES, lab, who, families);
}

/// Checks all connections in these families, as in this mode.
pub(crate) fn check_in(mode: &str, lab: &Lab, who: &str, families: &[Family]) {
    check_served(lab, who);
    let mut checks = Checks::new();
    for &family in families {
        let client = lab.from(LabMachine::Client);
        let what = |text: &str| format!("{who}: {family} {text}");
        for at in [at_node_port(family, 30082), at_external_ip(family, 82)] {
            checks.silent(&what("policy Local, none local, outside"), &client.silence(Protocol::Tcp, at));
        }
        let stranger = client.bound_to(client_address(family, 20));
        checks.silent(&what("out of range"), &stranger.silence(Protocol::Tcp, at_external_ip(family, 185)));
        checks.silent(&what("unallocated"), &client.silence(Protocol::Tcp, at_cluster_ip(family, 200)));
        let (undefined, external) = (SocketAddr::new(cluster_ip(family, 80), 81), at_external_ip(family, 86));
        for at in [at_cluster_ip(family, 86), at_node_port(family, 30086), external, undefined] {
            for from in [LabMachine::PodB, LabMachine::Node, LabMachine::Client] {
                let (what, passes) = (what(&format!("{at} from {from:?}")), at == external && from == LabMachine::Node);
                let from = lab.from(from);
                if mode == IPTABLES && (passes || at == undefined) {
                    // routed to the outside, where no host has the address
                    checks.silent(&what, &from.silence(Protocol::Tcp, at));
                } else {
                    checks.refused(&what, &from.tcp(at, 2));
                }
            }
        }
    }
    if mode == IPTABLES {
        for (protocol, port) in [(Protocol::Tcp, 30080), (Protocol::Udp, 30080), (Protocol::Tcp, 30081)] {
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let tally = lab.from(LabMachine::Node).ask(protocol, at, OFTEN);
            let all: &[&str] = if port == 30081 { &["far:8080", "pod-a:8080"] } else { &ALL_ENDPOINTS };
            checks.served(&format!("{who}: {protocol} {at}"), &tally, all, SeenSource::Masqueraded);
        }
    }
}

/// Checks all connections that are served, in both families.
pub(crate) fn check_served(lab: &Lab, who: &str) {
    let mut checks = Checks::new();
    for family in Family::ALL {
        let web = [
            at_cluster_ip(family, 80),
            at_node_port(family, 30080),
            at_external_ip(family, 80),
            at_external_ip(family, 180),
        ];
        for from in [LabMachine::PodB, LabMachine::Node, LabMachine::Client] {
            let what = |text: &str| format!("{who}: {family} {text} from {from:?}");
            let ask = |protocol, at, times| lab.from(from).ask(protocol, at, times);
            for protocol in BOTH {
                for at in web {
                    checks.served(
                        &what(&format!("{protocol} {at}")),
                        &ask(protocol, at, OFTEN),
                        &ALL_ENDPOINTS,
                        SeenSource::Any,
                    );
                }
            }
            let (own, local): (_, &[_]) = match from {
                LabMachine::Client => (SeenSource::Kept(from.address(family)), &["pod-a:8080"]),
                LabMachine::Node => (SeenSource::Masqueraded, &["far:8080", "pod-a:8080"]),
                _ => (SeenSource::Kept(from.address(family)), &["far:8080", "pod-a:8080"]),
            };
            for at in [at_node_port(family, 30081), at_external_ip(family, 81), at_external_ip(family, 181)] {
                checks.served(&what(&format!("policy Local {at}")), &ask(Protocol::Tcp, at, OFTEN), local, own);
            }
            if from != LabMachine::Client {
                for at in [at_node_port(family, 30082), at_external_ip(family, 82)] {
                    let tally = ask(Protocol::Tcp, at, 3);
                    checks.served(&what(&format!("policy Local, none local, {at}")), &tally, &["far:8080"], own);
                }
            }
            let inner = ask(Protocol::Tcp, at_cluster_ip(family, 83), OFTEN);
            checks.served(&what("internal policy Local"), &inner, &["pod-a:8080"], SeenSource::Any);
            let sticky = ProbeTally(
                [at_cluster_ip(family, 84), at_node_port(family, 30084)]
                    .into_iter()
                    .flat_map(|at| ask(Protocol::Tcp, at, 10).0)
                    .collect(),
            );
            checks
                .that(sticky.all_answered() && sticky.endpoints().len() == 1, || what(&format!("affinity: {sticky}")));
        }
        for from in [LabMachine::Node, LabMachine::Client] {
            let tally = lab.from(from).tcp(at_external_ip(family, 185), OFTEN);
            let what = format!("{who}: {family} in range from {from:?}");
            checks.served(&what, &tally, &ALL_ENDPOINTS, SeenSource::Masqueraded);
        }
    }
}

/// Clients that connect without a pause, to be looked at by [`unharmed`].
pub(crate) fn hammer(lab: &Lab) -> Vec<(SocketAddr, Hammer)> {
    let ats = Family::ALL.into_iter().flat_map(|family| [at_cluster_ip(family, 80), at_node_port(family, 30080)]);
    let client = lab.from(LabMachine::Client).patience(Duration::from_millis(900));
    ats.map(|at| (at, client.hammer(Protocol::Tcp, at))).collect()
}

/// Asserts that every connection was answered.
pub(crate) fn unharmed(hammers: Vec<(SocketAddr, Hammer)>) {
    let mut checks = Checks::new();
    for (at, hammer) in hammers {
        let tally = ProbeTally(hammer.stop().into_iter().map(|(_, outcome)| outcome).collect());
        println!("{at} meanwhile: {tally}");
        checks.served(&format!("{at} meanwhile"), &tally, &ALL_ENDPOINTS, SeenSource::Any);
    }
}
