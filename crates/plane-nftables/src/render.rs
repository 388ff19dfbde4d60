//! Renders objects as text that the `nft` tool loads, for people and golden files; Ferry never parses it.

use std::collections::BTreeMap;
use std::fmt::Write;

use ferry_api::object::Family;

use crate::layout::{self, Data, Layout, Part};
use crate::names::{ChainName, SLOTS, SetName, TABLE, TABLE_COMMENT};
use crate::object::{ElementKey, NftObject, Rules, Value};
use crate::sources::Ranges;

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
    let mut text = format!("table {} {TABLE} {{\n\tcomment \"{TABLE_COMMENT}\"\n", keyword(family));
    for (name, elements) in &sets {
        let elements = elements.iter().map(|(key, value)| format!("{key}{value}"));
        set(&mut text, family, *name, elements.collect());
    }
    for (name, ranges) in &sources {
        set(&mut text, family, *name, ranges.as_slice().iter().map(ToString::to_string).collect());
    }
    for (name, rules) in &chains {
        chain(&mut text, *name, rules);
    }
    text.push_str("}\n");
    text
}

fn keyword(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

fn set(text: &mut String, family: Family, name: SetName, elements: Vec<String>) {
    let layout = Layout::of(name);
    let kind = if layout.data == Data::None { "set" } else { "map" };
    let mut lines = vec![declaration(family, &layout)];
    if layout.interval {
        lines.push("flags interval".to_owned());
    }
    if let Some(size) = layout::shape(name, family).size {
        lines.push(format!("size {size}"));
    }
    if matches!(name, SetName::Affinity(..)) {
        lines.push("flags dynamic,timeout".to_owned());
    }
    // Writing to a String can't fail.
    let _ = writeln!(text, "\n\t{kind} {name} {{");
    for line in lines {
        let _ = writeln!(text, "\t\t{line}");
    }
    if !elements.is_empty() {
        let _ = writeln!(text, "\t\telements = {{\n\t\t\t{}\n\t\t}}", elements.join(",\n\t\t\t"));
    }
    text.push_str("\t}\n");
}

/// Declares the types of keys and values. Keys with a number have no plain type and are declared by expressions (`typeof`).
fn declaration(family: Family, layout: &Layout) -> String {
    let ip = keyword(family);
    let numbers = layout.key.iter().any(|part| matches!(part, Part::Slot | Part::Octet));
    let of = |part: &Part| match (part, numbers, family) {
        (Part::Address, true, _) => format!("{ip} daddr"),
        (Part::Protocol, true, _) => "meta l4proto".to_owned(),
        (Part::Port, true, _) => "th dport".to_owned(),
        (Part::Slot, ..) => format!("numgen random mod {SLOTS}"),
        (Part::Octet, _, Family::V4) => "ip ttl".to_owned(),
        (Part::Octet, _, Family::V6) => "ip6 hoplimit".to_owned(),
        (Part::Address, false, Family::V4) => "ipv4_addr".to_owned(),
        (Part::Address, false, Family::V6) => "ipv6_addr".to_owned(),
        (Part::Protocol, false, _) => "inet_proto".to_owned(),
        (Part::Port, false, _) => "inet_service".to_owned(),
    };
    let key: Vec<String> = layout.key.iter().map(of).collect();
    let data = match layout.data {
        Data::None => String::new(),
        Data::Verdict => " : verdict".to_owned(),
        Data::Endpoint => format!(" : {} . {}", of(&Part::Address), of(&Part::Port)),
    };
    format!("{} {}{data}", if numbers { "typeof" } else { "type" }, key.join(" . "))
}

fn chain(text: &mut String, name: ChainName, rules: &Rules) {
    let _ = writeln!(text, "\n\tchain {name} {{");
    if let Some(hook) = name.chain().hook {
        let at = format!("{:?}", hook.hook).to_lowercase();
        let _ = writeln!(text, "\t\ttype nat hook {at} priority {}; policy accept;", hook.priority);
    }
    for rule in &*rules.0 {
        let _ = writeln!(text, "\t\t{rule}");
    }
    text.push_str("\t}\n");
}
