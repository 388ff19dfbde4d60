//! Virtual servers of other programs are never touched.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::address;
use ferry_plane::{CommitError, SyncEngine};

use crate::common::{
    add_node_addresses, assert_idle, assert_in_force, at, at_vip, bound, change, endpoint, everything, generation,
    inside, ipvsadm, lines_of, open, servers, started, stranger, table_of_mode_nftables, vip, wanted, web,
};

/// Virtual servers that have nothing to do with any service, though one has the address of one, and one the number of a node port.
fn elsewhere(family: Family) -> Vec<String> {
    let real = |port| SocketAddr::new(stranger(family), port);
    let other_port = at(Protocol::Tcp, vip(family, 1), 8443);
    let node_port = at(Protocol::Tcp, stranger(family), 30001);
    let node = at(Protocol::Tcp, address(family, 0, 1), 22);
    let mut lines = vec![
        format!("-A {} -s wlc -p 60", at(Protocol::Udp, stranger(family), 53)),
        format!("-A {other_port} -s sed"),
        format!("-a {other_port} -r {} -m -w 7", real(80)),
        format!("-A {node_port} -s rr"),
        format!("-a {node_port} -r {} -m -w 1", real(81)),
        format!("-A {node} -s rr"),
    ];
    if family == Family::V4 {
        lines.extend([
            "-A -f 7 -s rr".to_owned(),
            format!("-a -f 7 -r {} -g -w 1", SocketAddr::new(stranger(family), 0)),
        ]);
    }
    lines
}

fn create(lines: &[String]) {
    lines.iter().for_each(|line| ipvsadm(line));
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_of_other_programs_stay() {
    inside(|family| {
        let before = elsewhere(family);
        // The kernel reads them as it has them: ipvsadm lists a mark's endpoints without a port.
        create(&before);
        let listed: Vec<String> = servers().into_iter().collect();
        let others: Vec<&str> = listed.iter().map(String::as_str).collect();
        let mut engine = started(family);
        assert_in_force(&engine, family, &others, "at a start");
        let now = assert_idle(&mut engine, Instant::now(), 3, "foreign servers");
        assert_eq!(good(engine.repair(now)).repairs, 0);
        drop(engine);
        let mut engine = open(family);
        engine.offer(everything(family));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0, "a restart");
        assert_in_force(&engine, family, &others, "after a restart");
        Box::new(engine).retire(&mut Vec::new()).unwrap();
        assert_eq!(servers().into_iter().collect::<Vec<_>>(), listed);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_contested_frontend_makes_its_service_wait() {
    inside(|family| {
        for endpoints in [true, false] {
            let mut engine = started(family);
            let mut foreign = vec![format!("-A {} -s rr", at_vip(family, 60))];
            if endpoints {
                foreign.push(format!("-a {} -r {} -m -w 1", at_vip(family, 60), SocketAddr::new(stranger(family), 80)));
            }
            create(&foreign);
            let others: Vec<&str> = foreign.iter().map(String::as_str).collect();
            engine.offer(change([web(family, "contested", 60, &[1, 2]), web(family, "fine", 61, &[1])]));
            let now = Instant::now();
            let outcome = engine.sync(now);
            let [(unit, error)] = &outcome.quarantined[..] else { panic!("{outcome:?}") };
            assert!(outcome.error.is_none() && unit.to_string() == "service demo/contested", "{outcome:?}");
            assert!(matches!(**error, CommitError::Refused(_)));
            let at = SocketAddr::new(vip(family, 60), 80);
            assert!(error.to_string().contains(&format!("virtual server TCP {at} is another program's")), "{error}");
            assert_in_force(&engine, family, &others, "the others");
            // It is tried again, and still waits; a restart waits, too. The table lists it at no time.
            let before = generation();
            let outcome = engine.tend(now + Duration::from_secs(2));
            assert_eq!((outcome.quarantined.len(), generation()), (1, before), "{outcome:?}");
            assert_in_force(&engine, family, &others, "tried again");
            drop(engine);
            let mut engine = open(family);
            let mut all = everything(family);
            all.units.extend([web(family, "contested", 60, &[1, 2]), web(family, "fine", 61, &[1])]);
            engine.offer(all);
            let now = Instant::now();
            let outcome = engine.sync(now);
            assert_eq!(outcome.quarantined.len(), 1, "{outcome:?}");
            assert_in_force(&engine, family, &others, "restarted");
            // The other program gives the frontend up.
            ipvsadm(&format!("-D {}", at_vip(family, 60)));
            good(engine.tend(now + Duration::from_secs(2)));
            assert_in_force(&engine, family, &[], "no contest any more");
            assert!(bound(family).contains(&vip(family, 60)));
            // It is ours now: a full comparison knows it.
            let outcome = good(engine.repair(now + Duration::from_secs(3)));
            assert_eq!((outcome.repairs, outcome.ops), (0, 0), "{outcome:?}");
            Box::new(engine).retire(&mut Vec::new()).unwrap();
            assert!(servers().is_empty());
        }
    });
}

/// A director's servers at the numbers of frontends, some of which serve in mode nftables. This mode never ran here.
fn director(family: Family) -> Vec<String> {
    let real = SocketAddr::new(stranger(family), 6443);
    let local = at(Protocol::Tcp, address(family, 0, 1), 30_001);
    let elsewhere = at(Protocol::Tcp, stranger(family), 30_001);
    let balancer = at(Protocol::Tcp, vip(family, 30), 80);
    let deleted = at(Protocol::Tcp, address(family, 0, 2), 31_999);
    let at_all = [local, elsewhere, balancer, deleted];
    at_all.into_iter().flat_map(|at| [format!("-A {at} -s wrr"), format!("-a {at} -r {real} -m -w 1")]).collect()
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_at_the_numbers_of_frontends_stay_when_the_mode_changes_to_this_one() {
    inside(|family| {
        add_node_addresses(family);
        let foreign = director(family);
        create(&foreign);
        table_of_mode_nftables(family, &[30_001, 31_999], &[(Protocol::Tcp, vip(family, 30))]);
        let mut engine = open(family);
        engine.offer(everything(family));
        let outcome = engine.sync(Instant::now());
        let waiting: Vec<String> = outcome.quarantined.iter().map(|(unit, _)| unit.to_string()).collect();
        assert_eq!(waiting, ["service demo/plain"], "{outcome:?}");
        let left: Vec<String> = servers().into_iter().filter(|line| foreign.contains(line)).collect();
        assert_eq!(left.len(), foreign.len(), "{:?}", servers());
        // A restart doesn't know better, and neither does clean-up.
        drop(engine);
        let mut engine = open(family);
        engine.offer(everything(family));
        engine.sync(Instant::now());
        drop(engine);
        ferry_plane_ipvs::retire::retire(family, &[], false, &mut Vec::new()).unwrap();
        assert_eq!(servers(), foreign.into_iter().collect());
    });
}

/// A run was killed between the virtual servers and the table of mode nftables, which is replaced last.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn half_made_servers_are_completed() {
    inside(|family| {
        let objects = {
            let namespace = ferry_kernel::netns::Namespace::new().unwrap();
            namespace.raise_loopback().unwrap();
            namespace.run(|| wanted(&started(family))).unwrap()
        };
        table_of_mode_nftables(family, &[], &[]);
        // Every other one has no endpoints yet, or lacks some.
        let lines = lines_of(&objects);
        let lacks = |line: &&String| line.contains(&format!("-r {} ", endpoint(family, 1)));
        let filled: Vec<String> = lines.iter().filter(|line| line.starts_with("-A")).cloned().collect();
        create(&filled);
        let some: Vec<String> = lines.iter().filter(lacks).step_by(2).cloned().collect();
        create(&some);
        let mut engine = open(family);
        engine.offer(everything(family));
        good(engine.sync(Instant::now()));
        assert_in_force(&engine, family, &[], "completed");
    });
}

/// The other service of a shared address is served, so the device has the address.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_contested_frontend_at_a_shared_address_is_left_alone() {
    inside(|family| {
        let mut engine = started(family);
        let at = at(Protocol::Udp, vip(family, 1), 80);
        let foreign =
            [format!("-A {at} -s rr"), format!("-a {at} -r {} -m -w 1", SocketAddr::new(stranger(family), 80))];
        create(&foreign);
        let others = foreign.each_ref().map(String::as_str);
        let port = crate::common::port(family, Protocol::Udp, 1, &[1, 2]);
        engine.offer(change([ferry_conformance::states::service("contested", vec![port])]));
        let now = Instant::now();
        for pause in [0, 2, 6, 12] {
            let outcome = engine.tend(now + Duration::from_secs(pause));
            assert_eq!(outcome.quarantined.len(), 1, "{outcome:?}");
            assert_in_force(&engine, family, &others, "it waits");
        }
    });
}

/// A service that is in force gets a port that is another program's: the rest of it stays as it is.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_service_keeps_its_last_good_state() {
    inside(|family| {
        let mut engine = started(family);
        engine.offer(change([web(family, "growing", 60, &[1])]));
        good(engine.sync(Instant::now()));
        let foreign = [
            format!("-A {} -s rr", at(Protocol::Udp, vip(family, 60), 80)),
            format!(
                "-a {} -r {} -m -w 1",
                at(Protocol::Udp, vip(family, 60), 80),
                SocketAddr::new(stranger(family), 80)
            ),
        ];
        create(&foreign);
        let others = foreign.each_ref().map(String::as_str);
        let ports = [Protocol::Tcp, Protocol::Udp].map(|of| crate::common::port(family, of, 60, &[1, 2]));
        engine.offer(change([ferry_conformance::states::service("growing", ports.into())]));
        let outcome = engine.sync(Instant::now());
        assert_eq!(outcome.quarantined.len(), 1, "{outcome:?}");
        assert_in_force(&engine, family, &others, "one endpoint");
    });
}
