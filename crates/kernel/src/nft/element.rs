//! Elements of sets and maps.

use super::{Octets, Verdict};

/// The data of an element to be written, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementData<'a> {
    /// no data: an element of a set
    None,
    /// the first key after an interval, in interval sets whose key is no concatenation
    IntervalEnd,
    /// a map's value
    Value(&'a [u8]),
    /// a verdict map's verdict
    Verdict(VerdictRef<'a>),
}

/// A verdict, borrowed, to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictRef<'a> {
    /// accept the packet at this hook
    Accept,
    /// drop the packet
    Drop,
    /// return to the calling chain
    Return,
    /// continue in this chain, and return from it
    Jump(&'a str),
    /// continue in this chain without return
    Goto(&'a str),
}

/// The data of an element that was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnedData {
    /// no data: an element of a set
    None,
    /// a map's value
    Value(Octets),
    /// a verdict map's verdict
    Verdict(Verdict),
    /// a verdict or a named object that this crate does not write
    Other,
}

/// An element that was read, without its timeout, comment and counters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    /// the key, each field of a concatenation padded to four bytes; empty: the catch-all element `*`
    pub key: Octets,
    /// the last key of a range, in sets of concatenated intervals
    pub key_end: Option<Octets>,
    /// its data
    pub data: OwnedData,
    /// the key is the first one after an interval, in interval sets of one field
    pub interval_end: bool,
}

// === impl VerdictRef ===

impl<'a> VerdictRef<'a> {
    /// The target chain of a jump or goto.
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
    /// Borrows the data for writing; `None` for [`OwnedData::Other`], which cannot be written.
    pub fn borrow(&self) -> Option<ElementData<'_>> {
        match self {
            Self::None => Some(ElementData::None),
            Self::Value(value) => Some(ElementData::Value(value)),
            Self::Verdict(verdict) => Some(ElementData::Verdict(verdict.into())),
            Self::Other => None,
        }
    }
}
