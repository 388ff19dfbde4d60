//! Printing and parsing of rules: compared with upstream's rulesets, with the real tools, and with each other.

use ferry_family::Family;

use super::*;

mod fixtures;
pub(super) mod folder;
mod garbage;
mod legacy;
mod lines;
mod properties;
mod restore;
mod samples;
mod text;
mod tools;

fn name(text: &str) -> IptablesChainName {
    IptablesChainName::new(text).unwrap()
}

fn printed(family: Family, rule: &Rule) -> String {
    let mut text = String::new();
    rule.print(family, &mut text);
    text
}

fn parsed(family: Family, text: &str) -> Rule {
    Rule::parse(family, text).unwrap_or_else(|| panic!("not parsed as a rule: {text}"))
}
