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

#[cfg(test)]
mod tests {
    use ferry_kernel::nft::{Expr, Verdict};

    use super::*;

    fn rule(verdict: Verdict, text: &str) -> TableRule {
        TableRule { exprs: vec![Expr::Verdict(verdict)], text: text.to_owned() }
    }

    #[test]
    fn rules_are_compared_and_sorted_by_their_expressions_alone() {
        let rules = |rule: TableRule| Rules([rule].into());
        let [accept, read, drop] = [(Verdict::Accept, "accept"), (Verdict::Accept, ""), (Verdict::Drop, "")]
            .map(|(verdict, text)| rule(verdict, text));
        assert_eq!((accept == read, accept == drop), (true, false));
        assert_eq!(accept < drop, Expr::Verdict(Verdict::Accept) < Expr::Verdict(Verdict::Drop));
        assert_ne!(accept < drop, accept > drop);
        assert_eq!(accept.partial_cmp(&read), Some(Ordering::Equal));
        let (one, other) = (rules(accept.clone()), rules(drop.clone()));
        assert_eq!((one < other, one > other), (accept < drop, accept > drop));
        assert_eq!([&rules(read), &one.clone()].map(|same| one.partial_cmp(same)), [Some(Ordering::Equal); 2]);
    }

    #[test]
    fn only_rules_with_a_text_give_one_to_their_expressions() {
        let rules = Rules([rule(Verdict::Accept, "accept"), rule(Verdict::Drop, "")].into());
        let texts: Vec<_> = rules.texts().collect();
        assert_eq!(texts, [(nft::expressions_text(&[Expr::Verdict(Verdict::Accept)]), "accept".to_owned())]);
    }
}
