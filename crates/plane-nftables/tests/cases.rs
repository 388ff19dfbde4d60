//! The case folders in this mode: golden rulesets, each accepted unchanged by the kernel, and for each case and each packet of
//! the matrix the verdict of the rules is the model's.
//!
//! `FERRY_ACCEPT=1 cargo test -p ferry-plane-nftables --test suite cases::` writes the rulesets; review the diff like code.

#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use std::time::Instant;

use crate::mode::ThisMode;
use ferry_api::object::Family;
use ferry_conformance::{Decided, cases};
use ferry_kernel::netns::Namespace;
use ferry_plane::{Delta, Extent, Kernel, SyncEngine};
use ferry_plane_nftables::{NftObject, NftablesCommitLock, engine};

#[test]
fn the_rulesets_are_what_each_case_wants() {
    cases::the_rulesets_are_what_each_case_wants::<ThisMode>();
}

#[test]
fn the_rules_do_what_the_model_decides() {
    cases::the_rules_do_what_the_model_decides::<ThisMode>();
}

#[test]
fn objects_are_well_made() {
    cases::objects_are_well_made::<ThisMode>();
}

#[test]
fn the_kernel_takes_every_ruleset() {
    for family in Family::ALL {
        Namespace::new().unwrap().run(|| each_case_in_the_kernel(family)).unwrap();
    }
}

/// One engine applies case after case, so that every transition is tested too.
fn each_case_in_the_kernel(family: Family) {
    let mut engine = engine(family, NftablesCommitLock::default()).unwrap();
    let mut before = Delta::default();
    for case in cases::all::<ThisMode>() {
        let next = Decided::of::<ThisMode>(&case, family).delta(&before);
        engine.offer(next.clone());
        before = next;
        let outcome = engine.sync(Instant::now());
        assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{}: {outcome:?}", case.name);
        let mut wanted = engine.objects();
        wanted.dedup();
        // The kernel half leaves out sets whose deletion is deferred by a second.
        let found = engine.kernel_mut().read_back(&Extent::All).unwrap();
        let unwanted = |object: &&NftObject| !ferry_plane::Object::spare(*object) && !wanted.contains(object);
        assert_eq!(found.iter().find(unwanted), None, "{}", case.name);
        assert_eq!(wanted.iter().find(|object| !found.contains(object)), None, "{}", case.name);
    }
}
