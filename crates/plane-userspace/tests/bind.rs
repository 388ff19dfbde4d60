//! The way `bind`: golden objects of the case folders, the verdict of the objects on each packet against the model's, in random clusters
//! and after any history, too.
//!
//! `FERRY_ACCEPT=1 cargo test -p ferry-plane-userspace --test suite bind::` writes the expected files; review the diff like code.

use ferry_api::object::Family;
use ferry_conformance::{Mode, cases, clusters, costs, history, neighbours, shapes, transitions, twins};
use ferry_plane_userspace::bind::{BindKey, BindObject, Binding, render};

enum ThisWay {}

impl Mode for ThisWay {
    type Compiler = Binding;
    const NAME: &'static str = "userspace";
    const GOLDEN: &'static str = "want.userspace-bind";
    /// Only datagrams of clients that a listener doesn't serve are dropped.
    const LEAST: usize = 40;

    fn compiler(family: Family, _localhost: bool) -> Binding {
        Binding::new(family, true)
    }

    fn text(_family: Family, objects: &[BindObject]) -> String {
        render::objects(objects)
    }

    fn is_leaf(key: &BindKey) -> bool {
        matches!(key, BindKey::Address(_) | BindKey::Listener(_))
    }

    /// A listener serves the service port of its neighbour.
    fn spoiled(objects: &[BindObject], index: usize) -> Vec<BindObject> {
        let listeners: Vec<_> = objects
            .iter()
            .filter_map(|object| {
                if let BindObject::Listener(place, serves) = object { Some((*place, serves.clone())) } else { None }
            })
            .collect();
        let Some([(place, _), (_, serves)]) = neighbours(&listeners, index) else { return Vec::new() };
        vec![BindObject::Listener(*place, serves.clone())]
    }
}

#[test]
fn the_objects_are_what_each_case_wants() {
    cases::the_rulesets_are_what_each_case_wants::<ThisWay>();
}

#[test]
fn the_objects_do_what_the_model_decides() {
    cases::the_rules_do_what_the_model_decides::<ThisWay>();
}

#[test]
fn objects_are_well_made() {
    cases::objects_are_well_made::<ThisWay>();
}

#[test]
fn the_objects_of_random_clusters_do_what_the_model_decides() {
    clusters::the_rules_do_what_the_model_decides::<ThisWay>();
}

#[test]
fn any_history_of_a_cluster_ends_as_one_full_build_does() {
    clusters::any_history_ends_as_one_full_build_does::<ThisWay>();
}

#[test]
fn two_engines_agree_and_rest() {
    twins::two_agree_and_rest::<ThisWay>(30, |_changes| 0);
}

#[test]
fn damage_is_mended_in_time() {
    twins::damage_is_mended_in_time::<ThisWay>(30);
}

#[test]
fn an_engine_comes_to_rest_after_faults() {
    twins::one_comes_to_rest_after_faults::<ThisWay>(30);
}

#[test]
fn any_case_may_follow_any_other() {
    transitions::any_case_may_follow_any_other::<ThisWay>();
}

#[test]
fn a_service_leaves_nothing_of_what_it_was() {
    shapes::a_service_leaves_nothing_of_what_it_was::<ThisWay>();
}

#[test]
fn any_history_ends_in_the_objects_of_one_full_build() {
    history::any_history_ends_in_the_objects_of_one_full_build::<ThisWay>();
}

#[test]
fn a_repair_keeps_what_a_refused_service_refers_to() {
    history::a_repair_keeps_what_a_refused_service_refers_to::<ThisWay>();
}

#[test]
fn a_loss_beside_a_deletion_that_fails_half_way() {
    history::a_loss_beside_a_deletion_that_fails_half_way::<ThisWay>();
}

#[test]
fn a_repair_of_one_key_compiles_few_units() {
    costs::a_repair_of_one_key_compiles_few_units::<ThisWay>();
}

#[test]
fn hints_lead_to_the_units() {
    costs::hints_lead_to_the_units::<ThisWay>();
}

#[test]
fn a_replaced_endpoint_is_one_change_of_the_relay() {
    let (_, outcome) = history::replace_one_endpoint::<ThisWay>();
    assert_eq!(outcome.ops, 1);
}
