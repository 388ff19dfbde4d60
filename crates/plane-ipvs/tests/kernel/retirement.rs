//! Another mode serves: virtual servers and addresses are removed, those of other programs stay.

use std::net::SocketAddr;
use std::time::Instant;

use ferry_api::object::{Family, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{address, net};
use ferry_model::FrontendAddr;
use ferry_plane::{Served, SyncEngine};
use ferry_plane_ipvs::names::DEVICE;
use ferry_plane_ipvs::retire::{self, Left};

use crate::common::{
    add_node_addresses, addresses, at, attempt, bound, change, endpoint, everything, feed, inside, ipvsadm, nft, only,
    open, run, servers, started, started_with, stranger, table, table_of_mode_nftables, vip, web,
};
use crate::flows::Client;

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn only_the_servers_of_other_programs_are_left() {
    inside(|family| {
        assert!(!retire::in_use(family).unwrap());
        drop(started(family));
        assert!(retire::in_use(family).unwrap());
        let real = SocketAddr::new(stranger(family), 80);
        let foreign = [at(Protocol::Tcp, stranger(family), 443), at(Protocol::Tcp, vip(family, 1), 8443)];
        for at in &foreign {
            ipvsadm(&format!("-A {at} -s rr"));
            ipvsadm(&format!("-a {at} -r {real} -m -w 1"));
        }
        let (ours, addresses_before) = (servers().len() - 4, addresses(family).len());
        let mut served = Vec::new();
        let removed = retire::retire(family, &[], true, &mut served).unwrap();
        assert_eq!(servers().len(), 4, "{:?}", servers());
        assert_eq!(removed, served.len() + addresses_before + 1, "of {ours} lines");
        assert!(served.contains(&Served::Frontend(Protocol::Tcp, FrontendAddr::Vip(vip(family, 1), 80))));
        assert!(!attempt("ip", &format!("link show dev {DEVICE}")).0, "the device is gone");
        assert!(!retire::in_use(family).unwrap(), "those of others are none of ours");
        assert_eq!(retire::retire(family, &[], true, &mut served).unwrap(), 0);
    });
}

/// Another mode's table has replaced that of this mode, or there is none any more: the device tells which servers are ours.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_are_removed_without_the_table() {
    inside(|family| {
        let foreign = at(Protocol::Tcp, stranger(family), 443);
        for kept in ["", "comment \"kube-proxy by Ferry, layout 3\";"] {
            // Node ports are in the table alone.
            let cluster_ips = |last| change([web(family, "web", last, &[1, 2])]).units;
            let mut delta = only(family, &[]);
            delta.units.extend(cluster_ips(60));
            drop(started_with(family, delta));
            nft(&format!("delete table {}", table(family)));
            if !kept.is_empty() {
                nft(&format!("table {} {{ {kept} }}", table(family)));
            }
            ipvsadm(&format!("-A {foreign} -s rr"));
            assert!(retire::in_use(family).unwrap());
            assert_eq!(retire::retire(family, &[], false, &mut Vec::new()).unwrap(), 3);
            assert_eq!(servers().into_iter().collect::<Vec<_>>(), [format!("-A {foreign} -s rr")]);
            ipvsadm(&format!("-D {foreign}"));
            nft("flush ruleset");
        }
    });
}

/// Creates a server with one endpoint, and returns its lines.
fn director(at: &str, real: SocketAddr) -> [String; 2] {
    let lines = [format!("-A {at} -s rr"), format!("-a {at} -r {real} -m -w 1")];
    lines.iter().for_each(|line| ipvsadm(line));
    lines
}

/// This mode never ran here: nothing is ours, whatever the table of mode nftables lists.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn without_the_device_nothing_is_removed() {
    inside(|family| {
        add_node_addresses(family);
        table_of_mode_nftables(family, &[30_001], &[(Protocol::Tcp, vip(family, 1))]);
        for at in [at(Protocol::Tcp, address(family, 0, 1), 30_001), at(Protocol::Tcp, vip(family, 1), 80)] {
            director(&at, endpoint(family, 1));
        }
        let before = servers();
        assert!(!retire::in_use(family).unwrap());
        assert_eq!(retire::retire(family, &[], false, &mut Vec::new()).unwrap(), 0);
        assert_eq!((before.len(), servers()), (4, before));
    });
}

/// Beside the table of mode nftables, and without any table, as after a change to mode iptables and a restart.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_of_node_ports_are_recognised_by_their_endpoints() {
    inside(|family| {
        add_node_addresses(family);
        for listed in [true, false] {
            drop(started(family));
            nft(&format!("delete table {}", table(family)));
            if listed {
                table_of_mode_nftables(family, &[30_001, 30_002, 30_007, 30_443], &[]);
            }
            let [local, elsewhere] = [address(family, 0, 1), stranger(family)];
            let real = SocketAddr::new(stranger(family), 6443);
            let foreign: Vec<String> = [
                director(&at(Protocol::Tcp, local, 30_443), real),
                director(&at(Protocol::Tcp, local, 6443), endpoint(family, 1)),
                director(&at(Protocol::Tcp, elsewhere, 30_001), endpoint(family, 1)),
                director(&at(Protocol::Tcp, vip(family, 99), 80), endpoint(family, 1)),
            ]
            .concat();
            retire::retire(family, &[], false, &mut Vec::new()).unwrap();
            let left: Vec<String> = servers().into_iter().filter(|line| !foreign.contains(line)).collect();
            // A server without endpoints, whose port the present table doesn't list, stays and does no harm.
            assert!(left.iter().all(|line| line.contains(":30006 ")), "{left:?}");
            assert_eq!(servers().len(), left.len() + foreign.len());
            run("ipvsadm", "-C");
            nft("flush ruleset");
        }
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_in_excluded_ranges_stay_without_the_table() {
    inside(|family| {
        let excluded = [net(family, "10.96.0.0/27", "fd00:10:96::/123")];
        let mut delta = only(family, &[]);
        delta.units.extend([web(family, "web", 3, &[1]), web(family, "other", 60, &[1])]);
        drop(started_with(family, delta));
        nft(&format!("delete table {}", table(family)));
        retire::retire(family, &excluded, false, &mut Vec::new()).unwrap();
        let at = at(Protocol::Tcp, vip(family, 3), 80);
        assert!(servers().len() == 2 && servers().iter().all(|line| line.contains(&at)), "{:?}", servers());
        ipvsadm("-C");
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn the_device_stays_as_long_as_the_other_family_has_addresses() {
    inside(|family| {
        for of in Family::ALL {
            drop(started(of));
        }
        let other = Family::ALL.into_iter().find(|of| *of != family).unwrap();
        let left = bound(other);
        retire::retire(family, &[], false, &mut Vec::new()).unwrap();
        assert_eq!((bound(family).len(), bound(other)), (0, left));
        let mut engine = open(other);
        engine.offer(everything(other));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn established_connections_are_spared_if_asked() {
    inside(|family| {
        let client = Client::new(family);
        let mut delta = only(family, &["plain"]);
        delta.units.extend([web(family, "web", 60, &[1, 2])]);
        drop(started_with(family, delta));
        let mut connection = client.connect(SocketAddr::new(vip(family, 60), 80));
        let (before, mut served) = (servers(), Vec::new());
        let left = retire::retire(family, &[], true, &mut served);
        assert!(matches!(left, Err(Left::Connections(1))), "{left:?}");
        // Those of node ports go, since nothing tells later whose they are.
        let kept = bound(family);
        let is_kept =
            |line: &&String| kept.iter().any(|vip| line.contains(&format!(" {} ", SocketAddr::new(*vip, 80))));
        let expected: Vec<&String> = before.iter().filter(is_kept).collect();
        assert!(expected.len() < before.len() && servers().iter().eq(expected), "{:?}", servers());
        assert!(kept.len() == 3 && connection.lives());
        // Then the table goes, which alone lists node ports.
        nft(&format!("delete table {}", table(family)));
        let node_port = at(Protocol::Tcp, address(family, 0, 1), 31_000);
        let later = director(&node_port, endpoint(family, 1));
        assert!(matches!(retire::retire(family, &[], true, &mut served), Err(Left::Connections(1))));
        retire::retire(family, &[], false, &mut served).unwrap();
        assert!(
            servers().iter().eq(&later),
            "what the first attempt hasn't found is another program's: {:?}",
            servers()
        );
        assert!(bound(family).is_empty() && connection.is_cut());
        ipvsadm(&format!("-D {node_port}"));
    });
}

/// As after a change of mode: IPVS has the ended connection for a while, and sees the answers of another one with its addresses and ports.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn an_ended_connection_whose_port_serves_another_one_is_not_waited_for() {
    inside(|family| {
        let client = Client::new(family);
        let mut delta = only(family, &[]);
        delta.units.extend([web(family, "web", 60, &[1])]);
        drop(started_with(family, delta));
        let first = client.connect(SocketAddr::new(vip(family, 60), 80));
        let port = first.port();
        // The rules of another mode: the NAT of the established connection was decided by its first packet.
        let (at, to) = (vip(family, 60), endpoint(family, 1));
        let protocol = if family == Family::V4 { "ip" } else { "ip6" };
        nft(&format!(
            "table {protocol} other {{ chain prerouting {{ type nat hook prerouting priority dstnat; \
             {protocol} daddr {at} tcp dport 80 dnat to {to}; }}; }}"
        ));
        first.reset();
        let mut second = client.connect_from(port, SocketAddr::new(at, 80));
        assert!(second.lives());
        let counted = run("ipvsadm", "-ln");
        let counters: Vec<&str> =
            counted.lines().filter_map(|line| line.split_once("Masq")).map(|(_, all)| all).collect();
        assert!(counters.iter().any(|all| all.split_whitespace().nth(1) == Some("1")), "counted as active: {counted}");
        retire::retire(family, &[], true, &mut Vec::new()).unwrap();
        assert!(servers().is_empty() && bound(family).is_empty() && second.lives());
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn ipsets_of_upstream_are_destroyed_unless_rules_refer_to_them() {
    inside(|family| {
        let (kind, name, other) = match family {
            Family::V4 => ("inet", "KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP"),
            Family::V6 => ("inet6", "KUBE-6-CLUSTER-IP", "KUBE-CLUSTER-IP"),
        };
        let sets = format!(
            "create {name} hash:ip,port family {kind}\ncreate {other} bitmap:port range 0-65535\n\
             create mine bitmap:port range 0-65535\ncreate list list:set\nadd list {name}\n"
        );
        feed("ipset", &["restore"], &sets);
        let left = retire::retire_sets(family);
        assert!(matches!(&left, Err(Left::Referred(set)) if set == name), "{left:?}");
        run("ipset", "destroy list");
        assert_eq!(retire::retire_sets(family).unwrap(), 1);
        let listed = run("ipset", "list -name");
        let mut names: Vec<&str> = listed.split_ascii_whitespace().collect();
        names.sort_unstable();
        assert_eq!(names, [other, "mine"]);
    });
}
