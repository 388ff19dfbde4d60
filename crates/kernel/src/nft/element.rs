//! Elements of sets and maps.

use super::{Octets, Verdict};

/// What a map holds for a key, borrowed, to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementData<'a> {
    /// a set's element
    None,
    /// of a set with intervals whose key is no concatenation: the first key after an interval
    IntervalEnd,
    /// a map's
    Value(&'a [u8]),
    /// a verdict map's
    Verdict(VerdictRef<'a>),
}

/// A verdict, borrowed, to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictRef<'a> {
    /// let the packet pass this hook
    Accept,
    /// throw the packet away
    Drop,
    /// go on in the chain that jumped here
    Return,
    /// go to this chain, and come back
    Jump(&'a str),
    /// go to this chain for good
    Goto(&'a str),
}

/// What a map holds for a key, as it was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnedData {
    /// a set's element
    None,
    /// a map's
    Value(Octets),
    /// a verdict map's
    Verdict(Verdict),
    /// a verdict or a named object that this crate does not write
    Other,
}

/// An element as it was read. Timeouts, comments and counters of it are left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    /// the key, each field of a concatenation padded to four bytes; empty: the catch-all element `*`
    pub key: Octets,
    /// the last key of a range, in sets of concatenated intervals
    pub key_end: Option<Octets>,
    /// what it maps to
    pub data: OwnedData,
    /// the first key behind a range, in interval sets of one field
    pub interval_end: bool,
}

// === impl VerdictRef ===

impl<'a> VerdictRef<'a> {
    /// Where it leads.
    pub fn chain(self) -> Option<&'a str> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            Self::Accept | Self::Drop | Self::Return => None,
        }
    }
}

impl<'a> From<&'a Verdict> for VerdictRef<'a> {
    fn from(verdict: &'a Verdict) -> Self {
        match verdict {
            Verdict::Accept => Self::Accept,
            Verdict::Drop => Self::Drop,
            Verdict::Return => Self::Return,
            Verdict::Jump(chain) => Self::Jump(chain),
            Verdict::Goto(chain) => Self::Goto(chain),
        }
    }
}

// === impl OwnedData ===

impl OwnedData {
    /// To be written again; [`OwnedData::Other`] cannot be.
    pub fn borrow(&self) -> Option<ElementData<'_>> {
        match self {
            Self::None => Some(ElementData::None),
            Self::Value(value) => Some(ElementData::Value(value)),
            Self::Verdict(verdict) => Some(ElementData::Verdict(verdict.into())),
            Self::Other => None,
        }
    }
}
