//! The iptables mode, as the shared tests of all modes use it.

use ferry_api::object::Family;
use ferry_conformance::{Mode, neighbours};
use ferry_plane_iptables::{Features, IptKey, IptObject, Iptables, render, testing};

pub(crate) enum ThisMode {}

impl Mode for ThisMode {
    type Compiler = Iptables;
    const NAME: &'static str = "iptables";
    const GOLDEN: &'static str = "want.iptables";

    fn compiler(family: Family, localhost: bool) -> Iptables {
        let features = Features {
            counts_invalid: true,
            counts_localhost: localhost,
            drops_invalid: true,
            guards_loopback: false,
            has_sets: true,
            lacks_mangle: false,
        };
        Iptables::new(family, features)
    }

    fn text(family: Family, objects: &[IptObject]) -> String {
        let rules = without_what_is_always_there(&render::ruleset(family, objects));
        format!("# {family}\n{}{rules}", render::sets(family, objects))
    }

    fn is_leaf(key: &IptKey) -> bool {
        matches!(key, IptKey::OwnedRules(_))
    }

    /// An owner has the rules of its neighbour.
    fn spoiled(objects: &[IptObject], index: usize) -> Vec<IptObject> {
        let owned: Vec<_> =
            objects
                .iter()
                .filter_map(|object| {
                    if let IptObject::OwnedRules(key, rules) = object { Some((*key, rules.clone())) } else { None }
                })
                .collect();
        let Some([(key, _), (_, rules)]) = neighbours(&owned, index) else { return Vec::new() };
        vec![IptObject::OwnedRules(*key, rules.clone())]
    }

    fn varied(config: String, seed: u64) -> String {
        if !seed.is_multiple_of(3) {
            return config;
        }
        assert!(config.contains("iptables: {"), "{config}");
        config.replace("iptables: {", "iptables: {localhostNodePorts: false, ")
    }

    fn well_made(objects: &[IptObject], name: &str) {
        testing::well_made(objects, name);
    }
}

/// Leaves out chains without rules and jumps from built-in chains: they are the same in every case, and the tests of this crate's
/// base cover them.
fn without_what_is_always_there(ruleset: &str) -> String {
    let built_in = ["INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING"];
    let kept = ruleset.lines().filter(|line| match line.strip_prefix("-A ") {
        Some(rule) => !built_in.iter().any(|chain| rule.starts_with(&format!("{chain} "))),
        None => !line.starts_with(':') && *line != "COMMIT" && *line != "*mangle",
    });
    kept.fold(String::new(), |text, line| text + line + "\n")
}
