//! Foreign changes are found and repaired.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::address;
use ferry_plane::SyncEngine;
use ferry_plane::mailbox::{Arrival, Mailbox};
use ferry_plane_ipvs::names::DEVICE;
use ferry_plane_ipvs::{IpvsObject, Shared, engine};
use ferry_ruleset::table::TableObject;

use crate::common::{
    assert_idle, assert_in_force, at, at_vip, endpoint, everything, inside, ip, ipvsadm, nft, only, options, run,
    started, started_with, stranger, table, until_repaired, vip, wake, wanted,
};

/// Damages one after another, each in a minute of its own.
fn damage<D: AsRef<str>>(family: Family, all: &[D], act: impl Fn(&str)) {
    let mut engine = started(family);
    let now = assert_idle(&mut engine, Instant::now(), 2, "our own commits");
    for (round, damage) in (1..).zip(all) {
        let damage = damage.as_ref();
        act(damage);
        let noticed = now + Duration::from_secs(90 * round);
        let outcome = good(engine.tend(noticed));
        assert!(outcome.repairs > 0, "{damage}, at once: {outcome:?}");
        assert_in_force(&engine, family, &[], damage);
        assert!(!good(engine.tend(noticed + Duration::from_secs(1))).worked, "{damage}");
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn damage_of_the_table_is_repaired_at_once() {
    inside(|family| {
        let table = table(family);
        let vip = vip(family, 1);
        let text = started(family);
        let sources = wanted(&text).iter().find_map(|object| match object {
            IpvsObject::Table(TableObject::Ranges(id, _)) => Some(id.to_string()),
            _ => None,
        });
        drop(text);
        let sources = sources.unwrap();
        let all = [
            format!("delete element {table} service-ips {{ {vip} . tcp . 80 }}"),
            format!(
                "delete element {table} service-ips {{ {vip} . tcp . 80 }}; \
                 add element {table} service-ips {{ {vip} . tcp . 80 : accept }}"
            ),
            format!("delete element {table} bound-ips {{ {vip} }}"),
            format!("add element {table} bound-ips {{ {} }}", stranger(family)),
            format!("delete element {table} same-octet {{ 7 . 7 }}"),
            format!("flush chain {table} services"),
            format!("insert rule {table} masquerade-cluster counter"),
            format!("flush set {table} sources-{sources}"),
            format!("flush chain {table} restricted-{sources}"),
            format!("flush map {table} service-nodeports"),
            format!("add chain {table} stranger"),
            format!("delete chain {table} nat-output"),
            format!("delete table {table}"),
            "flush ruleset".to_owned(),
        ];
        damage(family, &all, nft);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn damage_of_the_device_is_repaired_at_once() {
    inside(|family| {
        let bits = if family == Family::V4 { 32 } else { 128 };
        let mut all = vec![
            format!("address delete {}/{bits} dev {DEVICE}", vip(family, 1)),
            format!("address add {}/{bits} dev {DEVICE}", stranger(family)),
            format!("link delete {DEVICE}"),
        ];
        // Connections of the node would take it as their source: by its scope, or its lifetime.
        let (vip, lifetimes) = (vip(family, 1), "preferred_lft forever valid_lft forever");
        all.push(match family {
            Family::V4 => {
                format!("address delete {vip}/32 dev {DEVICE}; address add {vip}/32 dev {DEVICE} scope global")
            }
            Family::V6 => format!("address change {vip}/128 dev {DEVICE} {lifetimes}"),
        });
        damage(family, &all, |commands| commands.split("; ").for_each(ip));
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn damage_of_servers_is_repaired_within_one_look() {
    inside(|family| {
        let node_port = at(Protocol::Tcp, address(family, 0, 1), 30001);
        let netmask = if family == Family::V4 { "255.255.255.0" } else { "64" };
        let all = [
            format!("-D {}", at_vip(family, 1)),
            format!("-D {node_port}"),
            format!("-E {} -s wlc", at_vip(family, 1)),
            format!("-E {} -s rr -p 60", at_vip(family, 1)),
            // It was persistent.
            format!("-E {} -s rr", at_vip(family, 3)),
            format!("-E {} -s rr -p 10800 -M {netmask}", at_vip(family, 3)),
            "-C".to_owned(),
        ];
        damage(family, &all, ipvsadm);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn damage_of_endpoints_is_repaired_within_a_round_of_looks() {
    inside(|family| {
        let mut engine = started_with(family, only(family, &["plain", "sticky", "sticky-udp"]));
        let mut now = Instant::now();
        let (tcp, udp) = (at_vip(family, 1), at(Protocol::Udp, vip(family, 4), 80));
        let stranger = SocketAddr::new(stranger(family), 8080);
        for damage in [
            format!("-d {tcp} -r {}", endpoint(family, 1)),
            format!("-e {tcp} -r {} -m -w 7", endpoint(family, 2)),
            format!("-e {tcp} -r {} -m -w 0", endpoint(family, 2)),
            format!("-e {tcp} -r {} -m -w 1 -x 9 -y 4", endpoint(family, 2)),
            format!("-a {tcp} -r {stranger} -m -w 1"),
            format!("-d {udp} -r {}", endpoint(family, 3)),
        ] {
            ipvsadm(&damage);
            let (outcome, then) = until_repaired(&mut engine, now, &damage);
            assert_eq!(outcome.repairs, 1, "{outcome:?}");
            assert_in_force(&engine, family, &[], &damage);
            now = wake(&good(engine.tend(then)), then) + Duration::from_secs(30);
        }
        assert_idle(&mut engine, now, 20, "all is repaired");
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_full_comparison_repairs_everything() {
    inside(|family| {
        let mut engine = started(family);
        ipvsadm(&format!("-e {} -r {} -m -w 7", at_vip(family, 2), endpoint(family, 2)));
        ipvsadm(&format!("-D {}", at_vip(family, 1)));
        if family == Family::V6 {
            ip(&format!("address change {}/128 dev {DEVICE} preferred_lft forever valid_lft forever", vip(family, 1)));
        }
        let outcome = good(engine.repair(Instant::now()));
        let repairs = if family == Family::V6 { 3 } else { 2 };
        assert_eq!(outcome.repairs, repairs, "{outcome:?}");
        assert_in_force(&engine, family, &[], "repaired");
    });
}

/// Changes of the table, the device and the servers, and a new service at the same time.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_pending_change_and_damage_of_all_layers_converge() {
    inside(|family| {
        let mut engine = started(family);
        ipvsadm("-C");
        ip(&format!("link delete {DEVICE}"));
        nft(&format!("delete table {}", table(family)));
        engine.offer(crate::common::change([crate::common::web(family, "new", 60, &[1, 2])]));
        let now = Instant::now();
        for seconds in [0, 2, 4] {
            let outcome = engine.tend(now + Duration::from_secs(seconds));
            assert!(outcome.quarantined.is_empty(), "{outcome:?}");
        }
        assert_in_force(&engine, family, &[], "converged");
    });
}

/// As the executable has it: an engine for each family, and threads that wait for what others do.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_foreign_change_of_the_device_wakes_the_engine_of_its_family() {
    inside(|family| {
        let shared = Shared::default();
        let mut engines = Family::ALL.map(|of| engine(of, &shared, options()).unwrap());
        let receivers = engines.each_mut().map(|engine| {
            let (sender, receiver) = Mailbox::new();
            // The receiver would be closed without it.
            std::mem::forget(sender);
            engine.wake_by(&receiver.waker());
            receiver
        });
        for (engine, of) in engines.iter_mut().zip(Family::ALL) {
            engine.offer(everything(of));
            good(engine.sync(Instant::now()));
        }
        std::thread::spawn(shared.device.listener().unwrap());
        let long = Some(Duration::from_millis(500));
        let own = Family::ALL.iter().position(|of| *of == family).unwrap();
        // The kernel doesn't name the socket that has added an address of IPv6: the engine is woken, and finds nothing.
        for (engine, receiver) in engines.iter_mut().zip(&receivers) {
            while receiver.wait(long) == Arrival::Woken {
                assert!(!good(engine.tend(Instant::now())).worked, "own commits");
            }
        }
        let bits = if family == Family::V4 { 32 } else { 128 };
        ip(&format!("address delete {}/{bits} dev {DEVICE}", vip(family, 1)));
        assert_eq!(receivers[own].wait(Some(Duration::from_secs(20))), Arrival::Woken);
        assert_eq!(receivers[1 - own].wait(long), Arrival::Timeout, "the other family");
        assert_eq!(good(engines[own].tend(Instant::now())).repairs, 1);
        assert!(run("ip", &format!("address show dev {DEVICE}")).contains(&vip(family, 1).to_string()));
    });
}

/// A second proxy of the same node makes the same changes.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn two_proxies_agree() {
    inside(|family| {
        let (mut first, mut second) = (started(family), started(family));
        let mut now = Instant::now();
        for endpoints in [&[1, 4][..], &[4], &[2, 3, 4], &[]] {
            let delta = crate::common::change([crate::common::web(family, "moving", 60, endpoints)]);
            for engine in [&mut first, &mut second] {
                engine.offer(delta.clone());
                good(engine.sync(now));
            }
            assert_in_force(&second, family, &[], "both");
            for _ in 0..3 {
                now += Duration::from_secs(2);
                for engine in [&mut first, &mut second] {
                    assert_eq!(good(engine.tend(now)).repairs, 0);
                }
            }
        }
    });
}
