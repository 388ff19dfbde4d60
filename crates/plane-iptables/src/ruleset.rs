//! Assembles objects into chains with their rules in the kernel's order.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ferry_kernel::iptables::Rule;

use crate::base;
use crate::object::{ChainId, IptObject, OwnedRulesKey, RuleOwner};

/// The rules of each chain, in order.
pub(crate) type Chains<'a> = BTreeMap<ChainId, Vec<AnyRule<'a>>>;

/// A rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyRule<'a> {
    /// one of ours
    Ours(&'a Rule),
    /// a foreign rule, as the tool prints it
    Foreign(&'a str),
}

/// Position of an owner's rules in a chain: jumps at the head, the last inserted one first; then the rules of frontends, in any
/// order, here by owner; then jumps to the node port chain, and the guard.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Position {
    Jump(Reverse<Option<usize>>),
    Frontend(RuleOwner),
    Foreign,
    Last(RuleOwner),
}

// === impl Position ===

impl Position {
    fn of(key: &OwnedRulesKey) -> Self {
        match key.owner {
            RuleOwner::Jump(_) => Self::Jump(Reverse(base::jump_position(key))),
            RuleOwner::NodePorts(_) | RuleOwner::Guard => Self::Last(key.owner),
            RuleOwner::Vip(..) | RuleOwner::NodePort(..) | RuleOwner::HealthCheck(..) => Self::Frontend(key.owner),
        }
    }
}

/// The chains of these objects. Built-in chains are included if they hold a rule.
pub(crate) fn chains(objects: &[IptObject]) -> Chains<'_> {
    let mut chains: Chains<'_> = BTreeMap::new();
    let mut shared: BTreeMap<ChainId, Vec<(Position, Vec<AnyRule<'_>>)>> = BTreeMap::new();
    for object in objects {
        match object {
            IptObject::Chain(id, rules) => {
                chains.entry(*id).or_default().extend(rules.0.iter().map(AnyRule::Ours));
            }
            IptObject::SharedChain(id) => drop(chains.entry(*id).or_default()),
            IptObject::OwnedRules(key, rules) => {
                let lines = rules.iter().map(AnyRule::Ours).collect();
                shared.entry(key.chain).or_default().push((Position::of(key), lines));
            }
            IptObject::ForeignRule(id, text) => {
                shared.entry(*id).or_default().push((Position::Foreign, vec![AnyRule::Foreign(text)]));
            }
            IptObject::SourceSet(..) | IptObject::RouteLocalnet => {}
        }
    }
    for (id, mut shared) in shared {
        shared.sort_by(|(one, _), (other, _)| one.cmp(other));
        chains.entry(id).or_default().extend(shared.into_iter().flat_map(|(_, lines)| lines));
    }
    chains
}
