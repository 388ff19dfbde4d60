//! Evaluates the rules of a chain as far as they are understood, whichever subsystem holds them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::Traffic;

/// States of a connection, and its status "destination translated", as bits of xt_conntrack's `state_mask`
/// (linux/netfilter/xt_conntrack.h). The lower ones are those of nf_tables' `ct state`, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States(pub u16);

/// A rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForwardRule {
    /// identifies it within its table
    pub(super) handle: u64,
    /// written by this program
    pub(super) own: bool,
    pub(super) effect: Effect,
}

/// The effect of a rule on packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// accepts them under a condition
    Accept(RuleCondition),
    /// drops or rejects every packet
    Drop,
    /// every packet returns to the calling chain; from the base chain, to the policy
    Return,
    /// every packet goes to this chain, and returns
    Jump(String),
    /// the same, without return to this chain
    Goto(String),
    /// goes on, or isn't understood
    Unclear,
}

/// The one condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RuleCondition {
    Always,
    States(States),
    /// from a network: bytes that identify it within the table
    From(Vec<u8>),
    /// to a network
    To(Vec<u8>),
}

/// The packets that rules accept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Accepted {
    everything: bool,
    states: States,
    from: BTreeSet<Vec<u8>>,
    to: BTreeSet<Vec<u8>>,
}

/// A rule of this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnRule {
    pub(super) handle: u64,
    /// no rule before it decides about every packet
    pub(super) reached: bool,
    /// the states that it accepts, if that is all it does
    pub(super) states: Option<States>,
}

/// Result for a base chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Evaluation {
    /// by rules of others
    pub(super) accepted: Accepted,
    /// the rule of the base chain behind which no packet comes
    pub(super) decided_at: Option<u64>,
    pub(super) own: Vec<OwnRule>,
}

/// Reads the rules of a chain.
type Read<'a> = &'a mut dyn FnMut(&str) -> io::Result<Vec<ForwardRule>>;

/// Collects what the chains below a base chain accept.
struct AcceptWalk<'a> {
    read: Read<'a>,
    accepted: Accepted,
    /// whether each chain decides about every packet
    chains: BTreeMap<String, bool>,
}

/// Bound for the chains that are read.
const MAX_CHAINS: usize = 64;

/// Evaluates a base chain.
pub(super) fn evaluate(base: &str, read: Read<'_>) -> io::Result<Evaluation> {
    let rules = read(base)?;
    let mut walk = AcceptWalk { read, accepted: Accepted::default(), chains: BTreeMap::new() };
    let mut found = Evaluation::default();
    for rule in rules {
        let reached = found.decided_at.is_none();
        if rule.own {
            let states = match rule.effect {
                Effect::Accept(RuleCondition::States(states)) => Some(states),
                _ => None,
            };
            found.own.push(OwnRule { handle: rule.handle, reached, states });
        } else if reached && walk.ends_with(&rule.effect)?.is_some() {
            found.decided_at = Some(rule.handle);
        }
    }
    Ok(Evaluation { accepted: walk.accepted, ..found })
}

// === impl States ===

impl States {
    pub(super) const ESTABLISHED: Self = Self(1 << 1);
    pub(super) const RELATED: Self = Self(1 << 2);
    pub(super) const NEW: Self = Self(1 << 3);
    pub(super) const TRANSLATED: Self = Self(1 << 7);

    pub(super) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// As `iptables --ctstate` names them.
    pub(super) fn names(self) -> String {
        const NAMES: [(States, &str); 4] = [
            (States::RELATED, "RELATED"),
            (States::ESTABLISHED, "ESTABLISHED"),
            (States::NEW, "NEW"),
            (States::TRANSLATED, "DNAT"),
        ];
        let names: Vec<_> = NAMES.iter().filter(|(state, _)| self.contains(*state)).map(|(_, name)| *name).collect();
        names.join(",")
    }
}

// === impl Accepted ===

impl Accepted {
    fn add(&mut self, condition: &RuleCondition) {
        match condition {
            RuleCondition::Always => self.everything = true,
            RuleCondition::States(states) => self.states = self.states.with(*states),
            RuleCondition::From(network) => drop(self.from.insert(network.clone())),
            RuleCondition::To(network) => drop(self.to.insert(network.clone())),
        }
    }

    pub(super) fn covers(&self, traffic: Traffic) -> bool {
        // Both directions of a network: a network plugin's rules for its pods.
        if self.everything || !self.from.is_disjoint(&self.to) {
            return true;
        }
        match traffic {
            Traffic::Established => self.states.contains(States::ESTABLISHED),
            Traffic::Translated => {
                self.states.contains(States::TRANSLATED) || self.states.contains(States::ESTABLISHED.with(States::NEW))
            }
        }
    }
}

// === impl Traffic ===

impl Traffic {
    /// The states of its connections.
    pub(super) const fn states(self) -> States {
        match self {
            Self::Established => States::ESTABLISHED.with(States::RELATED),
            Self::Translated => States::TRANSLATED,
        }
    }

    /// The condition in the `nft` tool's words.
    pub(super) const fn condition(self) -> &'static str {
        match self {
            Self::Established => "ct state established,related",
            Self::Translated => "ct status dnat",
        }
    }
}

// === impl AcceptWalk ===

impl AcceptWalk<'_> {
    /// True if the rules of a chain decide about every packet.
    fn chain(&mut self, name: &str) -> io::Result<bool> {
        if let Some(decides) = self.chains.get(name) {
            return Ok(*decides);
        }
        if self.chains.len() >= MAX_CHAINS {
            return Ok(false);
        }
        self.chains.insert(name.to_owned(), false);
        for rule in (self.read)(name)? {
            if let Some(decides) = self.ends_with(&rule.effect)? {
                self.chains.insert(name.to_owned(), decides);
                return Ok(decides);
            }
        }
        Ok(false)
    }

    /// Applies a rule. `Some` if no packet comes to the next one; true in it if every packet is decided about.
    fn ends_with(&mut self, effect: &Effect) -> io::Result<Option<bool>> {
        Ok(match effect {
            Effect::Accept(condition) => {
                self.accepted.add(condition);
                (*condition == RuleCondition::Always).then_some(true)
            }
            Effect::Drop => Some(true),
            Effect::Return => Some(false),
            Effect::Jump(chain) => self.chain(chain)?.then_some(true),
            Effect::Goto(chain) => Some(self.chain(chain)?),
            Effect::Unclear => None,
        })
    }
}
