//! Graceful termination: endpoints that leave their Service under established connections.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use ferry_lab::objects::{EndpointCondition, at_cluster_ip, at_external_ip};
use ferry_lab::patience::{slowly, until};
use ferry_lab::probe::Echo;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, Host, Lab, LabMachine, Manifests, ProbeOutcome, Protocol, Stage, TestService};
use socket2::SockRef;

use crate::support::{LIMIT, Real, ipvs, real, server, stage, stage_with};

/// The port of the echo servers in pods.
const ECHO: u16 = 8180;
/// Time limit of the end of an endpoint whose last connection was reset: IPVS forgets such a connection after 10 s.
const FORGOTTEN: Duration = Duration::from_secs(20);
/// The grace period of one test.
const GRACE: Duration = Duration::from_secs(5);

/// An established connection.
pub(crate) struct Talk(TcpStream);

// === impl Talk ===

impl Talk {
    pub(crate) fn open(host: &Host, to: SocketAddr) -> Self {
        let stream = host.run(move || TcpStream::connect(to)).unwrap_or_else(|error| panic!("{to}: {error}"));
        stream.set_read_timeout(Some(slowly(LIMIT))).expect("a time limit");
        Self(stream)
    }

    /// Sends something, and waits for its echo.
    pub(crate) fn exchange(&mut self) -> io::Result<()> {
        self.0.write_all(b"echo")?;
        self.0.read_exact(&mut [0; 4])
    }

    #[track_caller]
    fn lives(&mut self) {
        self.exchange().expect("the connection lives");
    }

    /// Ends it by a reset, so that nothing waits for late packets.
    fn reset(self) {
        SockRef::from(&self.0).set_linger(Some(Duration::ZERO)).expect("a reset");
    }
}

fn echo(lab: &Lab, place: LabMachine) -> Echo {
    Echo::start(lab.host(place), &Family::ALL.map(|family| SocketAddr::new(place.address(family), ECHO)))
}

fn to(place: LabMachine, family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(place.address(family), port)
}

/// A service with echo servers at these places.
fn at(places: &[LabMachine]) -> Manifests {
    let service = TestService::new("talks", 10);
    let endpoints = service.endpoints(ECHO, places);
    Manifests::new().with_endpoints(service, endpoints)
}

/// A connection to the first pod, in each family.
fn talks(lab: &Lab) -> [Talk; 2] {
    Family::ALL.map(|family| Talk::open(lab.host(LabMachine::Client), at_cluster_ip(family, 10)))
}

/// The endpoint in a pod, of the service of echo servers.
fn of_echo(node: &Host, place: LabMachine, family: Family) -> Option<Real> {
    real(node, at_cluster_ip(family, 10), to(place, family, ECHO))
}

#[track_caller]
fn drains(node: &Host) {
    for family in Family::ALL {
        let left = of_echo(node, LabMachine::PodA, family);
        assert!(left.as_ref().is_some_and(|real| (real.weight, real.active) == (0, 1)), "{family}: {left:?}");
        let new = of_echo(node, LabMachine::PodB, family);
        assert!(new.as_ref().is_some_and(|real| real.weight == 1), "{family}: {new:?}");
    }
}

fn until_forgotten(node: &Host) {
    until("the endpoint is gone", FORGOTTEN, || {
        Family::ALL.iter().all(|family| of_echo(node, LabMachine::PodA, *family).is_none())
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_connection_lives_on_while_new_ones_go_elsewhere() {
    let mut stage = stage(&at(&[LabMachine::PodA]));
    let (lab, node) = (stage.lab, stage.node());
    let _echo = [LabMachine::PodA, LabMachine::PodB].map(|place| echo(lab, place));
    let mut old = talks(lab);
    old.iter_mut().for_each(Talk::lives);
    stage.set(&at(&[LabMachine::PodB]));
    drains(node);
    let mut new = talks(lab);
    old.iter_mut().chain(&mut new).for_each(Talk::lives);
    for family in Family::ALL {
        assert_eq!(of_echo(node, LabMachine::PodB, family).map(|real| real.active), Some(1), "{family}");
    }
    // Some looks later, still.
    std::thread::sleep(slowly(Duration::from_secs(1)));
    old.iter_mut().for_each(Talk::lives);
    drains(node);
    old.into_iter().for_each(Talk::reset);
    until_forgotten(node);
    new.iter_mut().for_each(Talk::lives);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_terminating_endpoint_without_others_keeps_serving_and_then_drains() {
    let service = TestService::new("talks", 10);
    let terminating = service.endpoints(ECHO, &[]).and(LabMachine::PodA, EndpointCondition::Terminating);
    let both = service.endpoints(ECHO, &[LabMachine::PodB]).and(LabMachine::PodA, EndpointCondition::Terminating);
    let mut stage = stage(&Manifests::new().with_endpoints(service.clone(), terminating));
    let (lab, node) = (stage.lab, stage.node());
    let _echo = [LabMachine::PodA, LabMachine::PodB].map(|place| echo(lab, place));
    let mut old = talks(lab);
    stage.set(&Manifests::new().with_endpoints(service, both));
    drains(node);
    old.iter_mut().for_each(Talk::lives);
    old.into_iter().for_each(Talk::reset);
    until_forgotten(node);
}

/// Brings these manifests into force and waits until a grace period is over that begins after that: of an endpoint of another
/// service, which leaves its slice under a connection. Needs an echo server in both pods.
#[track_caller]
fn outlast_grace_period(stage: &mut Stage<'_>, manifests: &Manifests) {
    let beside = |place| {
        let service = TestService::new("leaves", 13);
        let endpoints = service.endpoints(ECHO, &[place]);
        manifests.clone().with_endpoints(service, endpoints)
    };
    let (host, node) = (stage.lab.host(LabMachine::Client), stage.node());
    stage.set(&beside(LabMachine::PodA));
    let mut talks = Family::ALL.map(|family| Talk::open(host, at_cluster_ip(family, 13)));
    stage.set(&beside(LabMachine::PodB));
    until("the other endpoint is gone", FORGOTTEN, || {
        let is_gone = |family| real(node, at_cluster_ip(family, 13), to(LabMachine::PodA, family, ECHO)).is_none();
        Family::ALL.into_iter().all(is_gone)
    });
    are_reset(&mut talks);
}

/// The configuration with a short grace period.
fn short_grace() -> ProxyConfig {
    let more = "---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nipvsTerminationGracePeriod: ";
    ipvs(&format!("{more}{}s", slowly(GRACE).as_secs()))
}

#[track_caller]
fn are_reset(talks: &mut [Talk]) {
    for talk in talks {
        let error = talk.exchange().expect_err("it has ended");
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "a reset, no silence");
    }
}

/// A Pod may take longer to terminate than the grace period, which begins when it has left its slice.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_terminating_endpoint_keeps_its_connections_while_it_is_listed() {
    let service = TestService::new("talks", 10);
    let terminating =
        service.endpoints(ECHO, &[LabMachine::PodB]).and(LabMachine::PodA, EndpointCondition::Terminating);
    let mut stage = stage_with(&short_grace(), &at(&[LabMachine::PodA]));
    let (lab, node) = (stage.lab, stage.node());
    let _echo = [LabMachine::PodA, LabMachine::PodB].map(|place| echo(lab, place));
    let mut old = talks(lab);
    let terminating = Manifests::new().with_endpoints(service, terminating);
    outlast_grace_period(&mut stage, &terminating);
    drains(node);
    old.iter_mut().for_each(Talk::lives);
    stage.restart();
    outlast_grace_period(&mut stage, &terminating);
    drains(node);
    old.iter_mut().for_each(Talk::lives);
    stage.set(&at(&[LabMachine::PodB]));
    until_forgotten(node);
    are_reset(&mut old);
}

/// A traffic policy deselects an endpoint that is well, and long-lived connections to it go on.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_deselected_endpoint_keeps_its_connections() {
    let service = TestService::new("talks", 10).external_ip(10);
    let (here, far) = (LabMachine::PodB, LabMachine::Far);
    let with =
        |service: TestService| Manifests::new().with_endpoints(service.clone(), service.endpoints(ECHO, &[here, far]));
    let mut stage = stage_with(&short_grace(), &with(service.clone()));
    let (lab, node) = (stage.lab, stage.node());
    let _echo = [LabMachine::PodA, here, far].map(|place| echo(lab, place));
    let external = |family| at_external_ip(family, 10);
    let of_far = || Family::ALL.map(|family| real(node, external(family), to(far, family, ECHO)));
    let weight_and_active = || of_far().map(|real| real.map(|real| (real.weight, real.active)));
    // Round robin: one of two goes to each.
    let mut old: Vec<Talk> = Family::ALL
        .iter()
        .flat_map(|family| [(); 2].map(|()| Talk::open(lab.host(LabMachine::Client), external(*family))))
        .collect();
    assert_eq!(weight_and_active(), [Some((1, 1)); 2]);
    let service = service.external_local();
    outlast_grace_period(&mut stage, &with(service.clone()));
    assert_eq!(weight_and_active(), [Some((0, 1)); 2]);
    old.iter_mut().for_each(Talk::lives);
    stage.set(&Manifests::new().with_endpoints(service.clone(), service.endpoints(ECHO, &[here])));
    until("the endpoint is gone", FORGOTTEN, || of_far().iter().all(Option::is_none));
    let ended = old.iter_mut().filter_map(|talk| talk.exchange().err()).count();
    assert_eq!(ended, Family::ALL.len(), "those to the endpoint that has left");
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn the_grace_period_ends_a_connection() {
    let mut stage = stage_with(&short_grace(), &at(&[LabMachine::PodA]));
    let (lab, node) = (stage.lab, stage.node());
    let _echo = [LabMachine::PodA, LabMachine::PodB].map(|place| echo(lab, place));
    let mut old = talks(lab);
    stage.set(&at(&[LabMachine::PodB]));
    drains(node);
    old.iter_mut().for_each(Talk::lives);
    until_forgotten(node);
    are_reset(&mut old);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_draining_endpoint_is_known_after_a_restart() {
    let mut stage = stage(&at(&[LabMachine::PodA]));
    let (lab, node) = (stage.lab, stage.node());
    let _echo = [LabMachine::PodA, LabMachine::PodB].map(|place| echo(lab, place));
    let mut old = talks(lab);
    stage.set(&at(&[LabMachine::PodB]));
    drains(node);
    stage.restart();
    drains(node);
    old.iter_mut().for_each(Talk::lives);
    old.into_iter().for_each(Talk::reset);
    until_forgotten(node);
    // The endpoint that leaves while no proxy runs.
    let mut old = Family::ALL.map(|family| Talk::open(lab.host(LabMachine::Client), at_cluster_ip(family, 10)));
    stage.kill();
    stage.replace(&at(&[LabMachine::PodA]));
    stage.start();
    stage.wait();
    for family in Family::ALL {
        let left = of_echo(node, LabMachine::PodB, family);
        assert!(left.as_ref().is_some_and(|real| (real.weight, real.active) == (0, 1)), "{family}: {left:?}");
    }
    old.iter_mut().for_each(Talk::lives);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn an_endpoint_that_comes_back_gets_its_weight() {
    let mut stage = stage(&at(&[LabMachine::PodA]));
    let (lab, node) = (stage.lab, stage.node());
    let _echo = [LabMachine::PodA, LabMachine::PodB].map(|place| echo(lab, place));
    let mut old = talks(lab);
    stage.set(&at(&[LabMachine::PodB]));
    drains(node);
    stage.set(&at(&[LabMachine::PodA, LabMachine::PodB]));
    let weight = |family| of_echo(node, LabMachine::PodA, family).map(|real| real.weight);
    assert_eq!(Family::ALL.map(weight), [Some(1); 2]);
    old.iter_mut().for_each(Talk::lives);
    old.into_iter().for_each(Talk::reset);
    std::thread::sleep(slowly(Duration::from_secs(2)));
    assert_eq!(Family::ALL.map(weight), [Some(1); 2], "it doesn't drain any more");
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn udp_and_sctp_move_at_once() {
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        let service = TestService::new("asks", 11).protocols(&[protocol]);
        let at = |place| Manifests::new().with(service.clone(), &[place]);
        let mut stage = stage(&at(LabMachine::PodA));
        let node = stage.node();
        for family in Family::ALL {
            let source = SocketAddr::new(LabMachine::Client.address(family), 21_000);
            let client = stage.lab.from(LabMachine::Client).bound_to_port(source);
            let ask = || client.ask(protocol, at_cluster_ip(family, 11), 1);
            stage.set(&at(LabMachine::PodA));
            assert_eq!(ask().endpoints().into_keys().collect::<Vec<_>>(), ["pod-a:8080"], "{family} {protocol}");
            stage.set(&at(LabMachine::PodB));
            let listed = node.sh("ipvsadm", &["-ln"]);
            let left = to(LabMachine::PodA, family, 8080).to_string();
            assert!(!listed.contains(&left), "{protocol}: {listed}");
            until("the client moves", LIMIT, || ask().endpoints().contains_key("pod-b:8080"));
        }
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_client_with_affinity_moves_when_its_endpoint_drains() {
    let service = TestService::new("sticks", 12).affinity(3600);
    let with = |places: &[LabMachine]| Manifests::new().with(service.clone(), places);
    let mut stage = stage(&with(&[LabMachine::PodA, LabMachine::PodB]));
    let node = stage.node();
    for family in Family::ALL {
        stage.set(&with(&[LabMachine::PodA, LabMachine::PodB]));
        let at = at_cluster_ip(family, 12);
        let client = stage.lab.from(LabMachine::Client);
        let tally = client.tcp(at, 10);
        assert!(tally.all_answered() && tally.endpoints().len() == 1, "{family}: {tally}");
        let settings = server(node, at).map(|server| server.settings).unwrap_or_default();
        assert_eq!(settings, "rr persistent 3600", "{family}");
        let (left, other) = if tally.endpoints().contains_key("pod-a:8080") {
            (LabMachine::PodA, LabMachine::PodB)
        } else {
            (LabMachine::PodB, LabMachine::PodA)
        };
        stage.set(&with(&[other]));
        let drains = real(node, at, to(left, family, 8080)).is_some_and(|real| real.weight == 0);
        assert!(drains, "{family}: its connections are remembered");
        let tally = client.tcp(at, 10);
        let name = format!("{}:8080", other.name());
        assert!(tally.all_answered() && tally.endpoints().into_keys().eq([name.as_str()]), "{family}: {tally}");
        assert!(!tally.0.contains(&ProbeOutcome::Refused), "{family}");
        until("the endpoint is gone", FORGOTTEN, || real(node, at, to(left, family, 8080)).is_none());
    }
}

/// IPVS remembers a client's endpoint for the timeout of the affinity, counted from its last connection's end.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn affinity_ends_with_its_timeout() {
    let service = TestService::new("sticks", 14).affinity(2);
    let endpoints = service.endpoints(ECHO, &[LabMachine::PodA, LabMachine::PodB]);
    let stage = stage(&Manifests::new().with_endpoints(service, endpoints));
    let (lab, node) = (stage.lab, stage.node());
    let _echo = [LabMachine::PodA, LabMachine::PodB].map(|place| echo(lab, place));
    // Templates are listed as connections from port 0.
    let remembered = |family| {
        let (client, at) = (SocketAddr::new(LabMachine::Client.address(family), 0), at_cluster_ip(family, 14));
        let listed = node.sh("ipvsadm", &["--list", "--connection", "--numeric"]);
        listed.lines().any(|line| line.contains(&client.to_string()) && line.contains(&at.to_string()))
    };
    let mut talks = Family::ALL.map(|family| Talk::open(lab.host(LabMachine::Client), at_cluster_ip(family, 14)));
    assert_eq!(Family::ALL.map(remembered), [true; 2]);
    std::thread::sleep(slowly(Duration::from_secs(1)));
    talks.iter_mut().for_each(Talk::lives);
    assert_eq!(Family::ALL.map(remembered), [true; 2], "a connection holds it");
    talks.into_iter().for_each(Talk::reset);
    until("the endpoint is forgotten", FORGOTTEN, || Family::ALL.map(remembered) == [false; 2]);
}
