use ferry_api::object::{AddressKind, IpNet, NodeAddress};

use super::*;
use crate::testing::{READY, UNREADY, name, service, slice};

fn store(events: impl IntoIterator<Item = Event>) -> Store {
    let mut store = Store::new("here");
    for event in events {
        store.apply(event);
    }
    store
}

fn put(service: Service) -> Event {
    Event::Upsert(KubeObject::Service(service))
}

fn put_slice(slice: EndpointSlice) -> Event {
    Event::Upsert(KubeObject::EndpointSlice(slice))
}

fn dirty(names: &[&str]) -> Dirty {
    Dirty { services: names.iter().map(|text| name(text)).collect(), ..Dirty::default() }
}

fn node(text: &str) -> Node {
    Node {
        name: ObjectName::cluster_wide(text),
        zone: None,
        addresses: [NodeAddress { kind: AddressKind::Internal, address: Ok([192, 0, 2, 10].into()) }].into(),
        pod_cidrs: [].into(),
        deleting: false,
        to_be_deleted: false,
    }
}

#[test]
fn what_is_known_already_dirties_nothing() {
    let mut store = Store::new("here");
    let web = || service("web", "10.96.0.10");
    let ends = |conditions| slice("web-1", "web", &[("10.244.1.1", "here", conditions)]);
    assert_eq!(store.apply(put(web())), dirty(&["web"]));
    assert_eq!(store.apply(put(web())), dirty(&[]));
    assert_eq!(store.apply(put_slice(ends(READY))), dirty(&["web"]));
    assert_eq!(store.apply(put_slice(ends(READY))), dirty(&[]));
    assert_eq!(store.apply(put_slice(ends(UNREADY))), dirty(&["web"]));
    assert_eq!(store.apply(Event::Delete(Kind::EndpointSlice, name("other"))), dirty(&[]));
    assert_eq!(store.apply(Event::Delete(Kind::EndpointSlice, name("web-1"))), dirty(&["web"]));
    assert_eq!(store.apply(Event::Delete(Kind::EndpointSlice, name("web-1"))), dirty(&[]));
    assert_eq!(store.apply(Event::Delete(Kind::Service, name("web"))), dirty(&["web"]));
    assert_eq!(store.apply(Event::Delete(Kind::Service, name("web"))), dirty(&[]));
    assert_eq!(store.services.len() + store.owners.len(), 0, "nothing stays behind");
}

#[test]
fn slices_wait_for_their_service() {
    let mut store = store([]);
    assert_eq!(store.apply(put_slice(slice("b", "web", &[]))), dirty(&[]));
    assert_eq!(store.apply(put_slice(slice("a", "web", &[]))), dirty(&[]));
    assert_eq!(store.service_names().count(), 0);
    assert_eq!(store.apply(put(service("web", "10.96.0.10"))), dirty(&["web"]));
    let objects = store.objects(&name("web"));
    assert!(objects.service.is_some());
    assert_eq!(objects.slices.iter().map(|slice| slice.name.name()).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_slice_can_move_to_another_service_and_to_none() {
    let mut store = store([
        put(service("web", "10.96.0.10")),
        put(service("api", "10.96.0.11")),
        put_slice(slice("s", "web", &[("10.244.1.1", "here", READY)])),
    ]);
    assert_eq!(store.apply(put_slice(slice("s", "api", &[]))), dirty(&["api", "web"]));
    assert!(store.objects(&name("web")).slices.is_empty());
    assert_eq!(store.orphans().count(), 0);
    let mut orphan = slice("s", "api", &[]);
    orphan.service = None;
    assert_eq!(store.apply(put_slice(orphan.clone())), dirty(&["api"]));
    assert_eq!(store.apply(put_slice(orphan)), dirty(&[]));
    assert_eq!(store.orphans().map(|found| found.name).collect::<Vec<_>>(), [name("s")]);
    assert_eq!(store.apply(put_slice(slice("s", "api", &[]))), dirty(&["api"]));
    assert_eq!(store.orphans().count(), 0);
}

#[test]
fn slices_without_their_service_are_listed_with_its_name() {
    let mut orphan = slice("orphan", "web", &[]);
    orphan.service = None;
    let mut store = store([
        put(service("web", "10.96.0.10")),
        put_slice(slice("of-web", "web", &[])),
        put_slice(slice("early", "api", &[])),
        put_slice(orphan),
    ]);
    let listed = |store: &Store| -> Vec<(ObjectName, Option<ObjectName>)> {
        store.slices_without_service().map(|(name, owner)| (name.clone(), owner.cloned())).collect()
    };
    let orphan = (name("orphan"), None);
    assert_eq!(listed(&store), [(name("early"), Some(name("api"))), orphan.clone()]);
    store.apply(put(service("api", "10.96.0.11")));
    assert_eq!(listed(&store), std::slice::from_ref(&orphan));
    store.apply(Event::Delete(Kind::Service, name("web")));
    assert_eq!(listed(&store), [(name("of-web"), Some(name("web"))), orphan]);
}

#[test]
fn a_new_list_replaces_the_old_one_at_once() {
    let mut store = store([Event::Restart(Kind::Service)]);
    assert!(!store.synced(Kind::Service));
    store.apply(put(service("stays", "10.96.0.1")));
    store.apply(put(service("goes", "10.96.0.2")));
    store.apply(put_slice(slice("s", "goes", &[])));
    store.apply(Event::Synced(Kind::Service));
    assert!(store.synced(Kind::Service) && !store.synced(Kind::EndpointSlice));

    assert_eq!(store.apply(Event::Restart(Kind::Service)), dirty(&[]));
    assert!(store.synced(Kind::Service), "what is known stays in force");
    assert_eq!(store.apply(put(service("stays", "10.96.0.1"))), dirty(&[]));
    assert_eq!(store.apply(put(service("new", "10.96.0.3"))), dirty(&["new"]));
    assert_eq!(store.service_names().count(), 3);
    assert_eq!(store.apply(Event::Synced(Kind::Service)), dirty(&["goes"]));
    assert_eq!(store.apply(Event::Synced(Kind::Service)), dirty(&[]));
    assert_eq!(store.service_names().map(ObjectName::name).collect::<Vec<_>>(), ["new", "stays"]);

    // a list that breaks off and begins again counts from its second beginning
    store.apply(Event::Restart(Kind::Service));
    store.apply(put(service("stays", "10.96.0.1")));
    store.apply(Event::Restart(Kind::Service));
    store.apply(put(service("new", "10.96.0.3")));
    assert_eq!(store.apply(Event::Synced(Kind::Service)), dirty(&["stays"]));
    // an unreadable object keeps its last readable state
    store.apply(Event::Restart(Kind::Service));
    assert_eq!(store.apply(Event::Unreadable(Kind::Service, name("new"))), dirty(&[]));
    assert_eq!(store.apply(Event::Unreadable(Kind::Service, name("unknown"))), dirty(&[]));
    assert_eq!(store.apply(Event::Synced(Kind::Service)), dirty(&[]));
    assert_eq!(store.service_names().map(ObjectName::name).collect::<Vec<_>>(), ["new"]);
    // the other kinds are as they were
    assert_eq!(store.objects(&name("goes")).slices.len(), 1);
    store.apply(Event::Restart(Kind::EndpointSlice));
    store.apply(Event::Synced(Kind::EndpointSlice));
    assert_eq!(store.objects(&name("goes")).slices.len(), 0);
}

#[test]
fn only_our_node_counts() {
    let put = |node| Event::Upsert(KubeObject::Node(node));
    let ours = || Dirty { node: true, ..Dirty::default() };
    let mut store = Store::new("here");
    assert_eq!(store.apply(put(node("there"))), Dirty::default());
    assert_eq!(store.node(), None);
    assert_eq!(store.apply(put(node("here"))), ours());
    assert_eq!(store.apply(put(node("here"))), Dirty::default());
    assert_eq!(store.apply(put(Node { zone: Some("z1".into()), ..node("here") })), ours());
    assert_eq!(store.apply(Event::Delete(Kind::Node, ObjectName::cluster_wide("there"))), Dirty::default());
    store.apply(Event::Restart(Kind::Node));
    assert_eq!(store.apply(Event::Synced(Kind::Node)), ours());
    assert_eq!(store.node(), None);
}

#[test]
fn service_cidrs_come_and_go() {
    let cidr = |cidr: &str| ServiceCidr {
        name: ObjectName::cluster_wide("kubernetes"),
        cidrs: [cidr.parse::<IpNet>().map_err(|_| cidr.into())].into(),
    };
    let changed = || Dirty { service_cidrs: true, ..Dirty::default() };
    let mut store = Store::new("here");
    assert_eq!(store.apply(Event::Upsert(KubeObject::ServiceCidr(cidr("10.96.0.0/16")))), changed());
    assert_eq!(store.apply(Event::Upsert(KubeObject::ServiceCidr(cidr("10.96.0.0/16")))), Dirty::default());
    assert_eq!(store.apply(Event::Upsert(KubeObject::ServiceCidr(cidr("10.96.0.0/12")))), changed());
    assert_eq!(store.service_cidrs().count(), 1);
    assert_eq!(store.apply(Event::Delete(Kind::ServiceCidr, ObjectName::cluster_wide("kubernetes"))), changed());
    assert_eq!(store.service_cidrs().count(), 0);
}

#[test]
fn affinity_is_counted_per_family() {
    let sticky = || Service { affinity_seconds: Some(10_800), ..service("web", "10.96.0.10") };
    let six = Service { affinity_seconds: Some(10_800), ..service("six", "fd00:10:96::1") };
    let foreign = Service { foreign_proxy: true, ..six.clone() };
    let mut store = store([put(service("web", "10.96.0.10"))]);
    let mut uses = |event| {
        store.apply(event);
        (store.uses_affinity(Family::V4), store.uses_affinity(Family::V6))
    };
    assert_eq!(uses(put(service("web", "10.96.0.10"))), (false, false));
    assert_eq!(uses(put(sticky())), (true, false));
    assert_eq!(uses(put(foreign)), (true, false));
    assert_eq!(uses(put(six)), (true, true));
    assert_eq!(uses(put(service("web", "10.96.0.10"))), (false, true));
    assert_eq!(uses(Event::Delete(Kind::Service, name("six"))), (false, false));
}

#[test]
fn merged_dirt_is_all_dirt() {
    let mut all = Dirty::default();
    assert!(all.is_empty());
    for one in [dirty(&["a"]), Dirty { node: true, ..dirty(&[]) }, Dirty { service_cidrs: true, ..dirty(&[]) }] {
        assert!(!one.is_empty(), "{one:?}");
    }
    all.merge(dirty(&["a"]));
    all.merge(Dirty { node: true, ..dirty(&["b"]) });
    all.merge(Dirty { service_cidrs: true, ..Dirty::default() });
    assert_eq!(all, Dirty { node: true, service_cidrs: true, ..dirty(&["a", "b"]) });
}

#[test]
fn what_finds_no_room_is_left_out_and_counted() {
    let mut store = Store::with_limits("here", Limits { objects: 2, bytes: usize::MAX });
    for service in [service("a", "10.96.0.1"), service("b", "10.96.0.2"), service("c", "10.96.0.3")] {
        store.apply(put(service));
    }
    assert_eq!((store.service_names().count(), store.left_out()), (2, 1));
    store.apply(put(service("a", "10.96.0.9")));
    assert_eq!(store.left_out(), 1, "what is known may change");
    store.apply(Event::Delete(Kind::Service, name("b")));
    assert_eq!(store.apply(put(service("c", "10.96.0.3"))), dirty(&["c"]));
    for number in 1..=3 {
        store.apply(put_slice(slice(&format!("c-{number}"), "c", &[])));
    }
    assert_eq!((store.objects(&name("c")).slices.len(), store.left_out()), (2, 2));
}

#[test]
fn service_cidrs_find_room_as_other_objects_do() {
    let mut store = Store::with_limits("here", Limits { objects: 1, bytes: usize::MAX });
    let mut put = |text: &str, cidr: &str| {
        let cidr = ServiceCidr { name: ObjectName::cluster_wide(text), cidrs: [Ok(cidr.parse().unwrap())].into() };
        let dirty = store.apply(Event::Upsert(KubeObject::ServiceCidr(cidr)));
        (dirty.service_cidrs, store.left_out())
    };
    assert_eq!(put("a", "10.96.0.0/16"), (true, 0));
    assert_eq!(put("b", "10.97.0.0/16"), (false, 1));
    assert_eq!(put("c", "10.98.0.0/16"), (false, 2));
    assert_eq!(put("a", "10.96.0.0/12"), (true, 2), "what is known may change");
}

#[test]
fn a_service_that_changes_takes_the_room_of_one() {
    let web = |address| service("web", address);
    let ends = slice("s", "web", &[("10.244.1.1", "here", READY)]);
    let bytes = web("10.96.0.1").weight_bytes() + ends.weight_bytes();
    let mut store = Store::with_limits("here", Limits { objects: 10, bytes });
    for address in ["10.96.0.1", "10.96.0.2", "10.96.0.3"] {
        assert_eq!(store.apply(put(web(address))), dirty(&["web"]));
    }
    assert_eq!(store.apply(put_slice(ends.clone())), dirty(&["web"]));
    assert_eq!((store.objects(&name("web")).slices, store.left_out()), (vec![&ends], 0));
}

#[test]
fn bytes_are_counted_as_they_come_and_go() {
    let small = slice("s", "a", &[("10.0.0.1", "", READY)]);
    let addresses: Vec<String> = (0..200).map(|last| format!("10.0.0.{last}")).collect();
    let many: Vec<_> = addresses.iter().map(|address| (address.as_str(), "", READY)).collect();
    let large = slice("s", "a", &many);
    let one = service("a", "10.96.0.1");
    let bytes = one.weight_bytes() + large.weight_bytes() - 1;
    let mut store = Store::with_limits("here", Limits { objects: 10, bytes });
    for _ in 0..3 {
        store.apply(put(one.clone()));
        store.apply(put_slice(small.clone()));
        store.apply(put_slice(large.clone()));
        assert_eq!(store.objects(&name("a")).slices, [&small], "the last state stays");
        store.apply(Event::Delete(Kind::Service, name("a")));
        // now there is room
        store.apply(put_slice(large.clone()));
        assert_eq!(store.objects(&name("a")).slices, [&large]);
        store.apply(Event::Delete(Kind::EndpointSlice, name("s")));
        assert_eq!(store.load.bytes, 0);
    }
    assert_eq!(store.left_out(), 3);
    let mut odd = service("b", "10.96.0.2");
    odd.external_ips = [Err("x".repeat(bytes).into())].into();
    store.apply(put(odd));
    assert_eq!((store.service_names().count(), store.left_out()), (0, 4), "texts count");
}

fn services(list: &[(&str, &str)]) -> Vec<KubeObject> {
    list.iter().map(|(name, ip)| KubeObject::Service(service(name, ip))).collect()
}

#[test]
fn restored_objects_serve_until_a_list_is_complete() {
    let mut store = Store::new("here");
    let kept = services(&[("a", "10.96.0.1"), ("b", "10.96.0.2")]);
    assert_eq!(store.restore(Kind::Service, kept.clone()), dirty(&["a", "b"]));
    assert!(store.synced(Kind::Service) && !store.synced(Kind::EndpointSlice));
    assert_eq!(store.apply(Event::Restart(Kind::Service)), dirty(&[]));
    assert_eq!(store.apply(put(service("a", "10.96.0.1"))), dirty(&[]), "unchanged");
    assert_eq!(store.apply(Event::Synced(Kind::Service)), dirty(&["b"]), "deleted meanwhile");
    assert_eq!(store.restore(Kind::Service, kept), dirty(&[]), "a list was complete");
    assert_eq!(store.service_names().count(), 1);
}

#[test]
fn restored_objects_never_replace_listed_ones() {
    // The list has begun, and goes on behind the objects of the earlier run.
    let mut store = store([Event::Restart(Kind::Service), put(service("a", "10.96.0.9"))]);
    let kept = services(&[("a", "10.96.0.1"), ("b", "10.96.0.2"), ("c", "10.96.0.3")]);
    assert_eq!(store.restore(Kind::Service, kept), dirty(&["b", "c"]));
    let known = store.objects(&name("a")).service.unwrap().cluster_ip.clone();
    assert_eq!(known, Some(Ok([10, 96, 0, 9].into())), "the listed one is newer");
    assert_eq!(store.apply(put(service("c", "10.96.0.3"))), dirty(&[]));
    assert_eq!(store.apply(Event::Synced(Kind::Service)), dirty(&["b"]));
    let names: Vec<_> = store.service_names().map(ObjectName::name).collect();
    assert_eq!(names, ["a", "c"]);
}

#[test]
fn only_objects_of_the_kind_are_restored() {
    let mut store = Store::new("here");
    let other = [KubeObject::Node(node("here")), KubeObject::EndpointSlice(slice("a", "web", &[]))];
    assert_eq!(store.restore(Kind::Service, other.clone()), dirty(&[]));
    assert!(store.node().is_none());
    assert!(store.restore(Kind::Node, other).node);
    assert_eq!(store.node(), Some(&node("here")));
}

#[test]
fn services_are_read_from_any_name_on() {
    let store =
        store(["c", "a", "b"].map(|name| put(service(name, "10.96.0.1"))).into_iter().chain([put_slice(slice(
            "s",
            "aa",
            &[],
        ))]));
    let names = |after: Option<&str>| -> Vec<String> {
        let after = after.map(name);
        store.services_after(after.as_ref()).map(|(name, _)| name.name().to_owned()).collect()
    };
    assert_eq!(names(None), ["a", "b", "c"], "slices alone make no service");
    assert_eq!(names(Some("a")), ["b", "c"]);
    assert_eq!(names(Some("aa")), ["b", "c"]);
    assert_eq!(names(Some("c")), [""; 0]);
}
