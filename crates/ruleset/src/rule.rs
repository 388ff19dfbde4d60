//! Rules and chains of rules, as objects that are compared with what the kernel holds.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use ferry_kernel::nft;

/// The rules of a chain, in order. Chains of one name mostly share an allocation, which makes comparisons cheap.
#[derive(Clone, Debug, Eq)]
pub struct Rules(pub Arc<[TableRule]>);

/// One rule, as expressions and as text. Compared by its expressions.
#[derive(Clone, Debug, Eq)]
pub struct TableRule {
    /// the expressions that the kernel evaluates
    pub exprs: Vec<nft::Expr>,
    /// the rule in the language of the `nft` tool; empty if it was read back
    pub text: String,
}

// === impl Rules ===

impl Rules {
    /// The text of each rule, by that of its expressions.
    pub fn texts(&self) -> impl Iterator<Item = (String, String)> {
        let worded = self.0.iter().filter(|rule| !rule.text.is_empty());
        worded.map(|rule| (nft::expressions_text(&rule.exprs), rule.text.clone()))
    }
}

/// The text of each rule, with a semicolon behind and a space before it.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|rule| write!(f, " {rule};"))
    }
}

impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Ord for Rules {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for Rules {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

// === impl TableRule ===

impl PartialEq for TableRule {
    fn eq(&self, other: &Self) -> bool {
        self.exprs == other.exprs
    }
}

impl Ord for TableRule {
    fn cmp(&self, other: &Self) -> Ordering {
        self.exprs.cmp(&other.exprs)
    }
}

impl PartialOrd for TableRule {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Its text, or its expressions in brackets if it was read back.
impl fmt::Display for TableRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() { f.write_str(&nft::expressions_text(&self.exprs)) } else { f.write_str(&self.text) }
    }
}
