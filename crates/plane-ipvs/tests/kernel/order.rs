//! The order of a commit over the layers, seen where a middle one or the last one fails.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferry_api::object::{Family, ObjectName, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{EXTERNAL, INTERNAL, LOCAL, frontend, net, pool, service};
use ferry_kernel::dummy::DeviceSocket;
use ferry_kernel::ipvs;
use ferry_kernel::ipvs::{IpvsProtocol, IpvsSocket};
use ferry_kernel::nft::{NftSocket, OwnedData, Verdict};
use ferry_model::{FrontendAddr, FrontendKind, SourceRanges};
use ferry_plane::{CommitError, SyncEngine, Unit, UnitId};
use ferry_plane_ipvs::names::{DEVICE, TABLE, TABLE_COMMENT};

use crate::common::{
    assert_in_force, at_vip, bound, change, endpoint, everything, generation, inside, ip, ipvsadm, nft, only, open,
    port, read_back, servers, started_with, table, table_text, vip, web,
};

/// What a packet meets at one moment.
struct Seen {
    /// the table lists the address
    element: bool,
    /// the virtual server with both endpoints
    server: bool,
    address: bool,
}

/// Looks at the service address 60 from another thread, with sockets of its own.
struct Observer {
    family: Family,
    nft: NftSocket,
    ipvs: IpvsSocket,
    device: DeviceSocket,
}

// === impl Observer ===

impl Observer {
    fn new(family: Family) -> Self {
        let (nft, ipvs) = (NftSocket::open().unwrap(), IpvsSocket::open().unwrap());
        Self { family, nft, ipvs, device: DeviceSocket::open().unwrap() }
    }

    /// True if the table is this mode's.
    fn has_table(&mut self) -> bool {
        let table = self.nft.table(self.family, TABLE).unwrap();
        table.is_some_and(|table| table.comment.as_deref() == Some(TABLE_COMMENT))
    }

    fn element(&mut self) -> bool {
        let key = match vip(self.family, 60) {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        self.nft.element(self.family, TABLE, "bound-ips", &key).is_ok_and(|element| element.is_some())
    }

    /// The verdict of the frontend in this map.
    fn verdict(&mut self, map: &str) -> Option<OwnedData> {
        let mut key = match vip(self.family, 60) {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        // TCP, port 80; each field padded to four bytes
        key.extend([6, 0, 0, 0, 0, 80, 0, 0]);
        self.nft.element(self.family, TABLE, map, &key).unwrap().map(|element| element.data)
    }

    /// True if the table lets connections through without a mark.
    fn is_unmarked(&mut self) -> bool {
        let of = |chain: &str| OwnedData::Verdict(Verdict::Goto(chain.to_owned()));
        loop {
            let first = self.verdict("service-ips");
            match &first {
                Some(OwnedData::Verdict(Verdict::Goto(chain))) if chain.starts_with("restricted-") => {}
                first => return *first != Some(of("masquerade-external")),
            }
            let second = self.verdict("restricted-ips");
            // Both are of one moment.
            if self.verdict("service-ips") == first {
                return second != Some(of("masquerade-external"));
            }
        }
    }

    fn server(&mut self) -> bool {
        let id = ipvs::ServerId { address: vip(self.family, 60), port: 80, protocol: IpvsProtocol::Tcp };
        let mut endpoints = 0;
        self.ipvs.dump_destinations(&id, &mut |_, _| endpoints += 1).unwrap();
        endpoints == 2
    }

    fn address(&mut self) -> bool {
        let Some(device) = self.device.find(DEVICE).unwrap() else { return false };
        let listed = self.device.addresses(device.index, self.family).unwrap_or_default();
        listed.iter().any(|address| address.network.addr() == vip(self.family, 60))
    }

    /// Looks from the top down: while objects come, those below are there for longer.
    fn downwards(&mut self) -> Seen {
        let (address, server) = (self.address(), self.server());
        Seen { element: self.element(), server, address }
    }

    /// Looks from the bottom up, while objects go.
    fn upwards(&mut self) -> Seen {
        let (element, server) = (self.element(), self.server());
        Seen { element, server, address: self.address() }
    }
}

/// Calls `look` again and again on another thread during each of these actions.
fn meanwhile(family: Family, look: impl Fn(&mut Observer) + Sync, action: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    let (begun, has_begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut observer = Observer::new(family);
            look(&mut observer);
            begun.send(()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                look(&mut observer);
            }
        });
        has_begun.recv().unwrap();
        action();
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn an_address_is_there_only_with_its_element_and_its_servers() {
    inside(|family| {
        let mut engine = started_with(family, only(family, &["plain"]));
        let comes = |observer: &mut Observer| {
            let Seen { element, server, address } = observer.downwards();
            assert!(!address || server, "an address without its virtual server");
            assert!(!server || element, "a virtual server without its element");
        };
        let goes = |observer: &mut Observer| {
            let Seen { element, server, address } = observer.upwards();
            assert!(element || !server, "a virtual server without its element");
            assert!(element || !address, "an address without its element");
        };
        for _ in 0..40 {
            let mut offer = |unit| {
                engine.offer(change([unit]));
                good(engine.sync(Instant::now()));
            };
            let (id, unit) = web(family, "new", 60, &[1, 2]);
            meanwhile(family, comes, || offer((id.clone(), unit)));
            meanwhile(family, goes, || offer((id, None)));
        }
        assert_in_force(&engine, family, &[], "gone");
    });
}

/// The service address 60 by policy Cluster, with two endpoints, or by policy Local, with one, and with these source ranges.
fn balancer(family: Family, local: bool, ranges: Option<(&str, &str)>) -> (UnitId, Option<Arc<Unit>>) {
    let at = FrontendAddr::Vip(vip(family, 60), 80);
    let mut balancer = frontend(FrontendKind::LoadBalancer, at, if local { LOCAL } else { EXTERNAL });
    if let Some((v4, v6)) = ranges {
        balancer.sources = SourceRanges::Only([net(family, v4, v6)].into());
    }
    let mut port = port(family, Protocol::Tcp, 60, &[1, 2]);
    (port.local, port.frontends) = (pool(family, &[2]), vec![balancer].into());
    service("policy", vec![port])
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_mark_goes_after_the_endpoints_of_other_nodes_and_comes_before_them() {
    let (some, others) = (Some(("10.0.0.0/9", "fd00:77::/64")), Some(("10.0.0.0/10", "fd00:78::/64")));
    inside(|family| {
        for (before, after) in [(None, None), (None, some), (some, None), (some, some), (some, others)] {
            let mut engine = started_with(family, only(family, &["plain"]));
            let mut offer = |unit| {
                engine.offer(change([unit]));
                good(engine.sync(Instant::now()));
            };
            let goes = |observer: &mut Observer| {
                let is_unmarked = observer.is_unmarked();
                assert!(!is_unmarked || !observer.server(), "{before:?} to {after:?}: unmarked to other nodes");
            };
            let comes = |observer: &mut Observer| {
                let has_others = observer.server();
                assert!(!has_others || !observer.is_unmarked(), "{after:?} to {before:?}: unmarked to other nodes");
            };
            offer(balancer(family, false, before));
            for _ in 0..15 {
                meanwhile(family, goes, || offer(balancer(family, true, after)));
                assert!(Observer::new(family).is_unmarked());
                meanwhile(family, comes, || offer(balancer(family, false, before)));
                assert!(!Observer::new(family).is_unmarked());
            }
            assert_in_force(&engine, family, &[], "policy Cluster again");
            Box::new(engine).retire(&mut Vec::new()).unwrap();
        }
    });
}

/// The address of a service can't be added: nothing of the service stays, and others are served.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn an_address_that_is_refused_quarantines_its_service_alone() {
    inside(|family| {
        let refused = match family {
            // The kernel refuses an address whose network another one with another scope has.
            Family::V4 => {
                ip(&format!("link add {DEVICE} type dummy"));
                ip(&format!("address add 192.0.2.9 peer {}/32 dev {DEVICE}", vip(family, 60)));
                vip(family, 60)
            }
            Family::V6 => "ff02::60".parse().unwrap(),
        };
        let mut port = port(family, Protocol::Tcp, 60, &[1, 2]);
        let at = FrontendAddr::Vip(refused, 80);
        port.frontends = vec![frontend(FrontendKind::ClusterIp, at, INTERNAL)].into();
        let mut delta = everything(family);
        delta.units.extend([service("refused", vec![port]), web(family, "fine", 61, &[1])]);
        let mut engine = open(family);
        engine.offer(delta);
        let outcome = engine.sync(Instant::now());
        let waiting: Vec<String> = outcome.quarantined.iter().map(|(id, _)| id.to_string()).collect();
        assert!(outcome.error.is_none() && waiting == ["service demo/refused"], "{outcome:?}");
        assert!(outcome.quarantined[0].1.to_string().contains(&refused.to_string()), "{outcome:?}");
        assert!(!table_text(family).contains(&refused.to_string()));
        assert!(
            bound(family).contains(&vip(family, 61))
                && !servers().iter().any(|line| line.contains(&refused.to_string()))
        );
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn no_address_and_no_element_stays_of_a_service_without_its_servers() {
    inside(|family| {
        let foreign = [
            format!("-A {} -s wlc", at_vip(family, 60)),
            format!("-a {} -r {} -m -w 7", at_vip(family, 60), endpoint(family, 99)),
        ];
        foreign.iter().for_each(|line| ipvsadm(line));
        let mut delta = everything(family);
        delta.units.extend([web(family, "contested", 60, &[1, 2]), web(family, "fine", 61, &[1])]);
        let mut engine = open(family);
        engine.offer(delta);
        let outcome = engine.sync(Instant::now());
        let waiting: Vec<String> = outcome.quarantined.iter().map(|(id, _)| id.to_string()).collect();
        assert_eq!(waiting, ["service demo/contested"], "{outcome:?}");
        assert!(outcome.error.is_none(), "{outcome:?}");
        assert!(!table_text(family).contains(&vip(family, 60).to_string()));
        assert!(!bound(family).contains(&vip(family, 60)) && bound(family).contains(&vip(family, 61)));
        assert_in_force(&engine, family, &foreign.each_ref().map(String::as_str), "the others");
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_table_of_another_mode_is_replaced_when_servers_and_addresses_are_there() {
    inside(|family| {
        let table = table(family);
        for comment in ["rules for kube-proxy", "kube-proxy by Ferry, layout 3"] {
            for _ in 0..5 {
                nft(&format!(
                    "table {table} {{ comment \"{comment}\"; chain nat-prerouting {{ }}; chain services {{ }}; }}"
                ));
                let before = generation();
                let mut delta = only(family, &["plain", "sticky"]);
                delta.units.extend([web(family, "web", 60, &[1, 2])]);
                let mut engine = open(family);
                engine.offer(delta);
                let look = |observer: &mut Observer| {
                    let (table, Seen { server, address, .. }) = (observer.has_table(), observer.upwards());
                    assert!(!table || server && address, "the table is replaced too early");
                };
                meanwhile(family, look, || drop(good(engine.sync(Instant::now()))));
                assert_eq!(generation(), before + 2, "the probe, and one commit");
                assert_in_force(&engine, family, &[], comment);
                Box::new(engine).retire(&mut Vec::new()).unwrap();
                assert!(read_back(family).is_empty() && bound(family).is_empty());
            }
        }
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_go_before_their_refusals() {
    inside(|family| {
        let mut engine = started_with(family, only(family, &["plain", "sticky"]));
        // A rule of another program refers to a set that is to be deleted.
        let gone = |name| (UnitId::Service(ObjectName::new("demo", name)), None);
        let sources: Vec<String> = table_text(family)
            .lines()
            .filter_map(|line| Some(line.trim().strip_prefix("set sources-")?.split(' ').next()?.to_owned()))
            .collect();
        let keyword = table(family).split(' ').next().unwrap();
        nft(&format!("add rule {} bound {keyword} saddr @sources-{} counter", table(family), sources[0]));
        engine.offer(change([gone("plain"), gone("sticky")]));
        let outcome = engine.sync(Instant::now());
        assert!(matches!(outcome.error.as_deref(), Some(CommitError::Resources(_))), "{outcome:?}");
        assert!(servers().is_empty() && bound(family).is_empty());
        // The rule is drift; after its repair the set can be deleted.
        let now = Instant::now();
        for millis in [100, 300, 2000, 20_000] {
            engine.tend(now + Duration::from_millis(millis));
        }
        assert_in_force(&engine, family, &[], "converged");
    });
}
