//! Schedulers and weights: the global option, annotations of Services, and how connections spread.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ferry_lab::lab::client_address;
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::probe::{Echo, Held};
use ferry_lab::{Checks, Endpoints, Family, Host, Manifests, Place, Service};

use crate::support::{ipvs, server, stage, stage_with};

const SCHEDULER: &str = "ferry.io/ipvs-scheduler";
const WEIGHT_ZONES: &str = "ferry.io/ipvs-weight-zones";
const WEIGHT_LOCAL: &str = "ferry.io/ipvs-weight-local";
/// The port of the echo servers in pods.
const ECHO: u16 = 8180;
/// Two pods of the node, and one elsewhere.
const ALL: [Place; 3] = [Place::PodA, Place::PodB, Place::Far];

fn scheduled(name: &str, number: u16, scheduler: &str) -> Service {
    Service::new(name, number).annotate(SCHEDULER, scheduler)
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
    let in_zones = zones.endpoints(8080, &[Place::PodA, Place::Far]).in_zones();
    let local = scheduled("local", 42, "wrr").annotate(WEIGHT_LOCAL, "2");
    let manifests = Manifests::new()
        .with(Service::new("even", 40), &ALL)
        .with_endpoints(zones, in_zones)
        .with(local, &[Place::PodA, Place::Far]);
    let stage = stage(&manifests);
    let mut checks = Checks::new();
    for family in Family::ALL {
        let spread = |number, times| stage.lab.from(Place::Client).tcp(at_cluster_ip(family, number), times);
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
            let weight = |place: Place| {
                server.endpoints.iter().find(|real| real.at.ip() == place.address(family)).map(|real| real.weight)
            };
            (weight(Place::PodA), weight(Place::Far))
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
            let tally = stage.lab.from(Place::Client).bound_to_port(source).tcp(at_cluster_ip(family, number), 4);
            let is_kept = tally.all_answered() && tally.endpoints().len() == 1;
            checks.that(is_kept, || format!("{number} from {source}: {tally}"));
            reached.extend(tally.endpoints().into_keys().map(str::to_owned));
        }
        checks.that(reached.len() > 1, || format!("{family} {number}: only {reached:?}"));
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn least_connections_go_to_the_idle_endpoint() {
    let numbers = [(45, "lc"), (46, "wlc"), (47, "nq"), (48, "sed")];
    let at = |places: &[Place]| {
        numbers.iter().fold(Manifests::new(), |all, (number, scheduler)| {
            let service = scheduled(scheduler, *number, scheduler);
            let endpoints = service.endpoints(ECHO, places);
            all.with_endpoints(service, endpoints)
        })
    };
    let mut stage = stage(&at(&[Place::PodA]));
    let lab = stage.lab;
    let _echo = [Place::PodA, Place::PodB].map(|place| {
        let at = Family::ALL.map(|family| SocketAddr::new(place.address(family), ECHO));
        Echo::start(lab.host(place), &at)
    });
    let to = numbers.iter().flat_map(|(number, _)| Family::ALL.map(|family| at_cluster_ip(family, *number)));
    let to: Vec<SocketAddr> = to.collect();
    let busy = Held::open(lab.host(Place::Client), &to, 3);
    stage.set(&at(&[Place::PodA, Place::PodB]));
    let idle = Held::open(lab.host(Place::Client), &to, 2);
    for to in &to {
        let server = server(stage.node(), *to).expect("its server");
        let mut active: Vec<u32> = server.endpoints.iter().map(|real| real.active).collect();
        active.sort_unstable();
        assert_eq!(active, [2, 3], "{server:?}");
    }
    for held in [busy, idle] {
        let fate = held.finish();
        assert!(fate.broken.is_empty(), "{fate}");
    }
}

/// A service with an endpoint of weight 1, in pod A, and one of weight 3 on another node.
fn weighted(number: u16, scheduler: &str) -> (Service, Endpoints) {
    let service = scheduled(scheduler, number, scheduler).annotate(WEIGHT_ZONES, "zone-of-node-a=1,zone-of-node-b=3");
    let endpoints = service.endpoints(ECHO, &[Place::PodA, Place::Far]).in_zones();
    (service, endpoints)
}

/// The numbers of established connections of a server's endpoints: in pod A, and elsewhere.
fn held(node: &Host, to: SocketAddr) -> [u32; 2] {
    let server = server(node, to).expect("its server");
    [Place::PodA, Place::Far].map(|place| {
        let real = server.endpoints.iter().find(|real| real.at.ip() == place.address(Family::of(to.ip())));
        real.map_or(0, |real| real.active)
    })
}

/// Each scheduler by what only its rule gives: `lc` counts connections, `wlc` in proportion to weights; `sed` counts the next one, too, so
/// that the first two go where the weight is; `nq` has none wait beside an idle endpoint; `fo` uses the highest weight alone; `ovf` goes on
/// to the next weight when an endpoint has more connections than its own.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn weights_decide_where_connections_go_that_stay() {
    let rules: [(&str, usize, [u32; 2]); 6] = [
        ("lc", 8, [4, 4]),
        ("wlc", 8, [2, 6]),
        ("sed", 2, [0, 2]),
        ("nq", 2, [1, 1]),
        ("fo", 6, [0, 6]),
        ("ovf", 6, [2, 4]),
    ];
    let manifests = rules.iter().zip(55..).fold(Manifests::new(), |all, ((scheduler, ..), number)| {
        let (service, endpoints) = weighted(number, scheduler);
        all.with_endpoints(service, endpoints)
    });
    let stage = stage(&manifests);
    let lab = stage.lab;
    let _echo = [Place::PodA, Place::Far].map(|place| {
        let at = Family::ALL.map(|family| SocketAddr::new(place.address(family), ECHO));
        Echo::start(lab.host(place), &at)
    });
    let mut checks = Checks::new();
    for family in Family::ALL {
        for ((scheduler, number_of_connections, wanted), number) in rules.into_iter().zip(55..) {
            let to = at_cluster_ip(family, number);
            let connections = Held::open(lab.host(Place::Client), &[to], number_of_connections);
            let found = held(stage.node(), to);
            checks.that(found == wanted, || format!("{family} {scheduler}: {found:?}, expected {wanted:?}"));
            let fate = connections.finish();
            checks.that(fate.broken.is_empty(), || format!("{scheduler}: {fate}"));
        }
    }
}

/// `dh`, `lblc` and `lblcr` choose by the destination, whoever the client is; the latter two go elsewhere when an endpoint has more
/// connections than its weight while another one is idle.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_service_address_keeps_its_endpoint() {
    let schedulers = ["dh", "lblc", "lblcr"];
    let services = |number: u16| schedulers.into_iter().zip(number..);
    let manifests = services(61).fold(Manifests::new(), |all, (scheduler, number)| {
        all.with(scheduled(scheduler, number, scheduler), &[Place::PodA, Place::PodB])
    });
    let manifests = services(65).fold(manifests, |all, (scheduler, number)| {
        let service = scheduled(&format!("{scheduler}-held"), number, scheduler);
        let endpoints = service.endpoints(ECHO, &[Place::PodA, Place::PodB]);
        all.with_endpoints(service, endpoints)
    });
    let stage = stage(&manifests);
    let lab = stage.lab;
    let _echo = [Place::PodA, Place::PodB].map(|place| {
        let at = Family::ALL.map(|family| SocketAddr::new(place.address(family), ECHO));
        Echo::start(lab.host(place), &at)
    });
    let mut checks = Checks::new();
    for family in Family::ALL {
        for (scheduler, number) in services(61) {
            let mut reached = BTreeSet::new();
            for address in 20..26 {
                let client = lab.from(Place::Client).bound_to(client_address(family, address));
                let tally = client.tcp(at_cluster_ip(family, number), 1);
                checks.that(tally.all_answered(), || format!("{family} {scheduler}: {tally}"));
                reached.extend(tally.endpoints().into_keys().map(str::to_owned));
            }
            checks.that(reached.len() == 1, || format!("{family} {scheduler}: {reached:?}"));
        }
        for (scheduler, number) in services(65) {
            let to = at_cluster_ip(family, number);
            let connections = Held::open(lab.host(Place::Client), &[to], 3);
            let server = server(stage.node(), to).expect("its server");
            let mut active: Vec<u32> = server.endpoints.iter().map(|real| real.active).collect();
            active.sort_unstable();
            let wanted = if scheduler == "dh" { [0, 3] } else { [1, 2] };
            checks.that(active == wanted, || format!("{family} {scheduler}: {active:?}, expected {wanted:?}"));
            let fate = connections.finish();
            checks.that(fate.broken.is_empty(), || format!("{scheduler}: {fate}"));
        }
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn an_annotation_stands_beside_the_global_option() {
    let manifests = Manifests::new()
        .with(Service::new("plain", 50), &ALL)
        .with(scheduled("own", 51, "rr"), &ALL)
        .with(scheduled("unknown", 52, "fastest"), &ALL);
    let stage = stage_with(&ipvs("ipvs: {scheduler: lc, minSyncPeriod: 1ms}"), &manifests);
    assert_eq!([50, 51, 52].map(|number| schedulers(stage.node(), number)[0].clone()), ["lc", "rr", "lc"]);
    let log = stage.proxy.log();
    assert!(log.lines().any(|line| line.contains("fastest") && line.contains("is no scheduler")), "{log}");
    for family in Family::ALL {
        assert!(stage.lab.from(Place::Client).tcp(at_cluster_ip(family, 52), 3).all_answered(), "{family}");
    }
}

/// Every scheduler of both kernels; the others of the program are newer. Established connections don't notice a change. The kernel
/// refuses new ones from the end of the old scheduler to the begin of the new one, a few milliseconds (`ip_vs_edit_service` waits for
/// readers in between).
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn every_scheduler_serves_and_its_change_breaks_no_connection() {
    let names = ["wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "rr"];
    let with = |scheduler| {
        let (short, long) = (scheduled("short", 53, scheduler), scheduled("long", 54, scheduler));
        let echoes = long.endpoints(ECHO, &[Place::PodA]);
        Manifests::new().with(short, &[Place::PodA, Place::Far]).with_endpoints(long, echoes)
    };
    let mut stage = stage(&with("rr"));
    let lab = stage.lab;
    let at = Family::ALL.map(|family| SocketAddr::new(Place::PodA.address(family), ECHO));
    let _echo = Echo::start(lab.host(Place::PodA), &at);
    let held = Held::open(lab.host(Place::Client), &Family::ALL.map(|family| at_cluster_ip(family, 54)), 2);
    let mut checks = Checks::new();
    for name in names {
        stage.set(&with(name));
        assert_eq!([53, 54].map(|number| schedulers(stage.node(), number)), [[name, name], [name, name]]);
        for family in Family::ALL {
            let tally = lab.from(Place::Client).tcp(at_cluster_ip(family, 53), 4);
            checks.that(tally.all_answered(), || format!("{family} {name}: {tally}"));
        }
    }
    let fate = held.finish();
    checks.that(fate.broken.is_empty(), || fate.to_string());
}
