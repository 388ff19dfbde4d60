//! Reasons agree with states: an endpoint is in a pool if and only if a policy chooses it, and each other one has a reason.

use ferry_api::object::Family;
use ferry_conformance::property::inputs;
use ferry_conformance::{Case, Cluster};
use ferry_model::{Endpoint, EndpointReasons, Pool, Profile, facts, reasons, resolve};
use proptest::prelude::*;

/// Compares all Services of a case in both families; returns the number of endpoints.
fn compared(case: &Case) -> usize {
    let (mut count, profile) = (0, &Profile::NFTABLES);
    for family in Family::ALL {
        let context = facts::context(&case.settings, case.store.node(), &case.local_addresses, profile, family);
        for name in case.store.service_names() {
            let objects = case.store.objects(name);
            let (state, _) = resolve(&objects, case.store.claims(), &context, profile, family);
            let ports = reasons(&objects, &context, family);
            assert_eq!(ports.len(), state.ports.len(), "{}: {name} {family}", case.name);
            for (port, of) in ports.iter().zip(&state.ports) {
                assert_eq!((port.name, port.protocol), (&*of.name, of.protocol), "{}: {name}", case.name);
                let chosen = |policy: fn(&EndpointReasons<'_>) -> bool| -> Vec<Endpoint> {
                    port.endpoints.iter().filter(|reasons| policy(reasons)).map(|reasons| reasons.endpoint).collect()
                };
                let agrees = |pool: &Pool, chosen: Vec<Endpoint>| pool.is_empty() || *pool.0 == chosen;
                // A policy that no frontend uses has an empty pool.
                assert!(agrees(&of.cluster, chosen(|of| of.cluster.is_ok())), "{}: {name} {port:#?}", case.name);
                assert!(agrees(&of.local, chosen(|of| of.local.is_ok())), "{}: {name} {port:#?}", case.name);
                count += port.endpoints.len();
            }
        }
    }
    count
}

#[test]
fn reasons_agree_with_the_states_of_each_case() {
    let count: usize = Case::all().iter().map(compared).sum();
    assert!(count > 500, "{count} endpoints");
}

proptest! {
    #![proptest_config(inputs(32))]

    #[test]
    fn reasons_agree_with_the_states_of_random_clusters(seed in any::<u64>()) {
        let cluster = Cluster::random(seed);
        compared(&Case::of("cluster", &cluster.config, &[cluster.manifest()]));
    }
}
