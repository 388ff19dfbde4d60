//! Checks invariants of compiled objects, for the tests of this crate and the fuzz targets.

use std::collections::{BTreeMap, BTreeSet};

use ferry_kernel::iptables::{Match, Rule, Target};
use ferry_plane::Object;

use crate::names;
use crate::object::{ChainId, IptKey, IptObject};

/// Checks that keys are unique, that rules jump to existing chains of lower rank and name existing sets, and that each chain is jumped to
/// and each set named. `name`
/// identifies the objects in messages.
///
/// # Panics
/// If an invariant doesn't hold.
pub fn well_made(objects: &[IptObject], name: &str) {
    let mut keys = BTreeSet::new();
    let mut ranks: BTreeMap<ChainId, u8> = BTreeMap::new();
    for object in objects {
        assert!(keys.insert(object.key()), "{name}: {object} is there twice");
        if let IptKey::Chain(id) | IptKey::SharedChain(id) = object.key() {
            assert!(ranks.insert(id, object.rank()).is_none(), "{name}: {object}");
        }
    }
    let mut led = BTreeSet::new();
    for object in objects {
        let (table, rules) = match object {
            IptObject::Chain(id, rules) => (id.table, &rules.0),
            IptObject::OwnedRules(key, rules) => (key.chain.table, rules),
            IptObject::SharedChain(_)
            | IptObject::SourceSet(..)
            | IptObject::RouteLocalnet
            | IptObject::ForeignRule(..) => continue,
        };
        for rule in rules {
            let named = rule.matches.iter().filter_map(|each| match each {
                Match::InSet { set } => Some(IptKey::SourceSet(**set)),
                _ => None,
            });
            led.extend(named.inspect(|set| assert!(keys.contains(set), "{name}: {object} without {set}")));
            let Target::Jump(chain) = rule.target else { continue };
            let rank = ranks.get(&ChainId { table, name: chain });
            assert!(rank.is_some_and(|rank| *rank < object.rank()), "{name}: {object}");
        }
    }
    let sets: BTreeSet<IptKey> = keys.into_iter().filter(|key| matches!(key, IptKey::SourceSet(_))).collect();
    assert_eq!(led, sets, "{name}: each set has a rule");
    // A node may have no address that serves node ports: then nothing jumps to their chain.
    for (id, _) in ranks.into_iter().filter(|(id, _)| id.name != names::NODE_PORTS) {
        let leads = |rules: &[Rule]| rules.iter().any(|rule| rule.target == Target::Jump(id.name));
        let is_led_to = objects.iter().any(|object| match object {
            IptObject::Chain(from, rules) => from.table == id.table && leads(&rules.0),
            IptObject::OwnedRules(key, rules) => key.chain.table == id.table && leads(rules),
            IptObject::SharedChain(_)
            | IptObject::SourceSet(..)
            | IptObject::RouteLocalnet
            | IptObject::ForeignRule(..) => false,
        });
        assert!(is_led_to || [names::CANARY, names::MARK_MASQ].contains(&id.name), "{name}: {id}");
    }
}
