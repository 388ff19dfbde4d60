//! References between objects, by which tests check the order of operations: an object needs those that it names.

use ferry_kernel::iptables::{Match, Rule, Table, Target};
use ferry_plane::memory::Refers;

use crate::names::Class;
use crate::object::{ChainId, IptKey, IptObject, RuleOwner};

impl Refers for IptObject {
    fn refers_to(&self) -> Vec<IptKey> {
        match self {
            Self::Chain(id, rules) => {
                let sets = rules.0.iter().flat_map(|rule| &rule.matches).filter_map(set);
                rules.0.iter().filter_map(|rule| target(id.table, rule)).chain(sets).collect()
            }
            Self::SourceSet(..) | Self::SharedChain(_) | Self::RouteLocalnet | Self::ForeignRule(..) => Vec::new(),
            Self::OwnedRules(key, rules) => {
                // Built-in chains always exist.
                let chain = (!matches!(key.owner, RuleOwner::Jump(_))).then_some(IptKey::SharedChain(key.chain));
                chain.into_iter().chain(rules.iter().filter_map(|rule| target(key.chain.table, rule))).collect()
            }
        }
    }
}

/// The set that a match names.
fn set(extension: &Match) -> Option<IptKey> {
    match extension {
        Match::InSet { set } => Some(IptKey::SourceSet(**set)),
        _ => None,
    }
}

/// The chain that a rule jumps to.
fn target(table: Table, rule: &Rule) -> Option<IptKey> {
    let Target::Jump(name) = rule.target else { return None };
    let id = ChainId { table, name };
    Some(if Class::of(name) == Some(Class::Shared) { IptKey::SharedChain(id) } else { IptKey::Chain(id) })
}
