//! Renders objects as text that the `nft` tool loads, for people and golden files; Ferry never parses it.

use std::collections::BTreeMap;

use ferry_api::object::Family;
use ferry_ruleset::Rules;
use ferry_ruleset::sources::Ranges;
use ferry_ruleset::text::TableText;

use crate::layout::layout;
use crate::names::{ChainName, SetName, TABLE, TABLE_COMMENT};
use crate::object::{ElementKey, NftObject, Value};

/// The ruleset of one family. Objects may come in any order; duplicates are printed once.
pub fn ruleset(family: Family, objects: &[NftObject]) -> String {
    let mut sets: BTreeMap<SetName, BTreeMap<ElementKey, Value>> = BTreeMap::new();
    let mut sources: BTreeMap<SetName, &Ranges> = BTreeMap::new();
    let mut chains: BTreeMap<ChainName, &Rules> = BTreeMap::new();
    for object in objects {
        match object {
            NftObject::Table(_) => {}
            NftObject::Set(name) => drop(sets.entry(*name).or_default()),
            NftObject::Ranges(id, ranges) => drop(sources.insert(SetName::Sources(*id), ranges)),
            NftObject::Chain(name, rules) => drop(chains.insert(*name, rules)),
            NftObject::Element(key, value) => drop(sets.entry(key.set()).or_default().insert(*key, *value)),
        }
    }
    let mut text = TableText::new(family, TABLE, TABLE_COMMENT);
    for (name, elements) in &sets {
        let elements: Vec<String> = elements.iter().map(|(key, value)| format!("{key}{value}")).collect();
        text.set(name, &layout(*name), &elements);
    }
    for (name, ranges) in &sources {
        let ranges: Vec<String> = ranges.as_slice().iter().map(ToString::to_string).collect();
        text.set(name, &layout(*name), &ranges);
    }
    for (name, rules) in &chains {
        text.chain(name, name.chain().hook, rules);
    }
    text.finish()
}
