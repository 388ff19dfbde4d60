//! Prints a table as the `nft` tool loads it.

use std::collections::BTreeMap;

use ferry_api::object::Family;

use super::{ChainName, SetName, TableObject, Vocabulary};
use crate::Rules;
use crate::sources::Ranges;
use crate::text::TableText;

/// The text of one family's table. Objects may come in any order; duplicates are printed once.
pub fn draw<'a, V: Vocabulary>(family: Family, objects: impl IntoIterator<Item = &'a TableObject<V>>) -> String {
    let mut sets: BTreeMap<V::Set, BTreeMap<&V::Element, &V::Value>> = BTreeMap::new();
    let mut sources: BTreeMap<SetName<V>, &Ranges> = BTreeMap::new();
    let mut chains: BTreeMap<ChainName<V>, &Rules> = BTreeMap::new();
    for object in objects {
        match object {
            TableObject::Table(_) | TableObject::Set(SetName::Sources(_)) => {}
            TableObject::Set(SetName::Fixed(name)) => drop(sets.entry(*name).or_default()),
            TableObject::Ranges(id, ranges) => drop(sources.insert(SetName::Sources(*id), ranges)),
            TableObject::Chain(name, rules) => drop(chains.insert(*name, rules)),
            TableObject::Element(key, value) => drop(sets.entry(V::set_of(key)).or_default().insert(key, value)),
        }
    }
    let mut table = TableText::new(family, V::TABLE, V::COMMENT);
    for (name, elements) in &sets {
        let elements: Vec<String> = elements.iter().map(|(key, value)| format!("{key}{value}")).collect();
        table.set(name, &V::layout(*name), &elements);
    }
    for (name, ranges) in &sources {
        let elements: Vec<String> = ranges.as_slice().iter().map(ToString::to_string).collect();
        table.set(name, &name.layout(), &elements);
    }
    for (name, rules) in &chains {
        table.chain(name, name.chain().hook, rules);
    }
    table.finish()
}
