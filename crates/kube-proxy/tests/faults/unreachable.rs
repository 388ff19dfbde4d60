//! A server that is unreachable in the three ways of a network: the port refuses, packets get lost, there is no route.

use std::time::{Duration, Instant};

use ferry_api::object::{Kind, ObjectName};
use ferry_client as client;
use ferry_kube_proxy::events::{KubeEvent, Level, Regarding};
use ferry_kube_proxy::source::api::SourceTiming;
use ferry_lab::api::RequestForm;
use ferry_lab::patience::slowly;

use crate::support::{Cluster, How, PATIENCE, SOON};

/// The way in which a server is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    /// nothing listens at its port
    Refused,
    /// each packet to it is dropped
    BlackHole,
    /// the machine has no route to it
    NoRoute,
}

/// Duration of the outage in which attempts are counted.
const OUTAGE_SECONDS: u64 = 6;

// === impl Absence ===

impl Absence {
    /// Ends all connections to the server, which is unreachable from then on.
    fn begin(self, cluster: &Cluster) {
        cluster.server.stop();
        match self {
            Self::Refused => return,
            Self::BlackHole => {
                // As before Linux 6.5: the intervals of an attempt's packets double, instead of being the same four times.
                cluster.set_parameter("net/ipv4/tcp_syn_linear_timeouts", "0");
                let port = cluster.server.address().port();
                cluster.run("nft", "add table ip hole");
                cluster.run("nft", "add chain ip hole input { type filter hook input priority 0 ; }");
                cluster.run("nft", &format!("add rule ip hole input tcp dport {port} counter drop"));
            }
            Self::NoRoute => {
                // The rule of the local table comes first otherwise.
                cluster.run("ip", "rule add pref 2 lookup local");
                cluster.run("ip", "rule del pref 0");
                cluster.run("ip", "rule add pref 1 to 127.0.0.1/32 unreachable");
            }
        }
        cluster.server.resume();
    }

    /// Makes the server reachable again.
    fn end(self, cluster: &Cluster) {
        match self {
            Self::Refused => cluster.server.resume(),
            Self::BlackHole => drop(cluster.run("nft", "delete table ip hole")),
            Self::NoRoute => drop(cluster.run("ip", "rule del pref 1")),
        }
    }

    /// Part of the error of an attempt.
    fn error(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::BlackHole => "deadline has elapsed",
            Self::NoRoute => "unreachable",
        }
    }

    /// The longest interval of two attempts in the outage, with jitter.
    fn longest_interval(self) -> f64 {
        // TCP has 2 s; the eighth attempt, which has 5 s, is later.
        if self == Self::BlackHole { 2.0 } else { 1.7 }
    }
}

/// Dropped packets so far.
fn dropped(cluster: &Cluster) -> f64 {
    let rules = cluster.run("nft", "list chain ip hole input");
    let (_, count) = rules.split_once("counter packets ").expect("the rule's counter");
    count.split(' ').next().expect("a number").parse().expect("a number")
}

/// At most one attempt a second in total, of all kinds and the writer of Events. The source catches up within two seconds of the
/// server's return, from where it was.
fn is_asked_once_a_second_and_found_soon(absence: Absence) {
    let mut cluster = Cluster::new();
    let times = How { timing: SourceTiming::default(), client: client::TimeLimits::default(), ..How::default() };
    let mut follower = cluster.follow_by(times);
    follower.until_equal(&cluster);
    absence.begin(&cluster);
    follower.until("trouble", |follower| follower.lines(&["WARN", absence.error()]).len() >= 4);
    let (before, begun) = (follower.unreachable_attempts(), Instant::now());
    let dropped_before = if absence == Absence::BlackHole { dropped(&cluster) } else { 0.0 };
    for number in 0..OUTAGE_SECONDS {
        let regarding = Regarding::Service(ObjectName::new("demo", "a"), None);
        follower.recorder.record(KubeEvent::new(regarding, Level::Warning, "Outage", "Serve", &format!("{number}")));
        follower.take_within(Duration::from_secs(1));
    }
    let (attempts, seconds) = (follower.unreachable_attempts() - before, begun.elapsed().as_secs_f64());
    assert!(attempts <= seconds + 1.0, "{attempts} attempts in {seconds} s");
    assert!(attempts >= (seconds / absence.longest_interval()).floor() - 1.0, "{attempts} attempts in {seconds} s");
    if absence == Absence::BlackHole {
        // The kernel sends a packet again within an attempt.
        let (packets, seconds) = (dropped(&cluster) - dropped_before, begun.elapsed().as_secs_f64());
        assert!((1.0..=seconds + 2.0).contains(&packets), "{packets} packets in {seconds} s");
    }
    if absence == Absence::BlackHole {
        // The server returns at the worst moment, after a packet: the kernel sends one a second.
        let (before, deadline) = (dropped(&cluster), Instant::now() + PATIENCE);
        while dropped(&cluster) <= before {
            assert!(Instant::now() < deadline, "no packet to the server");
        }
    }
    cluster.service("a");
    absence.end(&cluster);
    let back = Instant::now();
    follower.until_equal(&cluster);
    let took = back.elapsed();
    assert!(took < slowly(SOON), "{took:?}\n{}", follower.log());
    assert_eq!(cluster.asked(Kind::Service, RequestForm::StreamingList).len(), 1, "it continues where it was");
}

fn a_server_that_refuses_is_asked_once_a_second_and_found_soon() {
    is_asked_once_a_second_and_found_soon(Absence::Refused);
}

fn a_server_behind_a_black_hole_is_asked_once_a_second_and_found_soon() {
    is_asked_once_a_second_and_found_soon(Absence::BlackHole);
}

fn a_server_without_a_route_is_asked_once_a_second_and_found_soon() {
    is_asked_once_a_second_and_found_soon(Absence::NoRoute);
}

over_both! {
    a_server_that_refuses_is_asked_once_a_second_and_found_soon,
    a_server_behind_a_black_hole_is_asked_once_a_second_and_found_soon,
    a_server_without_a_route_is_asked_once_a_second_and_found_soon,
}
