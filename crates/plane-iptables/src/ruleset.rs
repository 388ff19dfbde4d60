//! Assembles objects into chains with their rules in the kernel's order.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ferry_kernel::iptables::Rule;

use crate::base;
use crate::object::{ChainId, IptObject, OwnedRulesKey, Owner};

/// The rules of each chain, in order.
pub(crate) type Chains<'a> = BTreeMap<ChainId, Vec<Line<'a>>>;

/// A rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Line<'a> {
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
    Frontend(Owner),
    Foreign,
    Last(Owner),
}

// === impl Position ===

impl Position {
    fn of(key: &OwnedRulesKey) -> Self {
        match key.owner {
            Owner::Jump(_) => Self::Jump(Reverse(base::jump_position(key))),
            Owner::NodePorts(_) | Owner::Guard => Self::Last(key.owner),
            Owner::Vip(..) | Owner::NodePort(..) | Owner::HealthCheck(..) => Self::Frontend(key.owner),
        }
    }
}

/// The chains of these objects. Built-in chains are included if they hold a rule.
pub(crate) fn chains(objects: &[IptObject]) -> Chains<'_> {
    let mut chains: Chains<'_> = BTreeMap::new();
    let mut shared: BTreeMap<ChainId, Vec<(Position, Vec<Line<'_>>)>> = BTreeMap::new();
    for object in objects {
        match object {
            IptObject::Chain(id, rules) => {
                chains.entry(*id).or_default().extend(rules.0.iter().map(Line::Ours));
            }
            IptObject::SharedChain(id) => drop(chains.entry(*id).or_default()),
            IptObject::OwnedRules(key, rules) => {
                let lines = rules.iter().map(Line::Ours).collect();
                shared.entry(key.chain).or_default().push((Position::of(key), lines));
            }
            IptObject::ForeignRule(id, text) => {
                shared.entry(*id).or_default().push((Position::Foreign, vec![Line::Foreign(text)]));
            }
            IptObject::RouteLocalnet => {}
        }
    }
    for (id, mut shared) in shared {
        shared.sort_by(|(one, _), (other, _)| one.cmp(other));
        chains.entry(id).or_default().extend(shared.into_iter().flat_map(|(_, lines)| lines));
    }
    chains
}
