//! Another mode serves: virtual servers and addresses are removed, those of other programs stay.

use std::net::SocketAddr;
use std::time::Instant;

use ferry_api::object::{Family, Protocol};
use ferry_conformance::good;
use ferry_model::FrontendAddr;
use ferry_plane::{Served, SyncEngine};
use ferry_plane_ipvs::names::DEVICE;
use ferry_plane_ipvs::retire::{self, Left};

use crate::common::{
    addresses, at, attempt, bound, change, everything, feed, inside, ipvsadm, nft, only, open, run, servers, started,
    started_with, stranger, table, vip, web,
};
use crate::flows::Client;

#[test]
#[ignore = "needs IPVS: runs in the emulated machine"]
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
        let removed = retire::retire(family, true, &mut served).unwrap();
        assert_eq!(servers().len(), 4, "{:?}", servers());
        assert_eq!(removed, served.len() + addresses_before + 1, "of {ours} lines");
        assert!(served.contains(&Served::Frontend(Protocol::Tcp, FrontendAddr::Vip(vip(family, 1), 80))));
        assert!(!attempt("ip", &format!("link show dev {DEVICE}")).0, "the device is gone");
        assert!(!retire::in_use(family).unwrap(), "those of others are none of ours");
        assert_eq!(retire::retire(family, true, &mut served).unwrap(), 0);
    });
}

/// Another mode's table has replaced that of this mode, or there is none any more: the device tells which servers are ours.
#[test]
#[ignore = "needs IPVS: runs in the emulated machine"]
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
            assert_eq!(retire::retire(family, false, &mut Vec::new()).unwrap(), 3);
            assert_eq!(servers().into_iter().collect::<Vec<_>>(), [format!("-A {foreign} -s rr")]);
            ipvsadm(&format!("-D {foreign}"));
            nft("flush ruleset");
        }
    });
}

#[test]
#[ignore = "needs IPVS: runs in the emulated machine"]
fn the_device_stays_as_long_as_the_other_family_has_addresses() {
    inside(|family| {
        for of in Family::ALL {
            drop(started(of));
        }
        let other = Family::ALL.into_iter().find(|of| *of != family).unwrap();
        let left = bound(other);
        retire::retire(family, false, &mut Vec::new()).unwrap();
        assert_eq!((bound(family).len(), bound(other)), (0, left));
        let mut engine = open(other);
        engine.offer(everything(other));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0);
    });
}

#[test]
#[ignore = "needs IPVS: runs in the emulated machine"]
fn established_connections_are_spared_if_asked() {
    inside(|family| {
        let client = Client::new(family);
        let mut delta = only(family, &["plain"]);
        delta.units.extend([web(family, "web", 60, &[1, 2])]);
        drop(started_with(family, delta));
        let mut connection = client.connect(SocketAddr::new(vip(family, 60), 80));
        let (before, mut served) = (servers(), Vec::new());
        let left = retire::retire(family, true, &mut served);
        assert!(matches!(left, Err(Left::Connections(1))), "{left:?}");
        assert!(servers() == before && bound(family).len() == 3 && connection.lives());
        // Then the table goes, which alone lists node ports.
        nft(&format!("delete table {}", table(family)));
        assert!(matches!(retire::retire(family, true, &mut served), Err(Left::Connections(1))));
        retire::retire(family, false, &mut served).unwrap();
        assert!(servers().is_empty() && bound(family).is_empty() && !connection.lives());
    });
}

#[test]
#[ignore = "needs IPVS: runs in the emulated machine"]
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
