//! Results of comparing conntrack entries with the rules for flows.

/// Result of comparing an entry with the rules. Of two rules that apply, the smaller result counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FlowMatch {
    /// the rules lead there
    Right,
    /// the rules lead elsewhere, but an answer may be in transit
    Unanswered,
    /// the rules lead elsewhere
    Stale,
}
