//! Many services: sections, omitted comments, shared chains that are written anew, and the cost.

use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use crate::machine::{FEATURES, Machine, assert_same, inside, wanted};
use crate::wrapper::with_wrapper;
use ferry_api::object::{Family, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{self, service};
use ferry_kernel::iptables::Backend;
use ferry_model::{Action, Context, Endpoint, FrontendAddr, FrontendKind, LocalDetector, Pool, Treatment};
use ferry_plane::{Applied, Batch, CommitError, Compile, Delta, Extent, Kernel, Object, SyncEngine, Unit, UnitId};
use ferry_plane_iptables::{IptObject, Iptables, IptablesEngine};

const SERVICES: u16 = 360;

fn address(family: Family, net: u8, number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    match family {
        Family::V4 => format!("10.{net}.{high}.{low}").parse().unwrap(),
        Family::V6 => format!("fd00:10:{net}::{number:x}").parse().unwrap(),
    }
}

/// A service with three endpoints, the first with this number; or without endpoints.
fn one(family: Family, number: u16, first: Option<u16>) -> (UnitId, Option<Arc<Unit>>) {
    let endpoint = |number| Endpoint { address: address(family, 244, number), port: 8080 };
    let pool = first.map(|first| [first, 5000 + 2 * number, 5001 + 2 * number].map(endpoint).to_vec());
    let treatment = if first.is_some() { states::INTERNAL } else { Treatment::all(Action::Reject) };
    let at = FrontendAddr::Vip(address(family, 96, number), 80);
    let frontend = states::frontend(FrontendKind::ClusterIp, at, treatment);
    let cluster = Pool::new(pool.unwrap_or_default());
    service(&format!("s-{number}"), vec![states::port(Protocol::Tcp, cluster, Pool::new([]), vec![frontend])])
}

fn all(family: Family) -> Delta {
    let mut units: std::collections::BTreeMap<_, _> =
        (0..SERVICES).map(|number| one(family, number, Some(number))).collect();
    units.insert(UnitId::Base, Some(Arc::new(Unit::Base(states::base(family, false)))));
    Delta { context: Some(Arc::new(states::context(family))), units }
}

fn units(units: impl Iterator<Item = (UnitId, Option<Arc<Unit>>)>) -> Delta {
    Delta { context: None, units: units.collect() }
}

fn started(machine: &Machine) -> IptablesEngine {
    let mut engine = machine.engine();
    engine.offer(all(machine.family));
    good(engine.sync(Instant::now()));
    engine
}

fn holds(machine: &Machine, engine: &mut IptablesEngine, when: &str) {
    assert_same(&machine.read_back(), &wanted(engine), when);
    assert!(engine.kernel_mut().tend(Instant::now()).unwrap().is_empty(), "{when}");
}

#[test]
fn many_services_come_change_and_go() {
    inside(|machine| {
        let family = machine.family;
        let mut engine = started(machine);
        assert_eq!(engine.kernel().counters().runs(), 1);
        holds(machine, &mut engine, "all at once");
        // one endpoint
        let before = engine.kernel().counters().bytes();
        engine.offer(units([one(family, 7, Some(1007))].into_iter()));
        good(engine.sync(Instant::now()));
        let bytes = engine.kernel().counters().bytes() - before;
        assert!(bytes < 1500, "{bytes}");
        assert_eq!(engine.kernel().counters().runs(), 2);
        holds(machine, &mut engine, "one endpoint");
        // so many rules of one shared chain that it is written anew, and then back
        for endpoints in [false, true] {
            let some = (0..200).map(|number| one(family, number, endpoints.then_some(number)));
            engine.offer(units(some));
            good(engine.sync(Instant::now()));
            holds(machine, &mut engine, "without endpoints");
            let services = machine.iptables("-t nat -S KUBE-SERVICES");
            assert!(services.lines().last().unwrap().ends_with("-j KUBE-NODEPORTS"), "{services}");
        }
        // every chain of all services
        let local = Some(LocalDetector::InterfacePrefix("veth".into()));
        let context = Context { local, masquerade_mark: 0x8000, ..states::context(family) };
        engine.offer(Delta { context: Some(Arc::new(context)), ..Delta::default() });
        good(engine.sync(Instant::now()));
        holds(machine, &mut engine, "another context");
        // all
        engine.offer(units((0..SERVICES).map(|number| (one(family, number, None).0, None))));
        good(engine.sync(Instant::now()));
        holds(machine, &mut engine, "no services");
        assert_eq!(engine.kernel().counters().failures(), 0);
    });
}

#[test]
fn large_clusters_have_fewer_comments_and_a_restart_writes_nothing() {
    inside(|machine| {
        let family = machine.family;
        let mut engine = machine.engine();
        let mut few = all(family);
        few.units.retain(|id, _| *id == UnitId::Base || (0..300).any(|number| *id == one(family, number, None).0));
        engine.offer(few);
        good(engine.sync(Instant::now()));
        let commented = |machine: &Machine| -> usize {
            machine.saved().iter().filter(|line| line.contains("KUBE-SEP-") && line.contains("--comment")).count()
        };
        assert_eq!(commented(machine), 300 * 9, "900 endpoints");
        engine.offer(units((300..SERVICES).map(|number| one(family, number, Some(number)))));
        good(engine.sync(Instant::now()));
        assert_eq!(commented(machine), 300 * 9, "what is there stays, what comes has none");
        let services = machine.saved();
        assert!(services.iter().any(|line| line.contains("demo/s-350:http cluster IP")), "places have");
        drop(engine);
        let mut engine = machine.engine();
        engine.offer(all(family));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0);
        assert_eq!(engine.kernel().counters().runs(), 0);
    });
}

/// The kernel accepts the first sections, and refuses the last one.
#[test]
fn sections_that_were_committed_before_a_failure_are_completed() {
    with_wrapper("-restore", Duration::from_secs(60), |machine, wrapper| {
        let mut empty = machine.engine();
        let mut none = all(machine.family);
        none.units.retain(|id, _| *id == UnitId::Base);
        empty.offer(none);
        good(empty.sync(Instant::now()));
        let mut engine = machine.engine();
        let mut delta = all(machine.family);
        let refused = (0..SERVICES).map(|number| one(machine.family, number, (number % 2 == 0).then_some(number)));
        delta.units.extend(refused);
        engine.offer(delta);
        // In the rule of the last shared chain, so that everything before it is accepted; once.
        let break_it = "input=$FOLDER/input\ntext > $input\nif [ -e $FOLDER/broken ]; then exec $REAL \"$@\" < $input; fi\ntouch $FOLDER/broken\nsed 's/^-I KUBE-SERVICES .* -j KUBE-SVC/-I KUBE-SERVICES -m nosuch -j KUBE-SVC/;s/^-A KUBE-SERVICES .* -j KUBE-SVC/-A KUBE-SERVICES -m nosuch -j KUBE-SVC/' $input | $REAL \"$@\"\nexit $?\n";
        wrapper.fault(break_it);
        let kernel = engine.kernel_mut();
        let actual = kernel.read_back(&Extent::All).unwrap();
        assert!(!actual.is_empty());
        let mut objects = Vec::new();
        let (compile, context) = (Iptables::new(machine.family, FEATURES), states::context(machine.family));
        for number in 0..SERVICES {
            let (_, unit) = one(machine.family, number, (number % 2 == 0).then_some(number));
            compile.compile(&context, &unit.unwrap(), &mut objects);
        }
        objects.sort_by_key(Object::rank);
        let batch = Batch { create: objects, ..Batch::default() };
        let error = kernel.commit(&batch).unwrap_err();
        assert!(matches!(error.error, CommitError::Refused(_)), "{error:?}");
        assert_eq!(error.applied, Applied::Unknown);
        wrapper.well();
        good(engine.sync(Instant::now()));
        assert_same(&machine.read_back(), &wanted(&engine), "in the end");
    });
}

#[test]
fn a_flush_of_one_place_is_one_run_and_looks_at_that_place() {
    let test = |machine: &Machine| {
        let mut engine = started(machine);
        machine.iptables("-t nat -F KUBE-SERVICES");
        let now = Instant::now();
        good(engine.tend(now));
        let (runs, bytes) = (engine.kernel().counters().runs(), engine.kernel().counters().bytes());
        let outcome = good(engine.tend(now + Duration::from_millis(200)));
        assert!(!outcome.full && outcome.repairs == usize::from(SERVICES) + 1, "{outcome:?}");
        assert_eq!(engine.kernel().counters().runs(), runs + 1);
        assert!(engine.kernel().counters().bytes() - bytes < 200 * u64::from(SERVICES));
        assert_same(&machine.read_back(), &wanted(&engine), "mended");
    };
    std::thread::scope(|scope| {
        for family in Family::ALL {
            scope.spawn(move || crate::machine::on(Backend::Nft, family, &test));
        }
    });
}

/// A rule made by nft among ours: the tool prints nothing of the table, and there are too many chains to list one by one. Another
/// program commits all the time.
#[test]
fn what_nobody_can_look_into_is_written_once() {
    let test = |machine: &Machine| {
        drop(started(machine));
        let tables = if machine.family == Family::V4 { "ip" } else { "ip6" };
        let nft = |command: &str| assert!(Command::new("nft").arg(command).status().unwrap().success(), "{command}");
        nft(&format!("table {tables} nat {{ chain NATIVE {{ meta hour > \"05:00\" accept; }}; }}"));
        nft("add table inet neighbour");
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while stopped.try_recv() == Err(TryRecvError::Empty) {
                    nft("add chain inet neighbour busy; delete chain inet neighbour busy");
                }
            });
            // The neighbour stops when this is dropped, also after a failure.
            let _stop = stop;
            let mut engine = machine.engine();
            engine.offer(all(machine.family));
            let now = Instant::now();
            good(engine.sync(now));
            let turn =
                |engine: &mut IptablesEngine, turn: u32| good(engine.tend(now + turn * Duration::from_millis(300)));
            (1..8).for_each(|number| drop(turn(&mut engine, number)));
            let runs = engine.kernel().counters().runs();
            let more: usize = (8..20).map(|number| turn(&mut engine, number).repairs).sum();
            assert_eq!((engine.kernel().counters().runs(), more), (runs, 0), "{}", machine.family);
            // Reported changes are checked all the same.
            let chain = engine.objects().iter().find_map(|object| match object {
                IptObject::Chain(id, _) if id.name.as_str().starts_with("KUBE-SVC-") => Some(id.name),
                _ => None,
            });
            nft(&format!("flush chain {tables} nat {}", chain.unwrap()));
            let repairs: usize = (20..30).map(|number| turn(&mut engine, number).repairs).sum();
            assert_eq!(repairs, 1);
        });
    };
    for family in Family::ALL {
        crate::machine::on(Backend::Nft, family, &test);
    }
}
