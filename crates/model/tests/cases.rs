//! Case folders: objects, Node and configuration in, `want.model` out, and `want.model-ipvs` where annotations about balancing
//! are what the case is about.
//!
//! `FERRY_ACCEPT=1 cargo test -p ferry-model --test suite cases::` writes the model's decisions; review the diff like code.

use ferry_conformance::{Case, golden};
use ferry_model::Profile;
use ferry_model::explain::explain;

#[test]
fn the_model_says_what_each_case_wants() {
    let cases = Case::all();
    assert!(cases.len() >= 165, "only {} cases found", cases.len());
    golden::compare(&cases, "want.model", |case| {
        explain(&case.settings, &case.local_addresses, &case.store, &Profile::NFTABLES)
    });
}

#[test]
fn the_model_balances_as_each_case_wants() {
    let mut cases = Case::all();
    cases.retain(|case| case.name.starts_with("balancing"));
    assert!(cases.len() >= 4, "only {} cases found", cases.len());
    golden::compare(&cases, "want.model-ipvs", |case| {
        explain(&case.settings, &case.local_addresses, &case.store, &Profile::IPVS)
    });
}
