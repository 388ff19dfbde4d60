//! Compares the compiled rules with those of upstream's proxy for the same objects: the same chains and the same rules.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panic")]

use std::collections::{BTreeMap, BTreeSet};

use crate::mode::ThisMode;
use ferry_api::object::Family;
use ferry_conformance::{Case, Decided};
use ferry_lab::iptables::left_by_upstream;
use ferry_plane_iptables::{Features, Iptables, render};

/// The rules of each chain of each table.
type Chains = BTreeMap<(String, String), Vec<String>>;

/// Parses the output of `iptables-save`. Empty built-in chains are left out.
fn chains(saved: &str) -> Chains {
    let mut chains = Chains::new();
    let mut table = String::new();
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            name.clone_into(&mut table);
        } else if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split_once(' ').unwrap().0;
            chains.insert((table.clone(), name.to_owned()), Vec::new());
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let (name, rule) = rule.split_once(' ').unwrap();
            // Tools up to 1.8.9 print a superfluous blank.
            let rule = rule.replace("--nfacct-name  ", "--nfacct-name ");
            chains.get_mut(&(table.clone(), name.to_owned())).unwrap().push(rule);
        }
    }
    chains.retain(|(_, name), rules| name.starts_with("KUBE-") || !rules.is_empty());
    chains
}

fn ours(family: Family, features: Features) -> Chains {
    let objects = include_str!("../../../testdata/upstream/objects.yaml").to_owned();
    let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
                  clusterCIDR: 10.180.0.0/16\nhostnameOverride: node-a";
    let case = Case::of("upstream", config, &[objects]);
    let objects = Decided::of::<ThisMode>(&case, family).compiled_by(&Iptables::new(family, features));
    chains(&render::ruleset(family, &objects))
}

/// Asserts that the rules of this version of upstream's proxy are ours with these features.
fn the_same(version: &str, features: Features) {
    for family in Family::ALL {
        let upstream = chains(&left_by_upstream(version, family));
        let ours = ours(family, features);
        assert!(upstream.len() > 15);
        assert_eq!(ours.keys().collect::<Vec<_>>(), upstream.keys().collect::<Vec<_>>());
        for (id, ours) in ours {
            let upstream = &upstream[&id];
            let places = ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL"];
            if places.contains(&&*id.1) {
                let set = |rules: &[String]| rules.iter().cloned().collect::<BTreeSet<_>>();
                assert_eq!(set(&ours), set(upstream), "{version} {family} {id:?}");
                assert_eq!(ours.len(), upstream.len(), "{version} {family} {id:?}");
                if id == ("nat".to_owned(), "KUBE-SERVICES".to_owned()) {
                    assert_eq!(ours.last(), upstream.last(), "node ports come last");
                }
            } else {
                assert_eq!(ours, *upstream, "{version} {family} {id:?}");
            }
        }
    }
}

#[test]
fn the_same_as_1_36() {
    the_same(
        "1.36",
        Features {
            counts_invalid: true,
            counts_localhost: true,
            drops_invalid: true,
            guards_loopback: false,
            has_sets: false,
            lacks_mangle: false,
        },
    );
}

/// That version has no counters.
#[test]
fn the_same_as_1_30() {
    the_same(
        "1.30",
        Features {
            counts_invalid: false,
            counts_localhost: false,
            drops_invalid: true,
            guards_loopback: false,
            has_sets: false,
            lacks_mangle: false,
        },
    );
}
