//! The numbers of netlink messages: for a start, a change, a restart, and the looks for foreign changes with their repairs.

use std::collections::BTreeMap;
use std::time::Instant;

use ferry_api::object::Family;
use ferry_conformance::good;
use ferry_kernel::netlink::tap::{MessageTally, RequestKind, Tap};
use ferry_plane::{Delta, SyncEngine};
use ferry_plane_ipvs::IpvsEngine;

use crate::common::{at_vip, change, everything, generation, inside, ipvsadm, open, started_with, wake, web};

/// Services, each with [`ENDPOINTS`].
const SERVICES: u8 = 200;
const ENDPOINTS: [u8; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
/// The most servers that one look reads by themselves: all of them within half an hour.
const ONE_BY_ONE: u64 = 1;

/// The base and the services alone.
fn many(family: Family) -> Delta {
    let mut delta = everything(family);
    delta.units.retain(|id, _| *id == ferry_plane::UnitId::Base);
    delta.units.extend((1..=SERVICES).map(|last| web(family, &format!("many-{last}"), last, &ENDPOINTS)));
    delta
}

/// An engine that has started, and a tap that has seen only what comes.
fn started(family: Family) -> (IpvsEngine, Tap) {
    let engine = started_with(family, many(family));
    (engine, Tap::open().expect("these tests need nlmon"))
}

fn of(seen: &BTreeMap<RequestKind, MessageTally>, request: RequestKind) -> MessageTally {
    seen.get(&request).copied().unwrap_or_default()
}

fn assert_nothing_written(seen: &BTreeMap<RequestKind, MessageTally>, when: &str) {
    for request in [RequestKind::IpvsChange, RequestKind::NftChange, RequestKind::RouteChange] {
        assert_eq!(of(seen, request), MessageTally::default(), "{when}: {request:?} of {seen:?}");
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_start_sends_a_message_for_each_object_and_few_datagrams() {
    inside(|family| {
        let mut tap = Tap::open().expect("these tests need nlmon");
        let mut engine = open(family);
        engine.offer(many(family));
        let outcome = good(engine.sync(Instant::now()));
        let seen = tap.read().unwrap();
        let (servers, endpoints) = (u64::from(SERVICES), u64::from(SERVICES) * 10);
        // Two are the probe of the scheduler.
        let ipvs = of(&seen, RequestKind::IpvsChange);
        assert_eq!(ipvs.messages, servers + endpoints + 2, "{seen:?}");
        assert!(ipvs.sends <= 2 + servers.div_ceil(256) + endpoints.div_ceil(256), "{seen:?}");
        // The device and its state are two more.
        let route = of(&seen, RequestKind::RouteChange);
        assert!(route.messages <= servers + 2 && route.sends <= 4, "{seen:?}");
        let nft = of(&seen, RequestKind::NftChange);
        assert!(nft.messages <= u64::try_from(outcome.ops).unwrap() && nft.sends <= 4, "{outcome:?} {seen:?}");
        // For the scheduler of a restart one of each family, what is there, and before the batch what is in its way.
        assert!(of(&seen, RequestKind::ServerDump).messages <= 4, "{seen:?}");
        assert_eq!(of(&seen, RequestKind::DestinationDump), MessageTally::default(), "{seen:?}");
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_changed_endpoint_is_two_datagrams_to_ipvs() {
    inside(|family| {
        let (mut engine, mut tap) = started(family);
        engine.offer(change([web(family, "many-7", 7, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 11])]));
        good(engine.sync(Instant::now()));
        let seen = tap.read().unwrap();
        // The new endpoint and the old one's weight, and, once that gets no connections any more, its deletion.
        assert_eq!(of(&seen, RequestKind::IpvsChange), MessageTally { sends: 2, messages: 3 }, "{seen:?}");
        assert_eq!(
            of(&seen, RequestKind::NftChange).messages + of(&seen, RequestKind::RouteChange).messages,
            0,
            "{seen:?}"
        );
        // This server alone is read again, before the commit and between its two sends.
        assert_eq!(of(&seen, RequestKind::ServerDump), MessageTally::default(), "{seen:?}");
        assert!(
            of(&seen, RequestKind::ServerRead).messages + of(&seen, RequestKind::DestinationDump).messages <= 3,
            "{seen:?}"
        );
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_restart_with_unchanged_objects_writes_nothing() {
    inside(|family| {
        let (engine, mut tap) = started(family);
        drop(engine);
        let before = generation();
        tap.read().unwrap();
        let mut engine = open(family);
        engine.offer(many(family));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0);
        let seen = tap.read().unwrap();
        assert_nothing_written(&seen, "a restart");
        assert_eq!(generation(), before);
        // After a restart everything is compared.
        assert_eq!(of(&seen, RequestKind::DestinationDump).messages, u64::from(SERVICES), "{seen:?}");
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn looks_dump_the_servers_once_and_few_of_the_destinations() {
    inside(|family| {
        let (mut engine, mut tap) = started(family);
        let mut now = wake(&good(engine.tend(Instant::now())), Instant::now());
        tap.read().unwrap();
        let (mut lists, mut read) = (0, 0);
        // Each of the two has a pace of its own: where a dump takes long, many looks are at the other.
        for passes in 0.. {
            if lists >= 5 && read >= 5 {
                break;
            }
            assert!(passes < 1000, "{lists} lists and {read} servers were read");
            let outcome = good(engine.tend(now));
            assert!(!outcome.worked, "{outcome:?}");
            now = wake(&outcome, now);
            let seen = tap.read().unwrap();
            assert_nothing_written(&seen, "a look");
            let listed = of(&seen, RequestKind::ServerDump);
            assert!(listed.messages <= 1 && listed.sends <= 1, "{seen:?}");
            let destinations = of(&seen, RequestKind::DestinationDump).messages;
            assert!(destinations <= ONE_BY_ONE, "{seen:?}");
            assert!(listed.messages + destinations > 0, "a pass without a look: {seen:?}");
            lists += listed.messages;
            read += destinations;
        }
    });
}

/// The look that finds the damage is the only dump; then the two servers alone are read, beside the look's part of all.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_repair_writes_the_damage_and_reads_no_other_server() {
    inside(|family| {
        let (mut engine, mut tap) = started(family);
        let mut now = wake(&good(engine.tend(Instant::now())), Instant::now());
        for last in [7, 8] {
            ipvsadm(&format!("-D {}", at_vip(family, last)));
        }
        tap.read().unwrap();
        let (outcome, seen) = loop {
            let outcome = good(engine.tend(now));
            let seen = tap.read().unwrap();
            if outcome.repairs > 0 {
                break (outcome, seen);
            }
            assert_nothing_written(&seen, "a look");
            now = wake(&outcome, now);
        };
        let endpoints = u64::try_from(ENDPOINTS.len()).unwrap();
        assert_eq!(of(&seen, RequestKind::IpvsChange).messages, 2 * (1 + endpoints), "{outcome:?} {seen:?}");
        assert_eq!(of(&seen, RequestKind::ServerDump).messages, 1, "{seen:?}");
        let read = of(&seen, RequestKind::ServerRead).messages + of(&seen, RequestKind::DestinationDump).messages;
        assert!(read <= 2 * 2 + ONE_BY_ONE, "{seen:?}");
        for request in [RequestKind::NftChange, RequestKind::RouteChange] {
            assert_eq!(of(&seen, request), MessageTally::default(), "{request:?} of {seen:?}");
        }
    });
}
