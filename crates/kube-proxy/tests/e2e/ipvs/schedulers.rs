//! Schedulers and weights: the global option, annotations of Services, and how connections spread.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};

use ferry_lab::lab::client_address;
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::patience::until;
use ferry_lab::probe::{Echo, Held};
use ferry_lab::{Checks, Endpoints, Family, Host, Lab, LabMachine, Manifests, TestService};

use crate::support::{LIMIT, Real, ipvs, server, stage, stage_with};

const SCHEDULER: &str = "ferry.io/ipvs-scheduler";
const WEIGHT_ZONES: &str = "ferry.io/ipvs-weight-zones";
const WEIGHT_LOCAL: &str = "ferry.io/ipvs-weight-local";
/// The port of the echo servers in pods.
const ECHO: u16 = 8180;
/// Two pods of the node, and one elsewhere.
const ALL: [LabMachine; 3] = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];

fn scheduled(name: &str, number: u16, scheduler: &str) -> TestService {
    TestService::new(name, number).annotate(SCHEDULER, scheduler)
}

/// The scheduler of a service, in both families.
fn schedulers(node: &Host, number: u16) -> [String; 2] {
    Family::ALL.map(|family| {
        let settings = server(node, at_cluster_ip(family, number)).map(|server| server.settings).unwrap_or_default();
        settings.split(' ').next().unwrap_or_default().to_owned()
    })
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn connections_spread_evenly_or_by_weights() {
    let zones = scheduled("zones", 41, "wrr").annotate(WEIGHT_ZONES, "zone-of-node-a=1,zone-of-node-b=3");
    let in_zones = zones.endpoints(8080, &[LabMachine::PodA, LabMachine::Far]).in_zones();
    let local = scheduled("local", 42, "wrr").annotate(WEIGHT_LOCAL, "2");
    let manifests = Manifests::new()
        .with(TestService::new("even", 40), &ALL)
        .with_endpoints(zones, in_zones)
        .with(local, &[LabMachine::PodA, LabMachine::Far]);
    let stage = stage(&manifests);
    let mut checks = Checks::new();
    for family in Family::ALL {
        let spread = |number, times| stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, number), times);
        let wanted: [(u16, &[(&str, usize)]); 3] = [
            (40, &[("far:8080", 10), ("pod-a:8080", 10), ("pod-b:8080", 10)]),
            (41, &[("far:8080", 15), ("pod-a:8080", 5)]),
            (42, &[("far:8080", 5), ("pod-a:8080", 10)]),
        ];
        for (number, counts) in wanted {
            let tally = spread(number, counts.iter().map(|(_, count)| count).sum());
            let is_so = tally.endpoints().into_iter().collect::<Vec<_>>() == counts;
            checks.that(is_so, || format!("{family} {number}: {tally}, expected {counts:?}"));
        }
        let weights = |number| {
            let server = server(stage.node(), at_cluster_ip(family, number)).expect("its server");
            let weight = |place: LabMachine| {
                server.endpoints.iter().find(|real| real.at.ip() == place.address(family)).map(|real| real.weight)
            };
            (weight(LabMachine::PodA), weight(LabMachine::Far))
        };
        assert_eq!((weights(41), weights(42)), ((Some(1), Some(3)), (Some(2), Some(1))), "{family}");
    }
}

/// `sh` chooses by the source address, `mh` by address and port.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn hashes_keep_a_client_at_an_endpoint() {
    let stage = stage(&Manifests::new().with(scheduled("sh", 43, "sh"), &ALL).with(scheduled("mh", 44, "mh"), &ALL));
    let mut checks = Checks::new();
    for (family, number) in Family::ALL.into_iter().flat_map(|family| [(family, 43), (family, 44)]) {
        let mut reached = BTreeSet::new();
        for address in 20..28 {
            let port = if number == 43 { 0 } else { 20_000 + u16::from(address) };
            let source = SocketAddr::new(client_address(family, address), port);
            let tally = stage.lab.from(LabMachine::Client).bound_to_port(source).tcp(at_cluster_ip(family, number), 4);
            let is_kept = tally.all_answered() && tally.endpoints().len() == 1;
            checks.that(is_kept, || format!("{number} from {source}: {tally}"));
            reached.extend(tally.endpoints().into_keys().map(str::to_owned));
        }
        checks.that(reached.len() > 1, || format!("{family} {number}: only {reached:?}"));
    }
}

/// Echo servers at all endpoints.
fn echoes(lab: &Lab) -> [Echo; 3] {
    ALL.map(|place| {
        let at = Family::ALL.map(|family| SocketAddr::new(place.address(family), ECHO));
        Echo::start(lab.host(place), &at)
    })
}

/// The numbers of established connections of a server's endpoints: in the pods of the node, and elsewhere.
fn active(node: &Host, to: SocketAddr) -> [u32; 3] {
    let server = server(node, to).expect("its server");
    ALL.map(|place| {
        let real = server.endpoints.iter().find(|real| real.at.ip() == place.address(Family::of(to.ip())));
        real.map_or(0, |real| real.active)
    })
}

/// Opens connections one after another, each once IPVS counts the one before as established, which is later than the client's `connect`
/// returns.
fn hold(lab: &Lab, to: SocketAddr, connections: u32) -> Vec<Held> {
    let count = || active(lab.host(LabMachine::Node), to).iter().sum::<u32>();
    let before = count();
    let open = |number| {
        let held = Held::open(lab.host(LabMachine::Client), &[to], 1);
        until("a connection more", LIMIT, || count() == before + number);
        held
    };
    (1..=connections).map(open).collect()
}

/// Ends connections, which have worked so far.
fn assert_unbroken(what: &str, connections: Vec<Held>) {
    for held in connections {
        assert_eq!(held.finish().broken, [""; 0], "{what}");
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn least_connections_go_to_the_idle_endpoint() {
    let numbers = [(45, "lc"), (46, "wlc"), (47, "nq"), (48, "sed")];
    let at = |places: &[LabMachine]| {
        numbers.iter().fold(Manifests::new(), |all, (number, scheduler)| {
            let service = scheduled(scheduler, *number, scheduler);
            let endpoints = service.endpoints(ECHO, places);
            all.with_endpoints(service, endpoints)
        })
    };
    let mut stage = stage(&at(&[LabMachine::PodA]));
    let lab = stage.lab;
    let _echo = echoes(lab);
    let to = numbers.iter().flat_map(|(number, _)| Family::ALL.map(|family| at_cluster_ip(family, *number)));
    let to: Vec<SocketAddr> = to.collect();
    let busy = Held::open(lab.host(LabMachine::Client), &to, 3);
    stage.set(&at(&[LabMachine::PodA, LabMachine::PodB]));
    let idle = Held::open(lab.host(LabMachine::Client), &to, 2);
    for to in &to {
        until(&format!("{to} has two at the idle endpoint"), LIMIT, || active(stage.node(), *to) == [3, 2, 0]);
    }
    assert_unbroken("the fewest", vec![busy, idle]);
}

/// A service with an endpoint of weight 1, in pod A, and one of weight 3 on another node.
fn weighted(number: u16, scheduler: &str) -> (TestService, Endpoints) {
    let service = scheduled(scheduler, number, scheduler).annotate(WEIGHT_ZONES, "zone-of-node-a=1,zone-of-node-b=3");
    let endpoints = service.endpoints(ECHO, &[LabMachine::PodA, LabMachine::Far]).in_zones();
    (service, endpoints)
}

/// Each scheduler by what only its rule gives: `lc` counts connections, `wlc` in proportion to weights; `sed` counts the next one, too, so
/// that the first two go where the weight is; `nq` has none wait beside an idle endpoint; `fo` uses the highest weight alone; `ovf` goes on
/// to the next weight when an endpoint has more connections than its own.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn weights_decide_where_connections_go_that_stay() {
    let rules: [(&str, u32, [u32; 3]); 6] = [
        ("lc", 8, [4, 0, 4]),
        ("wlc", 8, [2, 0, 6]),
        ("sed", 2, [0, 0, 2]),
        ("nq", 2, [1, 0, 1]),
        ("fo", 6, [0, 0, 6]),
        ("ovf", 6, [2, 0, 4]),
    ];
    let manifests = rules.iter().zip(55..).fold(Manifests::new(), |all, ((scheduler, ..), number)| {
        let (service, endpoints) = weighted(number, scheduler);
        all.with_endpoints(service, endpoints)
    });
    let stage = stage(&manifests);
    let lab = stage.lab;
    let _echo = echoes(lab);
    let mut checks = Checks::new();
    for family in Family::ALL {
        for ((scheduler, number_of_connections, wanted), number) in rules.into_iter().zip(55..) {
            let to = at_cluster_ip(family, number);
            let connections = hold(lab, to, number_of_connections);
            let found = active(stage.node(), to);
            checks.that(found == wanted, || format!("{family} {scheduler}: {found:?}, expected {wanted:?}"));
            assert_unbroken(scheduler, connections);
        }
    }
}

/// `dh`, `lblc` and `lblcr` choose by the destination, whoever the client is; `dh` stays with its choice under any load.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_service_address_keeps_its_endpoint() {
    let services = || ["dh", "lblc", "lblcr"].into_iter().zip(61..);
    let manifests = services()
        .fold(Manifests::new(), |all, (scheduler, number)| all.with(scheduled(scheduler, number, scheduler), &ALL));
    let busy = scheduled("dh-held", 65, "dh");
    let endpoints = busy.endpoints(ECHO, &ALL);
    let stage = stage(&manifests.with_endpoints(busy, endpoints));
    let lab = stage.lab;
    let _echo = echoes(lab);
    let mut checks = Checks::new();
    for family in Family::ALL {
        for (scheduler, number) in services() {
            let mut reached = BTreeSet::new();
            for address in 20..28 {
                let client = lab.from(LabMachine::Client).bound_to(client_address(family, address));
                let tally = client.tcp(at_cluster_ip(family, number), 1);
                checks.that(tally.all_answered(), || format!("{family} {scheduler}: {tally}"));
                reached.extend(tally.endpoints().into_keys().map(str::to_owned));
            }
            checks.that(reached.len() == 1, || format!("{family} {scheduler}: {reached:?}"));
        }
        let to = at_cluster_ip(family, 65);
        let connections = hold(lab, to, 6);
        let mut active = active(stage.node(), to);
        active.sort_unstable();
        checks.that(active == [0, 0, 6], || format!("{family} dh: {active:?}"));
        assert_unbroken("dh", connections);
    }
}

/// `lblc` and `lblcr` stay with one endpoint until it has more connections than its weight, which is 2 here, while another one has less
/// than half of its own. Then a second one joins. Once the first is idle again, the next connection shows what they remember: `lblc` has
/// forgotten the first, `lblcr` takes the less loaded one of its set of two. Neither takes the third, which never had a connection.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn an_overloaded_endpoint_is_joined_by_another_one() {
    let wanted: [(&str, [u32; 2]); 2] = [("lblc", [0, 2]), ("lblcr", [1, 1])];
    let manifests = wanted.iter().zip(66..).fold(Manifests::new(), |all, ((scheduler, _), number)| {
        let service = scheduled(scheduler, number, scheduler);
        let service = service.annotate(WEIGHT_ZONES, "zone-of-node-a=2,zone-of-node-b=2");
        let endpoints = service.endpoints(ECHO, &ALL).in_zones();
        all.with_endpoints(service, endpoints)
    });
    let stage = stage(&manifests);
    let (lab, node) = (stage.lab, stage.node());
    let _echo = echoes(lab);
    let mut checks = Checks::new();
    for family in Family::ALL {
        for ((scheduler, at_last), number) in wanted.into_iter().zip(66..) {
            let to = at_cluster_ip(family, number);
            let position = |of: [u32; 3], count| of.iter().position(|held| *held == count);
            let busy = hold(lab, to, 3);
            let first = active(node, to);
            let Some(one) = position(first, 3) else { panic!("{family} {scheduler}: {first:?}") };
            let mut more = hold(lab, to, 1);
            let second = active(node, to);
            let Some(other) = position(second, 1) else { panic!("{family} {scheduler}: {first:?}, {second:?}") };
            assert_unbroken(scheduler, busy);
            until("the first endpoint is idle", LIMIT, || active(node, to)[one] == 0);
            more.extend(hold(lab, to, 1));
            let third = active(node, to);
            let is_so = [third[one], third[other]] == at_last;
            checks.that(is_so, || format!("{family} {scheduler}: {first:?}, {second:?}, {third:?}"));
            assert_unbroken(scheduler, more);
        }
    }
}

/// `twos` draws two endpoints by weight, and takes the less loaded one. So an endpoint under load gets a connection if it is drawn twice,
/// in one of four cases. A scheduler that only draws would give it half of them, one that looks for the least load none.
///
/// The weights are high, since the kernel draws numbers from 0 to the sum of the weights: of two endpoints of weight 1 one would be
/// drawn in two of three cases.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn of_two_that_are_drawn_the_less_loaded_is_taken() {
    const NEW: usize = 300;
    const LOAD: usize = 5;
    let loaded = [LabMachine::PodA, LabMachine::Far];
    let with = |others: &[LabMachine]| {
        loaded.iter().zip(68..).fold(Manifests::new(), |all, (place, number)| {
            let service = scheduled(&format!("twos-{number}"), number, "twos");
            let service = service.annotate(WEIGHT_ZONES, "zone-of-node-a=100,zone-of-node-b=100");
            let places: Vec<LabMachine> =
                others.iter().copied().filter(|other| other != place).chain([*place]).collect();
            let endpoints = service.endpoints(ECHO, &places).in_zones();
            all.with_endpoints(service, endpoints)
        })
    };
    let mut stage = stage(&with(&[]));
    let lab = stage.lab;
    let _echo = echoes(lab);
    let frontends =
        || Family::ALL.into_iter().flat_map(|family| [(family, 68, LabMachine::PodA), (family, 69, LabMachine::Far)]);
    let to: Vec<SocketAddr> = frontends().map(|(family, number, _)| at_cluster_ip(family, number)).collect();
    let load = Held::open(lab.host(LabMachine::Client), &to, LOAD);
    stage.set(&with(&loaded));
    let mut checks = Checks::new();
    for (family, number, place) in frontends() {
        let to = at_cluster_ip(family, number);
        lab.host(LabMachine::Client).run(move || {
            (0..NEW).for_each(|_| drop(TcpStream::connect(to).expect("it is served")));
        });
        let server = server(stage.node(), to).expect("its server");
        // Connections that have ended are listed for two minutes.
        let count = |real: &Real| usize::try_from(real.active + real.inactive).expect("a small number");
        let all: usize = server.endpoints.iter().map(count).sum();
        let of_loaded =
            server.endpoints.iter().find(|real| real.at.ip() == place.address(family)).map_or(0, count) - LOAD;
        println!("{family}: with load at {place:?} {of_loaded} of {} connections", all - LOAD);
        checks.that(all == NEW + LOAD, || format!("{all} connections: {server:?}"));
        // Five standard deviations from the expected quarter.
        checks
            .that((38..=112).contains(&of_loaded), || format!("{family} {place:?}: {of_loaded} of {NEW}: {server:?}"));
    }
    assert_unbroken("twos", vec![load]);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn an_annotation_stands_beside_the_global_option() {
    let manifests = Manifests::new()
        .with(TestService::new("plain", 50), &ALL)
        .with(scheduled("own", 51, "rr"), &ALL)
        .with(scheduled("unknown", 52, "fastest"), &ALL);
    let stage = stage_with(&ipvs("ipvs: {scheduler: lc, minSyncPeriod: 1ms}"), &manifests);
    assert_eq!([50, 51, 52].map(|number| schedulers(stage.node(), number)[0].clone()), ["lc", "rr", "lc"]);
    let log = stage.proxy.log();
    assert!(log.lines().any(|line| line.contains("fastest") && line.contains("is no scheduler")), "{log}");
    for family in Family::ALL {
        assert!(stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, 52), 3).all_answered(), "{family}");
    }
}

/// Every scheduler of the program, which both kernels of user-mode Linux have. Established connections don't notice a change. The kernel
/// refuses new ones from the end of the old scheduler to the begin of the new one, a few milliseconds (`ip_vs_edit_service` waits for
/// readers in between).
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn every_scheduler_serves_and_its_change_breaks_no_connection() {
    let names = ["wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos", "rr"];
    let with = |scheduler| {
        let (short, long) = (scheduled("short", 53, scheduler), scheduled("long", 54, scheduler));
        let echoes = long.endpoints(ECHO, &[LabMachine::PodA]);
        Manifests::new().with(short, &[LabMachine::PodA, LabMachine::Far]).with_endpoints(long, echoes)
    };
    let mut stage = stage(&with("rr"));
    let lab = stage.lab;
    let at = Family::ALL.map(|family| SocketAddr::new(LabMachine::PodA.address(family), ECHO));
    let _echo = Echo::start(lab.host(LabMachine::PodA), &at);
    let held = Held::open(lab.host(LabMachine::Client), &Family::ALL.map(|family| at_cluster_ip(family, 54)), 2);
    let mut checks = Checks::new();
    for name in names {
        stage.set(&with(name));
        assert_eq!([53, 54].map(|number| schedulers(stage.node(), number)), [[name, name], [name, name]]);
        for family in Family::ALL {
            let tally = lab.from(LabMachine::Client).tcp(at_cluster_ip(family, 53), 4);
            checks.that(tally.all_answered(), || format!("{family} {name}: {tally}"));
        }
    }
    let fate = held.finish();
    checks.that(fate.broken.is_empty(), || fate.to_string());
}
