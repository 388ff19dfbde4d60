//! Every object reads back as it was written, and a restart writes nothing.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_conformance::{Decided, cases, good};
use ferry_kernel::ipvs::Timeouts;
use ferry_kernel::netns::Namespace;
use ferry_kernel::sysctl;
use ferry_plane::{CommitError, Delta, Extent, Kernel, Object, SyncEngine, Unit};
use ferry_plane_ipvs::names::DEVICE;
use ferry_plane_ipvs::{ForwardingReports, IpvsObject, IpvsOptions, ServerOptions};

use crate::common::{
    addresses, assert_idle, assert_in_force, assert_same, everything, generation, inside, ip, only, open, open_with,
    options, read_back, run, servers, started, wanted, web,
};
use crate::mode::ThisMode;

const FORWARDING: &str = "net.ipv6.conf.all.forwarding";

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn what_is_written_reads_back() {
    inside(|family| {
        let engine = started(family);
        assert_in_force(&engine, family, &[], "");
        let mark = match family {
            Family::V4 => "scope host",
            Family::V6 => "deprecated",
        };
        let listed = addresses(family);
        assert!(listed.len() > 30 && listed.iter().all(|(_, line)| line.contains(mark)), "{listed:?}");
        assert!(run("ip", &format!("link show dev {DEVICE}")).contains("state DOWN"));
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn keys_read_back_as_everything_does() {
    inside(|family| {
        let mut engine = started(family);
        let all = read_back(family);
        for step in [1, 3, 50] {
            let some: Vec<IpvsObject> = all.iter().step_by(step).cloned().collect();
            let keys = some.iter().map(Object::key).collect();
            let found = engine.kernel_mut().read_back(&Extent::Keys(keys)).unwrap();
            assert_eq!(found.len(), some.len());
            assert_same(&found, &some, &format!("one of {step}"));
        }
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_restart_commits_nothing() {
    inside(|family| {
        drop(started(family));
        let (before, lines) = (generation(), servers());
        let mut engine = open(family);
        engine.offer(everything(family));
        let outcome = good(engine.sync(Instant::now()));
        assert_eq!((outcome.ops, generation()), (0, before));
        assert_eq!(servers(), lines);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn units_go_without_a_trace() {
    inside(|family| {
        let mut engine = started(family);
        let mut gone = everything(family);
        let services = gone.units.values_mut().filter(|unit| matches!(unit.as_deref(), Some(Unit::Service(_))));
        services.for_each(|unit| *unit = None);
        engine.offer(gone);
        good(engine.sync(Instant::now()));
        assert_in_force(&engine, family, &[], "the base alone");
        assert!(servers().is_empty() && addresses(family).is_empty());
        Box::new(engine).retire(&mut Vec::new()).unwrap();
        assert_eq!(read_back(family), []);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn each_case_follows_the_one_before() {
    for family in Family::ALL {
        let namespace = Namespace::new().unwrap();
        namespace.raise_loopback().unwrap();
        namespace.run(|| each_case_in_the_kernel(family)).unwrap();
    }
}

/// One engine applies case after case, so that every transition is tested too.
fn each_case_in_the_kernel(family: Family) {
    let mut engine = open(family);
    let mut before = Delta::default();
    for case in cases::all::<ThisMode>() {
        let next = Decided::of::<ThisMode>(&case, family).delta(&before);
        engine.offer(next.clone());
        before = next;
        let outcome = engine.sync(Instant::now());
        assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{}: {outcome:?}", case.name);
        let mut found = engine.kernel_mut().read_back(&Extent::All).unwrap();
        found.sort();
        assert_same(&found, &wanted(&engine), &case.name);
    }
    assert_in_force(&engine, family, &[], "the last case");
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn kernel_parameters_and_timeouts_are_set() {
    inside(|family| {
        let timeouts = Timeouts { tcp_seconds: 801, tcp_fin_seconds: 0, udp_seconds: 33 };
        let servers = ServerOptions { timeouts: Some(timeouts), ..options().servers };
        sysctl::write(FORWARDING, "0").unwrap();
        let mut engine = open_with(family, IpvsOptions { servers, strict_arp: true, ..options() });
        engine.offer(everything(family));
        good(engine.sync(Instant::now()));
        let mut parameters = vec!["vs.conntrack", "vs.expire_nodest_conn", "vs.expire_quiescent_template"];
        match family {
            Family::V4 => parameters.extend(["ip_forward", "conf.all.arp_ignore"]),
            // It would delete the default routes of router advertisements.
            Family::V6 => assert_eq!(sysctl::read(FORWARDING).unwrap(), "0", "the operator's"),
        }
        for parameter in parameters {
            assert_eq!(sysctl::read(&format!("net.ipv4.{parameter}")).unwrap(), "1", "{parameter}");
        }
        let announce = if family == Family::V4 { "2" } else { "0" };
        assert_eq!(sysctl::read("net.ipv4.conf.all.arp_announce").unwrap(), announce);
        let listed = run("ipvsadm", "-L --timeout");
        assert!(listed.contains("801 120 33"), "{listed}");
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_timeout_that_is_too_long_is_named() {
    inside(|family| {
        let timeouts = Timeouts { tcp_seconds: i32::MAX.cast_unsigned(), tcp_fin_seconds: 0, udp_seconds: 33 };
        let servers = ServerOptions { timeouts: Some(timeouts), ..options().servers };
        let mut engine = open_with(family, IpvsOptions { servers, ..options() });
        engine.offer(everything(family));
        let outcome = engine.sync(Instant::now());
        let Some(CommitError::Unusable(error)) = outcome.error.as_deref() else { panic!("{outcome:?}") };
        let text = error.to_string();
        assert!(text.contains("ipvs.tcpTimeout 2147483647s") && text.contains("at most 2147483s"), "{text}");
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_node_that_does_not_forward_ipv6_is_reported_until_it_does() {
    inside(|family| {
        sysctl::write(FORWARDING, "0").unwrap();
        let reports = Arc::new(Mutex::new(Vec::new()));
        let take = Arc::clone(&reports);
        let report = ForwardingReports(Arc::new(move |note: Option<&str>| take.lock().unwrap().push(note.is_some())));
        let servers = ServerOptions { forwarding_reports: Some(report), ..options().servers };
        let mut engine = open_with(family, IpvsOptions { servers, ..options() });
        let mut delta = only(family, &[]);
        delta.units.extend([web(family, "idle", 60, &[])]);
        engine.offer(delta);
        good(engine.sync(Instant::now()));
        let now = assert_idle(&mut engine, Instant::now(), 3, "without endpoints");
        assert!(reports.lock().unwrap().is_empty());
        engine.offer(everything(family));
        good(engine.sync(now));
        let now = assert_idle(&mut engine, now, 3, "not forwarding");
        let is_ipv6 = family == Family::V6;
        assert_eq!(*reports.lock().unwrap(), vec![true; usize::from(is_ipv6)]);
        sysctl::write(FORWARDING, "1").unwrap();
        assert_idle(&mut engine, now, 3, "forwarding");
        assert_eq!(*reports.lock().unwrap(), if is_ipv6 { vec![true, false] } else { vec![] });
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn the_device_has_ipv6_also_where_new_devices_have_none() {
    inside(|family| {
        sysctl::write("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
        let mut engine = started(family);
        assert_in_force(&engine, family, &[], "a new device");
        let now = assert_idle(&mut engine, Instant::now(), 2, "our own commits");
        if family == Family::V6 {
            // The kernel deletes its addresses.
            sysctl::write(&format!("net.ipv6.conf.{DEVICE}.disable_ipv6"), "1").unwrap();
            assert!(addresses(family).is_empty());
            assert!(good(engine.tend(now + Duration::from_secs(1))).repairs > 0);
            assert_in_force(&engine, family, &[], "disabled by another program");
        }
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_device_of_another_kind_is_named() {
    inside(|family| {
        ip(&format!("link add {DEVICE} type bridge"));
        let mut engine = open(family);
        engine.offer(everything(family));
        let outcome = engine.sync(Instant::now());
        let Some(CommitError::Unusable(error)) = outcome.error.as_deref() else { panic!("{outcome:?}") };
        assert!(error.to_string().contains(DEVICE) && error.to_string().contains("bridge"), "{error}");
        ip(&format!("link delete {DEVICE}"));
        good(engine.sync(Instant::now()));
        assert_in_force(&engine, family, &[], "after its deletion");
    });
}
