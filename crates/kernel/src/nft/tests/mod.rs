//! Objects written to the kernel and read back, each test in a network namespace of its own. Needs root.

mod errors;
mod flow_trace;
mod garbage;
mod listener;
mod monitor;
mod round_trip;
mod ruleset;
mod tool;

use std::collections::{BTreeMap, BTreeSet};

use ferry_family::Family;

use super::*;
use crate::netlink::Overrun;
use crate::netns::Namespace;
use ruleset::Ruleset;

const TABLE: &str = "kernel-test";

/// The content of a table, in canonical order.
#[derive(Debug, PartialEq)]
struct ReadBack {
    sets: BTreeSet<Set>,
    chains: BTreeSet<Chain>,
    rules: BTreeMap<String, Vec<Rule>>,
    elements: BTreeMap<String, BTreeSet<Element>>,
}

/// Runs a test in a fresh namespace.
fn isolated<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    let namespace = Namespace::new().expect("these tests need root");
    namespace.raise_loopback().unwrap();
    namespace.run(test).unwrap()
}

fn write(batch: &mut NftBatch, ruleset: &Ruleset) {
    ruleset.sets.iter().for_each(|set| batch.add_set(set));
    ruleset.chains.iter().for_each(|(chain, _)| batch.add_chain(chain));
    for (chain, rules) in &ruleset.chains {
        rules.iter().for_each(|rule| batch.add_rule(&chain.name, rule));
    }
    for (set, element) in &ruleset.elements {
        batch.add_element(set, &element.key, element.key_end.as_deref(), element.data.borrow().unwrap());
    }
}

fn commit(
    socket: &mut NftSocket,
    family: Family,
    fill: impl FnOnce(&mut NftBatch),
) -> Result<CommitStats, CommitFailure> {
    let mut batch = NftBatch::new(family, TABLE);
    fill(&mut batch);
    socket.commit(batch)
}

fn read_back(socket: &mut NftSocket, family: Family) -> ReadBack {
    let sets: BTreeSet<Set> = socket.sets(family, TABLE).unwrap().into_iter().collect();
    let mut rules: BTreeMap<String, Vec<Rule>> = BTreeMap::new();
    for (chain, rule) in socket.rules(family, TABLE, None).unwrap() {
        assert_ne!(rule.handle, 0);
        rules.entry(chain).or_default().push(rule);
    }
    let elements = sets.iter().map(|set| (set.name.clone(), elements(socket, family, &set.name))).collect();
    ReadBack { sets, chains: socket.chains(family, TABLE).unwrap().into_iter().collect(), rules, elements }
}

fn elements(socket: &mut NftSocket, family: Family, set: &str) -> BTreeSet<Element> {
    let mut elements = BTreeSet::new();
    socket.elements(family, TABLE, set, &mut |element| assert!(elements.insert(element))).unwrap();
    elements
}

/// The expected result of reading the ruleset back.
fn expected(ruleset: &Ruleset) -> ReadBack {
    let rule = |exprs: &Vec<Expr>| Rule { exprs: exprs.clone(), comment: None, handle: 0 };
    let mut elements: BTreeMap<String, BTreeSet<Element>> =
        ruleset.sets.iter().map(|set| (set.name.clone(), BTreeSet::new())).collect();
    for (set, element) in &ruleset.elements {
        elements.get_mut(*set).unwrap().insert(element.clone());
    }
    let with_rules = ruleset.chains.iter().filter(|(_, rules)| !rules.is_empty());
    ReadBack {
        sets: ruleset.sets.iter().cloned().collect(),
        chains: ruleset.chains.iter().map(|(chain, _)| chain.clone()).collect(),
        rules: with_rules.map(|(chain, rules)| (chain.name.clone(), rules.iter().map(rule).collect())).collect(),
        elements,
    }
}
