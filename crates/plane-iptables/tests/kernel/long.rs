//! Chains that balance between many endpoints: edited by position, with the fewest possible changes of their order, and correct
//! under any foreign change.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::machine::{Machine, assert_same, inside, settle, wanted};
use crate::wrapper::with_wrapper;
use ferry_api::object::{Family, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{self, service};
use ferry_kernel::iptables::Backend;
use ferry_model::{Endpoint, FrontendAddr, FrontendKind, Pool, PortState};
use ferry_plane::{Delta, SyncEngine, Unit, UnitId};
use ferry_plane_iptables::{IptObject, IptablesEngine};

const PORTS: u16 = 3;

fn endpoint(family: Family, number: u16, port: u16) -> Endpoint {
    let address: IpAddr = match family {
        Family::V4 => format!("10.244.1.{number}").parse().unwrap(),
        Family::V6 => format!("fd00:10:244::{number:x}").parse().unwrap(),
    };
    Endpoint { address, port: 8000 + port }
}

/// A Service of several ports with these endpoints, some of them local, in the model's order.
fn long(family: Family, numbers: &[u16]) -> Delta {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    let ports = (0..PORTS).map(|port| {
        let of = |local: bool| -> Vec<Endpoint> {
            let numbers = numbers.iter().filter(|number| !local || number.is_multiple_of(2));
            numbers.map(|number| endpoint(family, *number, port)).collect()
        };
        let at = FrontendAddr::Vip(states::address(family, 96, 50), 80 + port);
        let frontend = states::frontend(FrontendKind::ClusterIp, at, states::INTERNAL);
        let state = states::port(Protocol::Tcp, Pool::new(of(false)), Pool::new(of(true)), vec![frontend]);
        PortState { name: format!("p{port}").into(), ..state }
    });
    let (id, unit) = service("long", ports.collect());
    Delta { context: None, units: [(id, unit)].into() }
}

fn base(family: Family) -> Delta {
    let unit = Some(Arc::new(Unit::Base(states::base(family, false))));
    Delta { context: Some(Arc::new(states::context(family))), units: [(UnitId::Base, unit)].into() }
}

fn started(machine: &Machine, numbers: &[u16]) -> IptablesEngine {
    let mut engine = machine.engine();
    engine.offer(base(machine.family));
    engine.offer(long(machine.family, numbers));
    good(engine.sync(Instant::now()));
    engine
}

/// Applies a change, compares everything with the kernel, and returns the bytes of the tool's input.
fn change(machine: &Machine, engine: &mut IptablesEngine, numbers: &[u16], when: &str) -> u64 {
    let before = engine.kernel().counters().bytes();
    engine.offer(long(machine.family, numbers));
    good(engine.sync(Instant::now()));
    assert_same(&machine.read_back(), &wanted(engine), when);
    engine.kernel().counters().bytes() - before
}

/// A chain that balances between the endpoints.
fn chain(engine: &IptablesEngine) -> String {
    let balancing = |object: &IptObject| match object {
        IptObject::Chain(id, _) if id.name.as_str().starts_with("KUBE-SVC-") => Some(id.name.to_string()),
        _ => None,
    };
    engine.objects().iter().find_map(balancing).unwrap()
}

#[test]
fn a_change_of_an_endpoint_is_a_rule_of_each_chain() {
    inside(|machine| {
        let all: Vec<u16> = (1..=60).collect();
        let mut engine = started(machine, &all);
        let replaced: Vec<u16> = all.iter().map(|number| if *number == 31 { 200 } else { *number }).collect();
        let removed: Vec<u16> = replaced.iter().copied().filter(|number| *number != 40).collect();
        let added: Vec<u16> = removed.iter().copied().chain([150]).collect();
        for (numbers, what) in [(&replaced, "replaced"), (&removed, "removed"), (&added, "added"), (&all, "as before")]
        {
            let bytes = change(machine, &mut engine, numbers, what);
            let is_edited = bytes < 1200 * u64::from(PORTS);
            assert!(is_edited || machine.backend == Backend::Legacy, "{what}: {bytes} bytes");
        }
        // The order after all changes is adopted.
        let moved = change(machine, &mut engine, &added, "moved");
        assert!(moved > 0);
        drop(engine);
        let mut engine = machine.engine();
        engine.offer(base(machine.family));
        engine.offer(long(machine.family, &added));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0, "a restart writes nothing");
        let bytes = change(machine, &mut engine, &removed, "after a restart");
        assert!(bytes < 1200 * u64::from(PORTS) || machine.backend == Backend::Legacy, "{bytes} bytes");
        assert_eq!(engine.kernel().counters().failures(), 0);
    });
}

#[test]
fn any_history_of_endpoints_ends_right() {
    inside(|machine| {
        let mut engine = started(machine, &(1..=30).collect::<Vec<_>>());
        let mut seed = 7_u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            u16::try_from((seed >> 8) % below).unwrap()
        };
        let mut numbers: Vec<u16> = (1..=30).collect();
        for round in 0..40 {
            for _ in 0..random(4) {
                let at = usize::from(random(u32::try_from(numbers.len()).unwrap()));
                match random(4) {
                    0 | 1 if numbers.len() > 12 => drop(numbers.remove(at)),
                    2 => numbers[at] = 100 + random(120),
                    _ => numbers.push(100 + random(120)),
                }
                numbers.sort_unstable();
                numbers.dedup();
            }
            change(machine, &mut engine, &numbers, &format!("round {round}: {numbers:?}"));
        }
        assert_eq!(engine.kernel().counters().failures(), 0);
        assert!(engine.kernel().counters().runs() > 20);
    });
}

#[test]
fn a_chain_that_others_have_changed_is_not_edited_by_position() {
    inside(|machine| {
        let all: Vec<u16> = (1..=40).collect();
        let mut engine = started(machine, &all);
        let chain = chain(&engine);
        for (at, damage) in
            [format!("-t nat -D {chain} 3"), format!("-t nat -F {chain}"), format!("-t nat -I {chain} -j RETURN")]
                .iter()
                .enumerate()
        {
            machine.iptables(damage);
            let numbers: Vec<u16> = all[at + 1..].to_vec();
            engine.offer(long(machine.family, &numbers));
            good(engine.sync(Instant::now()));
            settle(&mut engine, Instant::now());
            assert_same(&machine.read_back(), &wanted(&engine), damage);
        }
    });
}

/// Another program changes the chain after the engine's check and before its run commits.
#[test]
fn an_edit_that_meets_another_writers_change_is_made_good() {
    with_wrapper("-restore", Duration::from_secs(60), |machine, wrapper| {
        let all: Vec<u16> = (1..=40).collect();
        let mut engine = started(machine, &all);
        let chain = chain(&engine);
        for (number, damage) in ["-F", "-D 2"].into_iter().enumerate() {
            let mut words = damage.split(' ');
            let (command, position) = (words.next().unwrap(), words.next().unwrap_or_default());
            let plain = machine.program("");
            wrapper.fault(&format!("{plain} -t nat {command} {chain} {position}\nrm $FOLDER/fault-restore\n"));
            let numbers: Vec<u16> = all[number + 1..].to_vec();
            engine.offer(long(machine.family, &numbers));
            let outcome = engine.sync(Instant::now());
            assert!(outcome.quarantined.is_empty(), "{outcome:?}");
            settle(&mut engine, Instant::now());
            assert_same(&machine.read_back(), &wanted(&engine), damage);
        }
    });
}
