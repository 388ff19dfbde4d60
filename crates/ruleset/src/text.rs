//! Renders a table as text that the `nft` tool loads, for people and golden files; Ferry never parses it.

use std::fmt::{Display, Write};

use ferry_api::object::Family;
use ferry_kernel::nft::{BaseHook, ChainKind};

use crate::Rules;
use crate::layout::{Data, Layout};
use crate::rules::keyword;

/// The text of one table, written from its comment on: first sets and maps, then chains.
#[derive(Clone, Debug)]
pub struct TableText {
    family: Family,
    text: String,
}

// === impl TableText ===

impl TableText {
    /// A table of this family with this name and comment.
    pub fn new(family: Family, table: &str, comment: &str) -> Self {
        Self { family, text: format!("table {} {table} {{\n\tcomment \"{comment}\"\n", keyword(family)) }
    }

    /// Writes a set or map with its elements.
    pub fn set(&mut self, name: impl Display, layout: &Layout, elements: &[String]) {
        let kind = if layout.data == Data::None { "set" } else { "map" };
        let mut lines = vec![layout.declaration(self.family)];
        if layout.interval {
            lines.push("flags interval".to_owned());
        }
        if let Some(size) = layout.size {
            lines.push(format!("size {size}"));
        }
        if layout.expires {
            lines.push("flags dynamic,timeout".to_owned());
        }
        // Writing to a String can't fail.
        let _ = writeln!(self.text, "\n\t{kind} {name} {{");
        for line in lines {
            let _ = writeln!(self.text, "\t\t{line}");
        }
        if !elements.is_empty() {
            let _ = writeln!(self.text, "\t\telements = {{\n\t\t\t{}\n\t\t}}", elements.join(",\n\t\t\t"));
        }
        self.text.push_str("\t}\n");
    }

    /// Writes a chain with its rules; with its hook if it is a base chain.
    pub fn chain(&mut self, name: impl Display, hook: Option<BaseHook>, rules: &Rules) {
        let _ = writeln!(self.text, "\n\tchain {name} {{");
        if let Some(BaseHook { kind, hook, priority }) = hook {
            let kind = match kind {
                ChainKind::Nat => "nat",
                ChainKind::Filter => "filter",
                ChainKind::Other => "foreign",
            };
            let at = format!("{hook:?}").to_lowercase();
            let _ = writeln!(self.text, "\t\ttype {kind} hook {at} priority {priority}; policy accept;");
        }
        for rule in &*rules.0 {
            let _ = writeln!(self.text, "\t\t{rule}");
        }
        self.text.push_str("\t}\n");
    }

    /// The text of the table.
    pub fn finish(mut self) -> String {
        self.text.push_str("}\n");
        self.text
    }
}
