//! A start finds the virtual servers and addresses of upstream's proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{address, frontend, service};
use ferry_model::{Balance, FrontendAddr, FrontendKind, Scheduler};
use ferry_plane::{SyncEngine, Unit, UnitId};
use ferry_plane_ipvs::element::ElementKey;
use ferry_plane_ipvs::names::DEVICE;
use ferry_plane_ipvs::{IpvsObject, IpvsOptions, ServerOptions};
use ferry_ruleset::table::TableObject;

use crate::common::{
    add_node_addresses, addresses, assert_in_force, at, at_vip, bound, change, endpoint, everything, feed, inside, ip,
    ipvsadm, lines_of, nft, only, open, open_with, options, port, servers, started, stranger, vip, wanted,
};

/// The objects that the engine wants.
fn desired(family: Family) -> Vec<IpvsObject> {
    let namespace = ferry_kernel::netns::Namespace::new().unwrap();
    namespace.raise_loopback().unwrap();
    namespace.run(|| wanted(&started(family))).unwrap()
}

fn server(at: &str, to: SocketAddr) -> [String; 2] {
    [format!("-A {at} -s rr"), format!("-a {at} -r {to} -m -w 1")]
}

/// Makes all virtual servers and addresses as upstream's proxy does, and those of deleted services.
fn upstream(family: Family, wanted: &[IpvsObject], more: &[String]) {
    let lines: Vec<String> = lines_of(wanted).into_iter().chain(more.iter().cloned()).collect();
    // A server comes before its endpoints.
    feed("ipvsadm", &["-R"], &(lines.join("\n") + "\n"));
    add_node_addresses(family);
    ip(&format!("link add {DEVICE} type dummy"));
    let bits = if family == Family::V4 { 32 } else { 128 };
    let mut batch = format!("address add {}/{bits} dev {DEVICE}\n", vip(family, 200));
    for object in wanted {
        if let IpvsObject::Address(address, _) = object {
            batch += &format!("address add {address}/{bits} dev {DEVICE}\n");
        }
    }
    feed("ip", &["-batch", "-"], &batch);
}

/// Upstream's ipsets of node ports, with one of TCP of a deleted service.
fn node_port_sets(family: Family, wanted: &[IpvsObject], of_deleted: u16) -> String {
    let (prefix, sctp, kind) = match family {
        Family::V4 => ("KUBE-", "KUBE-NODE-PORT-SCTP-HASH", "inet"),
        Family::V6 => ("KUBE-6-", "KUBE-6-NODE-PORT-SCTP-HAS", "inet6"),
    };
    let mut text = format!("create {sctp} hash:ip,port family {kind}\n");
    for protocol in ["TCP", "UDP"] {
        text += &format!("create {prefix}NODE-PORT-{protocol} bitmap:port range 0-65535\n");
    }
    text += &format!("add {prefix}NODE-PORT-TCP {of_deleted}\n");
    for object in wanted {
        if let IpvsObject::Table(TableObject::Element(ElementKey::NodePort { protocol, port }, _)) = object {
            text += &match protocol {
                Protocol::Tcp => format!("add {prefix}NODE-PORT-TCP {port}\n"),
                Protocol::Udp => format!("add {prefix}NODE-PORT-UDP {port}\n"),
                Protocol::Sctp => format!("add {sctp} {},sctp:{port}\n", address(family, 0, 1)),
            };
        }
    }
    text
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_and_addresses_of_upstream_are_adopted() {
    let all = Family::ALL.map(desired);
    inside(|family| {
        let desired = &all[usize::from(family == Family::V6)];
        let to = endpoint(family, 1);
        let of_deleted = at(Protocol::Tcp, vip(family, 200), 80);
        let node_port = at(Protocol::Tcp, address(family, 0, 1), 31999);
        let others: Vec<String> = [
            server(&at(Protocol::Tcp, stranger(family), 443), to),
            server(&at(Protocol::Tcp, address(family, 0, 1), 31998), to),
            server(&at(Protocol::Udp, address(family, 0, 1), 31999), to),
        ]
        .concat();
        let more = [server(&of_deleted, to).to_vec(), server(&node_port, to).to_vec(), others.clone()].concat();
        upstream(family, desired, &more);
        feed("ipset", &["restore"], &node_port_sets(family, desired, 31999));
        let mut engine = open(family);
        engine.offer(everything(family));
        let plan = engine.plan().unwrap();
        let touches = |list: fn(&ferry_plane::Batch<String>) -> &[String]| -> Vec<&String> {
            let all = plan.units.values().flat_map(list);
            all.filter(|text| text.contains("server") || text.contains("address ")).collect()
        };
        assert_eq!(touches(|batch| &batch.create), [""; 0]);
        let lifetimes = bound(family).len() - 1;
        assert_eq!(touches(|batch| &batch.replace).len(), lifetimes, "{plan:?}");
        assert_eq!(plan.unwanted.len(), 3, "{:?}", plan.unwanted);
        good(engine.sync(Instant::now()));
        assert_in_force(&engine, family, &others.iter().map(String::as_str).collect::<Vec<_>>(), "adopted");
        // None is a source of connections any more.
        let kept = if family == Family::V4 { "scope host" } else { "deprecated" };
        let listed = addresses(family);
        assert!(listed.iter().all(|(_, line)| line.contains(kept)), "{listed:?}");
        drop(engine);
        let mut engine = open(family);
        engine.offer(everything(family));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0, "a restart");
    });
}

/// Virtual servers with the desired endpoints are adopted one by one.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_of_node_ports_are_adopted_without_the_sets() {
    let all = Family::ALL.map(desired);
    inside(|family| {
        upstream(family, &all[usize::from(family == Family::V6)], &[]);
        let mut engine = open(family);
        engine.offer(everything(family));
        good(engine.sync(Instant::now()));
        assert_in_force(&engine, family, &[], "adopted");
        assert_eq!(good(engine.repair(Instant::now())).ops, 0);
    });
}

/// A service with a cluster IP and a node port.
fn with_node_port(family: Family, endpoints: &[u8]) -> (UnitId, Option<Arc<Unit>>) {
    let mut port = port(family, Protocol::Tcp, 60, endpoints);
    let treatment = port.frontends.first().expect("its cluster IP").treatment;
    let node_port = frontend(FrontendKind::NodePort, FrontendAddr::NodePort(30_060), treatment);
    port.frontends = port.frontends.iter().cloned().chain([node_port]).collect();
    service("web", vec![port])
}

/// The ruleset is flushed and endpoints change while no proxy runs; beside it a director has a server at another address.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_of_node_ports_stay_ours_without_the_table() {
    inside(|family| {
        add_node_addresses(family);
        let foreign = server(&at(Protocol::Tcp, stranger(family), 30_060), endpoint(family, 1));
        foreign.iter().for_each(|line| ipvsadm(line));
        let steps: [&[u8]; 4] = [&[1, 2], &[2, 3], &[], &[4]];
        for endpoints in steps {
            let mut delta = only(family, &[]);
            delta.units.extend([with_node_port(family, endpoints)]);
            let mut engine = open(family);
            engine.offer(delta);
            good(engine.sync(Instant::now()));
            assert_in_force(&engine, family, &foreign.each_ref().map(String::as_str), &format!("{endpoints:?}"));
            drop(engine);
            nft("flush ruleset");
        }
        // Another program's endpoints: it isn't ours, though it has the address and the port.
        for at in [address(family, 0, 1), address(family, 0, 2)].map(|node| at(Protocol::Tcp, node, 30_060)) {
            ipvsadm(&format!("-D {at}"));
            server(&at, SocketAddr::new(stranger(family), 80)).iter().for_each(|line| ipvsadm(line));
        }
        let mut delta = only(family, &[]);
        delta.units.extend([with_node_port(family, &[1])]);
        let mut engine = open(family);
        engine.offer(delta);
        assert_eq!(engine.sync(Instant::now()).quarantined.len(), 1);
    });
}

/// While this proxy runs, upstream's makes the virtual server of a new service, with `sh` and without a flag.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_server_with_other_flags_is_adopted_and_corrected() {
    inside(|family| {
        let mut engine = started(family);
        ipvsadm(&format!("-A {} -s sh", at_vip(family, 60)));
        ipvsadm(&format!("-a {} -r {} -m -w 1", at_vip(family, 60), endpoint(family, 1)));
        let mut port = port(family, Protocol::Tcp, 60, &[1]);
        port.balance = Some(Box::new(Balance { scheduler: Some(Scheduler::Sh), weights: [].into() }));
        engine.offer(change([service("new", vec![port])]));
        good(engine.sync(Instant::now()));
        assert_in_force(&engine, family, &[], "adopted");
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_in_excluded_ranges_stay() {
    inside(|family| {
        let to = endpoint(family, 1);
        let foreign = server(&at(Protocol::Tcp, vip(family, 200), 80), to);
        upstream(family, &[], &foreign);
        let range: IpNet = ferry_conformance::states::net(family, "10.96.0.192/26", "fd00:10:96::c0/122");
        let servers = ServerOptions { excluded: vec![range], ..options().servers };
        let mut engine = open_with(family, IpvsOptions { servers, ..options() });
        engine.offer(everything(family));
        good(engine.sync(Instant::now()));
        assert!(crate::common::servers().contains(&foreign[0]));
    });
    assert!(servers().is_empty(), "of this namespace");
}
