use std::sync::mpsc::{Receiver, sync_channel};

use ferry_api::object::{Node, ServiceCidr};

use super::super::testing::logged;
use super::*;
use crate::input::Input;

/// An outlet and its other end.
struct Bench {
    outlet: Outlet,
    inputs: Receiver<Input>,
}

impl Bench {
    fn new(kind: Kind) -> Self {
        let (sender, inputs) = sync_channel(100);
        Self { outlet: Outlet::new(kind, "here", Sink::new(sender)), inputs }
    }

    fn delivered(&mut self) -> Vec<Event> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(self.outlet.deliver()).unwrap();
        let mut all = Vec::new();
        for input in self.inputs.try_iter() {
            let Input::Events(events) = input else { panic!("{input:?}") };
            all.extend(events);
        }
        all
    }
}

fn node(name: &str) -> KubeObject {
    KubeObject::Node(Node {
        name: ObjectName::cluster_wide(name),
        zone: None,
        addresses: Box::default(),
        pod_cidrs: Box::default(),
        deleting: false,
        to_be_deleted: false,
    })
}

fn cidr(name: &str) -> KubeObject {
    KubeObject::ServiceCidr(ServiceCidr { name: ObjectName::cluster_wide(name), cidrs: Box::default() })
}

fn broken(kind: Kind, name: Option<&str>, message: &str) -> Unreadable {
    Unreadable { kind, name: name.map(ObjectName::cluster_wide), misnamed: false, message: message.to_owned() }
}

#[test]
fn a_list_begins_with_its_first_object_and_ends_as_one() {
    let mut bench = Bench::new(Kind::ServiceCidr);
    bench.outlet.begin();
    assert_eq!(bench.delivered(), []);
    bench.outlet.object(Ok(cidr("a")));
    assert_eq!(bench.delivered(), [Event::Restart(Kind::ServiceCidr), Event::Upsert(cidr("a"))]);
    bench.outlet.object(Ok(cidr("b")));
    bench.outlet.complete();
    assert_eq!(bench.delivered(), [Event::Upsert(cidr("b")), Event::Synced(Kind::ServiceCidr)]);
    assert_eq!(bench.outlet.listed(), 2);
    bench.outlet.begin();
    bench.outlet.complete();
    assert_eq!(bench.delivered(), [Event::Restart(Kind::ServiceCidr), Event::Synced(Kind::ServiceCidr)]);
    assert_eq!(bench.outlet.listed(), 0);
}

#[test]
fn an_unreadable_object_is_said_again_only_with_another_reason() {
    let mut bench = Bench::new(Kind::ServiceCidr);
    let log = logged(|| {
        for message in ["odd", "odd", "odder", "odder"] {
            bench.outlet.object(Err(broken(Kind::ServiceCidr, Some("a"), message)));
        }
        bench.outlet.object(Ok(cidr("a")));
        bench.outlet.object(Err(broken(Kind::ServiceCidr, Some("a"), "odder")));
        bench.outlet.gone(ObjectName::cluster_wide("a"));
        bench.outlet.object(Err(broken(Kind::ServiceCidr, Some("a"), "odder")));
        bench.outlet.object(Err(broken(Kind::ServiceCidr, None, "what is it")));
        bench.outlet.object(Err(broken(Kind::ServiceCidr, None, "what is it")));
    });
    assert_eq!(log.len(), 5, "{log:?}");
    assert!(log.iter().all(|line| line.starts_with('E') && line.contains("ServiceCIDR")), "{log:?}");
    assert!(log[0].contains("odd") && log[0].contains('a'));
    let events = bench.delivered();
    let unreadable = Event::Unreadable(Kind::ServiceCidr, ObjectName::cluster_wide("a"));
    assert_eq!(events.iter().filter(|event| **event == unreadable).count(), 6);
    assert_eq!(events.len(), 8, "a nameless one gives no event");
}

#[test]
fn many_unreadable_objects_are_bounded() {
    let mut bench = Bench::new(Kind::ServiceCidr);
    let log = logged(|| {
        for count in 0..MOST_UNREADABLE + 100 {
            bench.outlet.object(Err(broken(Kind::ServiceCidr, Some(&format!("c{count}")), "odd")));
        }
    });
    assert_eq!(log.len(), MOST_UNREADABLE + 1);
    assert_eq!(bench.delivered().len(), MOST_UNREADABLE + 100);
}

#[test]
fn other_nodes_do_not_count() {
    let mut bench = Bench::new(Kind::Node);
    let log = logged(|| {
        bench.outlet.begin();
        bench.outlet.object(Ok(node("elsewhere")));
        bench.outlet.object(Err(broken(Kind::Node, Some("elsewhere"), "odd")));
        bench.outlet.object(Ok(node("here")));
        bench.outlet.gone(ObjectName::cluster_wide("elsewhere"));
        bench.outlet.complete();
    });
    assert_eq!(bench.delivered(), [Event::Upsert(node("here")), Event::Synced(Kind::Node)]);
    assert!(log.is_empty(), "{log:?}");
}

#[test]
fn a_node_that_is_gone_keeps_its_facts_and_gives_one_line() {
    let mut bench = Bench::new(Kind::Node);
    let log = logged(|| {
        for _ in 0..3 {
            bench.outlet.begin();
            bench.outlet.complete();
        }
        assert_eq!(bench.delivered(), [Event::Synced(Kind::Node)]);
        bench.outlet.object(Ok(node("here")));
        assert_eq!(bench.delivered(), [Event::Upsert(node("here"))]);
        bench.outlet.gone(ObjectName::cluster_wide("here"));
        bench.outlet.begin();
        bench.outlet.complete();
        assert_eq!(bench.delivered(), []);
    });
    assert_eq!(log.len(), 3, "{log:?}");
    assert!(log[0].starts_with('W') && log[1].starts_with('I') && log[2].starts_with('W'), "{log:?}");
    assert!(log.iter().all(|line| line.contains("here")));
}

#[test]
fn a_list_with_an_object_that_no_name_can_be_of_is_complete() {
    let mut bench = Bench::new(Kind::ServiceCidr);
    let misnamed = || Unreadable { misnamed: true, ..broken(Kind::ServiceCidr, None, "odd") };
    for _ in 0..2 {
        bench.outlet.begin();
        bench.outlet.object(Err(misnamed()));
        bench.outlet.complete();
        assert_eq!(bench.delivered(), [Event::Restart(Kind::ServiceCidr), Event::Synced(Kind::ServiceCidr)]);
    }
}

#[test]
fn a_list_with_an_object_without_a_name_takes_nothing_for_gone() {
    let mut bench = Bench::new(Kind::ServiceCidr);
    bench.outlet.begin();
    bench.outlet.object(Err(broken(Kind::ServiceCidr, None, "odd")));
    bench.outlet.complete();
    assert_eq!(
        bench.delivered(),
        [Event::Restart(Kind::ServiceCidr), Event::Synced(Kind::ServiceCidr)],
        "the first one"
    );
    bench.outlet.begin();
    bench.outlet.object(Ok(cidr("a")));
    bench.outlet.object(Err(broken(Kind::ServiceCidr, None, "odd")));
    bench.outlet.complete();
    assert_eq!(bench.delivered(), [Event::Restart(Kind::ServiceCidr), Event::Upsert(cidr("a"))]);
    bench.outlet.begin();
    bench.outlet.complete();
    assert_eq!(bench.delivered(), [Event::Restart(Kind::ServiceCidr), Event::Synced(Kind::ServiceCidr)]);
}

#[test]
fn what_may_not_be_listed_is_waited_for_by_nobody() {
    let mut bench = Bench::new(Kind::ServiceCidr);
    bench.outlet.complete_without();
    assert_eq!(bench.delivered(), [Event::Synced(Kind::ServiceCidr)]);
}
