//! Plausible clusters: states, owners of frontends and diagnostics depend neither on the order of the objects' arrival nor on
//! earlier objects.

use ferry_api::object::{Kind, KubeObject};
use ferry_api::wire::{decode_object, encode_object};
use ferry_conformance::case::objects;
use ferry_conformance::cluster::happens;
use ferry_conformance::property::inputs;
use ferry_conformance::{Case, Cluster, Random};
use ferry_model::explain::explain;
use ferry_model::{Event, Profile, Store};
use proptest::prelude::*;

/// All objects of a cluster as events, in any order.
fn shuffled(cluster: &Cluster, random: &mut Random) -> Vec<Event> {
    let mut events: Vec<Event> = objects("cluster", &cluster.manifest()).into_iter().map(Event::Upsert).collect();
    random.shuffle(&mut events);
    events
}

proptest! {
    #![proptest_config(inputs(48))]

    #[test]
    fn the_order_of_events_does_not_matter(seed in any::<u64>(), moments in 0..40usize) {
        let mut random = Random::new(seed);
        let mut cluster = Cluster::random(seed);
        let mut case = Case::of("cluster", &cluster.config, &[cluster.manifest()]);
        // One store has lived through a history …
        for _ in 0..moments {
            let key = happens(&mut cluster, &mut random);
            case.store.apply(cluster.event(&key));
        }
        // … others learn what is left of it, each in an order of its own.
        let profile = Profile::ALL.iter().cycle().nth(moments % Profile::ALL.len()).unwrap();
        let text_of = |store: &Store| explain(&case.settings, &case.local_addresses, store, profile);
        let wanted = text_of(&case.store);
        for _ in 0..3 {
            let mut store = Store::new(&case.settings.node_name).serving_external_ips(case.settings.external_ips);
            shuffled(&cluster, &mut random).into_iter().for_each(|event| drop(store.apply(event)));
            prop_assert_eq!(store.claims(), case.store.claims());
            prop_assert_eq!(&text_of(&store), &wanted);
        }
    }

    #[test]
    fn a_snapshot_decides_as_the_objects_it_was_written_from(seed in any::<u64>()) {
        let cluster = Cluster::random(seed);
        let case = Case::of("cluster", &cluster.config, &[cluster.manifest()]);
        let encoded = objects("cluster", &cluster.manifest()).into_iter().map(|object| encode_object(&object));
        let decoded: Vec<KubeObject> = encoded.map(|text| decode_object(&text).unwrap()).collect();
        let mut store = Store::new(&case.settings.node_name).serving_external_ips(case.settings.external_ips);
        for kind in [Kind::Node, Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr] {
            store.restore(kind, decoded.clone());
        }
        for profile in Profile::ALL {
            let text_of = |store: &Store| explain(&case.settings, &case.local_addresses, store, profile);
            prop_assert_eq!(text_of(&store), text_of(&case.store));
        }
    }
}

#[test]
fn clusters_are_full_of_life() {
    let texts = |profile: &Profile| -> String {
        let of = |seed| {
            let cluster = Cluster::random(seed);
            assert_eq!(cluster.manifest(), Cluster::random(seed).manifest());
            let case = Case::of("cluster", &cluster.config, &[cluster.manifest()]);
            explain(&case.settings, &case.local_addresses, &case.store, profile)
        };
        (0..40).map(of).collect()
    };
    let text = texts(&Profile::NFTABLES);
    for sight in [
        "externalIP [2001:db8:2::",
        "loadBalancer 203.0.113.",
        "nodePort 30",
        " sources ",
        " affinity 600 s",
        "pod=cluster host=cluster+masquerade other=local",
        "pod=cluster host=cluster+masquerade other=drop",
        "pod=local host=cluster+masquerade other=local",
        "pod=drop host=drop other=drop",
        "pod=reject host=reject other=reject",
        "pod=local host=local+masquerade other=local+masquerade",
        "port - SCTP",
        "pods not known",
        "pods through veth*",
        "zone -",
        "local endpoints 1",
        "nothing to serve",
        "which comes first",
        "service CIDRs 10.96.0.0/16",
    ] {
        assert!(text.contains(sight), "no {sight} in forty clusters");
    }
    let text = texts(&Profile::IPVS);
    for sight in [
        "scheduler wlc",
        "=12",
        "=3",
        "=2",
        "nodePort not at 192.0.2.110",
        "\"fastest\" is no scheduler",
        "\"0\" is no weight of zone \"zone-b\"",
        "pod=local host=local other=local",
    ] {
        assert!(text.contains(sight), "no {sight} in forty clusters of mode ipvs");
    }
}
