use ferry_api::object::{AddressType, EndpointSliceBuilder, Family, Hints, KubeObject, Protocol};

use super::*;
use crate::resolve::resolve;
use crate::state::PortState;
use crate::store::{Event, Store};
use crate::testing::{READY, UNREADY, context, ip, name, service, slice_port};

/// Endpoints .1 here in zone a, .2 there in zone b, .3 there without a zone, .4 here that isn't ready, .5 in zone b without a node.
fn store(annotations: BalancingAnnotations) -> Store {
    let mut slice = EndpointSliceBuilder::default();
    for (last, conditions, node, zone) in [
        (1, READY, Some("here"), Some("a")),
        (2, READY, Some("there"), Some("b")),
        (3, READY, Some("there"), None),
        (4, UNREADY, Some("here"), Some("a")),
        (5, READY, None, Some("b")),
    ] {
        slice.push(Ok([10, 244, 1, last].into()), conditions, node, zone, Hints::default());
    }
    let slice = slice.build(name("web-1"), Some(name("web")), AddressType::Ipv4, vec![slice_port("", 8080)]);
    let service = Service { balancing: Some(Box::new(annotations)), ..service("web", "10.96.0.10") };
    let mut store = Store::new("here");
    store.apply(Event::Upsert(KubeObject::Service(service)));
    store.apply(Event::Upsert(KubeObject::EndpointSlice(slice)));
    store
}

fn annotations(scheduler: Option<&str>, zones: Option<&str>, local: Option<&str>) -> BalancingAnnotations {
    let text = |text: Option<&str>| text.map(Box::from);
    BalancingAnnotations { scheduler: text(scheduler), weight_zones: text(zones), weight_local: text(local) }
}

/// The port of the Service on a node where wlc is configured and mh is missing, and the diagnostics.
fn resolved(profile: &Profile, annotations: BalancingAnnotations) -> (PortState, Vec<(Cause, String)>) {
    let missing = [(Scheduler::Mh, "load the module ip_vs_mh".to_owned())].into();
    let context = Context { scheduler: Scheduler::Wlc, missing_schedulers: missing, ..context() };
    let store = store(annotations);
    let (mut state, found) = resolve(&store.objects(&name("web")), store.claims(), &context, profile, Family::V4);
    let port = state.ports.pop().unwrap();
    assert_eq!(port.protocol, Protocol::Tcp);
    assert_eq!(port.scheduler(&context), port.balance.as_ref().and_then(|own| own.scheduler).unwrap_or(Scheduler::Wlc));
    (port, found.into_iter().map(|found| (found.cause, format!("{}: {}", found.field, found.problem()))).collect())
}

fn weights(port: &PortState) -> Vec<u32> {
    let all = [1, 2, 3, 4, 5].map(|last| Endpoint { address: ip(&format!("10.244.1.{last}")), port: 8080 });
    all.iter().map(|endpoint| port.weight(endpoint)).collect()
}

#[test]
fn schedulers_and_weights_that_are_followed() {
    for (scheduler, zones, local, wanted, want_weights) in [
        (None, None, None, None, [1, 1, 1, 1, 1]),
        (Some("sh"), None, None, Some(Scheduler::Sh), [1, 1, 1, 1, 1]),
        (Some("twos"), Some("a=3,b=2"), None, Some(Scheduler::Twos), [3, 2, 1, 1, 2]),
        (None, Some(" a = 3 , c=9"), Some("2"), None, [6, 1, 1, 1, 1]),
        (None, Some("a=65535"), Some("65535"), None, [65_535, 1, 1, 1, 1]),
        (None, None, Some("7"), None, [7, 1, 1, 1, 1]),
        (Some("rr"), Some("a=1,b=1"), Some("1"), Some(Scheduler::Rr), [1, 1, 1, 1, 1]),
    ] {
        let (port, found) = resolved(&Profile::IPVS, annotations(scheduler, zones, local));
        assert_eq!(found, []);
        assert_eq!(port.balance.as_ref().and_then(|balance| balance.scheduler), wanted);
        assert_eq!(weights(&port), want_weights, "{zones:?} {local:?}");
        let differs = wanted.is_some() || want_weights != [1; 5];
        assert_eq!(port.balance.is_some(), differs, "{scheduler:?} {zones:?} {local:?}");
        if let Some(balance) = port.balance {
            assert!(balance.weights.is_sorted() && balance.weights.iter().all(|(_, weight)| *weight != 1));
        }
    }
}

#[test]
fn what_can_not_be_followed_costs_itself_only() {
    let names = "rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh, twos";
    let (port, found) = resolved(&Profile::IPVS, annotations(Some("fastest"), Some("a=3"), Some("2")));
    assert_eq!((port.balance.as_ref().unwrap().scheduler, weights(&port)), (None, vec![6, 1, 1, 1, 1]));
    let message = format!(
        "metadata.annotations[ferry.io/ipvs-scheduler]: \"fastest\" is no scheduler: the configured one, wlc, is used; known \
         are {names}"
    );
    assert_eq!(found, [(Cause::Balancing, message)]);
    for name in ["", "WLC", "wlc "] {
        let (port, found) = resolved(&Profile::IPVS, annotations(Some(name), None, None));
        assert_eq!((port.balance, found.len()), (None, 1), "{name:?}");
    }
    for (zones, want_weights, want) in [
        ("", [1, 1, 1, 1, 1], "a value that is empty or no string is no zone with a weight"),
        ("a", [1, 1, 1, 1, 1], "\"a\" is no zone with a weight"),
        ("a=3,", [3, 1, 1, 1, 1], "a value that is empty or no string is no zone with a weight"),
        ("a=0,b=2", [1, 2, 1, 1, 2], "\"0\" is no weight of zone \"a\""),
        ("a=+3,b=2", [1, 2, 1, 1, 2], "\"+3\" is no weight of zone \"a\""),
        ("a=65536,b=2", [1, 2, 1, 1, 2], "\"65536\" is no weight of zone \"a\""),
        ("b=2,a=3=4", [1, 2, 1, 1, 2], "\"3=4\" is no weight of zone \"a\""),
        ("a=3,a=4", [3, 1, 1, 1, 1], "\"a=4\" names no zone, or one that is in the list already"),
        ("=3,b=2", [1, 2, 1, 1, 2], "\"=3\" names no zone, or one that is in the list already"),
    ] {
        let (port, found) = resolved(&Profile::IPVS, annotations(None, Some(zones), None));
        assert_eq!(weights(&port), want_weights, "{zones}");
        let want = format!("metadata.annotations[ferry.io/ipvs-weight-zones]: {want}");
        assert!(matches!(&found[..], [(Cause::Balancing, text)] if text.starts_with(&want)), "{found:?}");
    }
    for local in ["", "0", "-1", "65536", "2.5", "two", "99999999999999999999"] {
        let (port, found) = resolved(&Profile::IPVS, annotations(None, Some("a=3"), Some(local)));
        assert_eq!(weights(&port), [3, 1, 1, 1, 1], "{local}");
        let want = "metadata.annotations[ferry.io/ipvs-weight-local]: ";
        assert!(matches!(&found[..], [(Cause::Balancing, text)] if text.starts_with(want)), "{found:?}");
    }
}

#[test]
fn a_scheduler_that_the_kernel_lacks_is_replaced_by_the_configured_one() {
    let (port, found) = resolved(&Profile::IPVS, annotations(Some("mh"), None, Some("2")));
    assert_eq!((port.balance.as_ref().unwrap().scheduler, weights(&port)), (None, vec![2, 1, 1, 1, 1]));
    let message = "metadata.annotations[ferry.io/ipvs-scheduler]: the kernel of this node doesn't have the scheduler mh: the \
                   configured one, wlc, is used; load the module ip_vs_mh";
    assert_eq!(found, [(Cause::MissingScheduler, message.to_owned())]);
}

#[test]
fn other_modes_ignore_the_annotations() {
    for profile in [&Profile::NFTABLES, &Profile::IPTABLES] {
        let (port, found) = resolved(profile, annotations(Some("fastest"), Some("a"), Some("0")));
        assert_eq!((port.balance, found), (None, Vec::new()));
    }
}
