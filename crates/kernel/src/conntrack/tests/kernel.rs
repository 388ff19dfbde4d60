//! Dumps and deletions against the running kernel.

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::wire::msg;
use super::*;
use crate::netlink::{Interrupted, MessageWriter, Session, nfnetlink};

/// Flows of both families and all protocols with ports, no two of which match exactly the same filters.
fn samples() -> Vec<Entry> {
    let mut samples = Vec::new();
    for protocol in [UDP, TCP, SCTP] {
        samples.extend([
            flow(protocol, "10.0.0.1:1000", "10.96.0.1:53", "10.1.0.1:5353"),
            flow(protocol, "10.0.0.1:1001", "10.96.0.1:54", "10.1.0.1:5353"),
            flow(protocol, "10.0.0.2:1000", "10.96.0.2:53", "10.1.0.2:5353"),
            flow(protocol, "10.0.0.2:1002", "10.96.0.1:53", "10.96.0.1:53"),
            flow(protocol, "[fd00::1]:1000", "[fd00:96::1]:53", "[fd00:1::1]:5353"),
            flow(protocol, "[fd00::1]:1001", "[fd00:96::1]:54", "[fd00:1::1]:5353"),
            flow(protocol, "[fd00::2]:1000", "[fd00:96::2]:53", "[fd00:1::2]:5353"),
        ]);
    }
    for sample in samples.iter_mut().step_by(2) {
        sample.status = FlowStatus::SEEN_REPLY;
    }
    samples
}

/// Every combination of filters by this address, by this port and by missing replies.
fn filters(destination: IpAddr, port: u16) -> Vec<Filter> {
    let mut filters = Vec::new();
    for (family, protocol) in [UDP, TCP, SCTP].iter().flat_map(|p| [(Family::V4, *p), (Family::V6, *p)]) {
        for bits in 0..8_u8 {
            filters.push(Filter {
                destination: (bits & 1 != 0).then_some(destination),
                port: (bits & 2 != 0).then_some(port),
                unanswered: bits & 4 != 0,
                ..all(family, protocol)
            });
        }
    }
    filters
}

/// Number of entries that the kernel sends for this request, after its own filtering.
fn sent_by_the_kernel(filter: &Filter) -> usize {
    let mut session = Session::open(NETLINK_NETFILTER).unwrap();
    let fill = |writer: &mut MessageWriter| {
        nfnetlink::header(writer, filter.family.number());
        filter.encode(writer);
    };
    let mut count = 0;
    let listed = session.list::<std::io::Error>(wire::kind(msg::GET), fill, &mut |message| {
        count += usize::from(message.kind == wire::kind(msg::NEW));
        Ok(())
    });
    assert_eq!(listed.unwrap(), Interrupted(false));
    count
}

#[test]
fn created_entries_are_listed_unchanged() {
    isolated(|| {
        create(samples(), LONG).unwrap();
        let mut socket = ConntrackSocket::open().unwrap();
        let mut found = Vec::new();
        for (family, protocol) in [UDP, TCP, SCTP].iter().flat_map(|p| [(Family::V4, *p), (Family::V6, *p)]) {
            found.extend(listed(&mut socket, &all(family, protocol)));
        }
        assert_eq!(plain(&found), plain(&samples()));
        for sample in samples() {
            let one = found.iter().find(|one| one.original == sample.original && one.protocol == sample.protocol);
            let status = one.unwrap().status;
            assert_eq!(status.contains(FlowStatus::SEEN_REPLY), sample.status == FlowStatus::SEEN_REPLY, "{sample:?}");
        }
        let ids: std::collections::BTreeSet<_> = found.iter().map(|entry| entry.id).collect();
        assert_eq!(ids.len(), found.len(), "ids are unique");
    });
}

#[test]
fn a_dump_returns_matching_entries_and_the_kernel_filters() {
    isolated(|| {
        create(samples(), LONG).unwrap();
        let mut socket = ConntrackSocket::open().unwrap();
        for destination in ["10.96.0.1", "fd00:96::1"].map(|address| address.parse::<IpAddr>().unwrap()) {
            for filter in filters(destination, 53) {
                let expected: Vec<_> = samples().into_iter().filter(|sample| filter.matches(sample)).collect();
                assert_eq!(plain(&listed(&mut socket, &filter)), plain(&expected), "{filter:?}");
                // filters that are not sent to the kernel, or that it ignores: see `Filter::encode`
                let mut loose = filter;
                loose.destination = loose.destination.filter(|a| filter.family == Family::V4 && a.is_ipv4());
                loose.port = loose.port.filter(|_| filter.protocol != SCTP);
                let loosely = samples().into_iter().filter(|sample| loose.matches(sample)).count();
                assert_eq!(sent_by_the_kernel(&filter), loosely, "{filter:?}");
            }
        }
    });
}

/// Entries read from `/proc` and queried one by one equal those of a dump, ids included.
#[test]
fn a_small_table_is_read_without_a_dump() {
    isolated(|| {
        let mut socket = ConntrackSocket::open().unwrap();
        let mut few = |filter: &Filter| {
            let mut found = Vec::new();
            let read = socket.dump_few(filter, &mut |entry| found.push(*entry)).unwrap();
            found.sort();
            read.then_some(found)
        };
        assert_eq!(few(&all(Family::V4, UDP)), Some(Vec::new()));
        create(samples(), LONG).unwrap();
        let mut lists = ConntrackSocket::open().unwrap();
        for destination in ["10.96.0.1", "fd00:96::1"].map(|address| address.parse::<IpAddr>().unwrap()) {
            for filter in filters(destination, 53) {
                assert_eq!(few(&filter), Some(listed(&mut lists, &filter)), "{filter:?}");
            }
        }
        // more than are queried at once, and then more than a small table has
        let more = |ports: std::ops::Range<u16>| {
            let flows = ports.map(|port| flow(UDP, &format!("10.0.0.7:{port}"), "10.96.0.7:53", "10.1.0.7:5353"));
            create(flows, LONG).unwrap();
        };
        let filter = Filter { destination: Some("10.96.0.7".parse().unwrap()), ..all(Family::V4, UDP) };
        more(1000..1500);
        assert_eq!(few(&filter), Some(listed(&mut lists, &filter)));
        assert_eq!(lists.delete(&few(&filter).unwrap()).deleted, 500);
        more(1000..3200);
        assert_eq!(few(&filter), None);
    });
}

#[test]
fn only_the_given_entries_are_deleted() {
    isolated(|| {
        let mut monitor = DestroyMonitor::open().unwrap();
        create(samples(), LONG).unwrap();
        let mut socket = ConntrackSocket::open().unwrap();
        let found = listed(&mut socket, &all(Family::V4, UDP));
        let (these, those) = found.split_at(2);
        let deletion = socket.delete(these);
        assert_eq!((deletion.deleted, deletion.gone), (2, 0));
        assert!(deletion.error.is_none());
        assert_eq!(plain(&monitor.read().unwrap()), plain(these));
        assert_eq!(listed(&mut socket, &all(Family::V4, UDP)), those);
        let deletion = socket.delete(&found);
        assert_eq!((deletion.deleted, deletion.gone), (those.len(), 2), "entries that have ended are no error");
        assert!(deletion.error.is_none());
        assert_eq!(plain(&monitor.read().unwrap()), plain(those));
        assert_eq!(listed(&mut socket, &all(Family::V4, TCP)).len(), 4);
        assert_eq!(listed(&mut socket, &all(Family::V6, UDP)).len(), 3);
        assert_eq!(socket.delete(&[]).deleted, 0);
        assert_eq!(listed(&mut socket, &all(Family::V6, UDP)).len(), 3, "an empty deletion deletes nothing");
    });
}

#[test]
fn another_flow_with_the_same_tuple_stays() {
    isolated(|| {
        let sample = flow(UDP, "10.0.0.1:1000", "10.96.0.1:53", "10.1.0.1:5353");
        let newer = flow(UDP, "10.0.0.1:1000", "10.96.0.1:53", "10.1.0.2:5353");
        let mut socket = ConntrackSocket::open().unwrap();
        let mut same_id = 0;
        for _ in 0..20 {
            create([sample], LONG).unwrap();
            let old = listed(&mut socket, &all(Family::V4, UDP));
            let other_id: Vec<_> = old.iter().map(|old| Entry { id: old.id.wrapping_add(1), ..*old }).collect();
            let deletion = socket.delete(&other_id);
            assert_eq!((deletion.deleted, deletion.gone, deletion.error.is_none()), (0, 1, true));
            assert_eq!(socket.delete(&old).deleted, 1);
            create([newer], LONG).unwrap();
            let new = listed(&mut socket, &all(Family::V4, UDP));
            same_id += u32::from(new[0].id == old[0].id);
            assert_eq!(socket.delete(&old).gone, 1, "another endpoint");
            assert_eq!(listed(&mut socket, &all(Family::V4, UDP)), new);
            assert_eq!(socket.delete(&new).deleted, 1);
        }
        println!("{same_id} of 20 had the id of the previous flow");
    });
}

#[test]
fn zones_are_distinguished() {
    isolated(|| {
        let sample = flow(UDP, "10.0.0.1:1000", "10.96.0.1:53", "10.1.0.1:5353");
        create([sample, Entry { zone: 7, ..sample }], LONG).unwrap();
        let mut socket = ConntrackSocket::open().unwrap();
        let found = listed(&mut socket, &all(Family::V4, UDP));
        assert_eq!(found.iter().map(|entry| entry.zone).collect::<Vec<_>>().len(), 2);
        let zoned: Vec<_> = found.iter().copied().filter(|entry| entry.zone == 7).collect();
        assert_eq!(zoned.len(), 1);
        let wrong_zone: Vec<_> = zoned.iter().map(|entry| Entry { zone: 8, ..*entry }).collect();
        assert_eq!(socket.delete(&wrong_zone).gone, 1);
        assert_eq!(socket.delete(&zoned).deleted, 1);
        let left = listed(&mut socket, &all(Family::V4, UDP));
        assert_eq!(left.iter().map(|entry| entry.zone).collect::<Vec<_>>(), [0]);
    });
}

/// A dump of more than one datagram, and deletions with more than one `send`.
#[test]
fn many_entries_are_listed_and_deleted() {
    const MANY: u16 = 3000;
    isolated(|| {
        let client = |n: u16| format!("10.0.0.1:{}", 1000 + n);
        create((0..MANY).map(|n| flow(UDP, &client(n), "10.96.0.1:53", "10.1.0.1:53")), LONG).unwrap();
        create((0..100).map(|n| flow(UDP, &client(n), "10.96.0.2:53", "10.1.0.2:53")), LONG).unwrap();
        let mut socket = ConntrackSocket::open().unwrap();
        let filter = Filter { destination: Some("10.96.0.1".parse().unwrap()), ..all(Family::V4, UDP) };
        let found = listed(&mut socket, &filter);
        assert_eq!(found.len(), usize::from(MANY));
        assert_eq!(socket.delete(&found[..10]).deleted, 10);
        let deletion = socket.delete(&found);
        assert_eq!((deletion.deleted, deletion.gone), (usize::from(MANY) - 10, 10));
        assert_eq!(listed(&mut socket, &all(Family::V4, UDP)).len(), 100);
    });
}

/// The unread rest of an aborted dump is not taken as an answer to the next request.
#[test]
fn the_unread_rest_of_an_aborted_dump_is_dropped() {
    isolated(|| {
        create((0..2000).map(|n| flow(UDP, &format!("10.0.0.1:{}", 1000 + n), "10.96.0.1:53", "10.1.0.1:53")), LONG)
            .unwrap();
        let mut socket = ConntrackSocket::open().unwrap();
        let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            socket.dump(&all(Family::V4, UDP), &mut |_| panic!("enough"))
        }));
        assert!(broken.is_err());
        assert_eq!(listed(&mut socket, &all(Family::V4, UDP)).len(), 2000);
    });
}
