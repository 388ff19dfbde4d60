//! The monitor distinguishes foreign changes from our own.

use super::ruleset::{chain, plain_set};
use super::tool::nft;
use super::*;

fn events(monitor: &mut Monitor) -> Vec<NftEvent> {
    let mut events = Vec::new();
    let mut ends = 0;
    let overrun = monitor.read(&mut |notice| match notice {
        NftNotice::Changed(event) => events.push(event),
        NftNotice::Committed { .. } => ends += 1,
    });
    assert_eq!(overrun.unwrap(), Overrun(false));
    assert_eq!(ends > 0, !events.is_empty());
    events
}

#[test]
fn foreign_changes_are_told_from_our_own() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let mut monitor = Monitor::open().unwrap();
        monitor.join().unwrap();
        assert_eq!(events(&mut monitor), []);
        commit(&mut socket, Family::V4, |batch| {
            batch.add_table(None);
            batch.add_chain(&chain("c"));
            batch.add_set(&plain_set("addresses", data_type::IPV4_ADDR, 4));
            batch.add_element("addresses", &[192, 0, 2, 1], None, ElementData::None);
        })
        .unwrap();
        let own = events(&mut monitor);
        let of = |what| NftEvent { port_id: socket.port_id(), family: Some(Family::V4), table: TABLE.to_owned(), what };
        let element = |last: u8| Element {
            key: Octets::new(&[192, 0, 2, last]).unwrap(),
            key_end: None,
            data: OwnedData::None,
            interval_end: false,
        };
        let changed = |last| Changed::Elements { set: "addresses".to_owned(), elements: vec![element(last)] };
        let chain = |deleted| Changed::Chain { name: "c".to_owned(), deleted };
        let wanted = [Changed::Table, chain(false), Changed::Set("addresses".to_owned()), changed(1)];
        assert_eq!(own, wanted.map(of));

        nft(&format!(
            "delete element ip {TABLE} addresses {{ 192.0.2.1 }}
             add element ip {TABLE} addresses {{ 192.0.2.2 }}
             add rule ip {TABLE} c drop
             add table inet other
             add counter ip {TABLE} named"
        ));
        let foreign = events(&mut monitor);
        assert!(foreign.iter().all(|event| event.port_id != socket.port_id() && event.port_id != 0));
        let ours = foreign.iter().filter(|event| event.table == TABLE && event.family == Some(Family::V4));
        let what: Vec<_> = ours.map(|event| event.what.clone()).collect();
        let wanted = [changed(1), changed(2), Changed::Rule { chain: "c".to_owned() }, Changed::Other];
        assert_eq!(what.iter().filter(|what| wanted.contains(what)).count(), wanted.len(), "{what:?}");
        let other = foreign.iter().find(|event| event.table == "other").unwrap();
        assert_eq!((other.family, &other.what), (None, &Changed::Table));

        nft("flush ruleset");
        let flushed: Vec<_> = events(&mut monitor).into_iter().map(|event| event.what).collect();
        assert!(flushed.contains(&Changed::Table) && flushed.contains(&chain(true)), "{flushed:?}");
    });
}

#[test]
fn nothing_is_seen_before_joining_or_after_leaving() {
    isolated(|| {
        let mut monitor = Monitor::open().unwrap();
        nft("add table ip before");
        monitor.join().unwrap();
        nft("add table ip during");
        monitor.leave().unwrap();
        nft("add table ip after");
        let tables: Vec<_> = events(&mut monitor).into_iter().map(|event| event.table).collect();
        assert_eq!(tables, ["during"]);
    });
}

#[test]
fn an_overrun_is_reported_once() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let mut monitor = Monitor::open().unwrap();
        monitor.set_receive_buffer(4096).unwrap();
        monitor.join().unwrap();
        commit(&mut socket, Family::V4, |batch| {
            batch.add_table(None);
            batch.add_set(&plain_set("addresses", data_type::IPV4_ADDR, 4));
            (0..1000_u32).for_each(|n| batch.add_element("addresses", &n.to_be_bytes(), None, ElementData::None));
        })
        .unwrap();
        let mut seen = 0;
        assert_eq!(monitor.read(&mut |_| seen += 1).unwrap(), Overrun(true));
        assert!(seen < 1000);
        assert_eq!(events(&mut monitor), []);
        nft("add table ip later");
        assert_eq!(events(&mut monitor).len(), 1);
    });
}

#[test]
fn changes_elsewhere_are_not_seen() {
    isolated(|| {
        let mut monitor = Monitor::open().unwrap();
        monitor.join().unwrap();
        isolated(|| nft("add table ip elsewhere"));
        assert_eq!(events(&mut monitor), []);
    });
}
