//! Names of sets and chains: constant ones, and those of source ranges.

use std::fmt;

use ferry_api::object::Family;
use ferry_kernel::nft;

use super::Vocabulary;
use crate::layout::{Data, KeyPart, Layout};
use crate::names::Name;
use crate::sources::SourcesId;

/// A set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName<V: Vocabulary> {
    /// part of the base: always present
    Fixed(V::Set),
    /// source ranges; sorts last, as [`TableObject::Ranges`](super::TableObject::Ranges) does
    Sources(SourcesId),
}

/// A chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName<V: Vocabulary> {
    /// part of the base
    Fixed(V::Chain),
    /// drops packets from outside these source ranges
    Restricted(SourcesId),
}

// === impl SetName ===

impl<V: Vocabulary> SetName<V> {
    /// Parses a name; `None` for one that this mode never makes.
    pub fn parse(name: &str) -> Option<Self> {
        match name.strip_prefix("sources-") {
            Some(id) => SourcesId::parse(id).map(Self::Sources),
            None => V::Set::parse(name).map(Self::Fixed),
        }
    }

    /// Key fields, value type and kind.
    pub fn layout(self) -> Layout {
        match self {
            Self::Sources(_) => Layout { interval: true, ..Layout::new(&[KeyPart::Address], Data::None) },
            Self::Fixed(set) => V::layout(set),
        }
    }

    /// The declaration, as sent to the kernel.
    pub(crate) fn shape(self, family: Family) -> nft::Set {
        self.layout().set(self.to_string(), family)
    }
}

impl<V: Vocabulary> fmt::Display for SetName<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(fixed) => fixed.fmt(f),
            Self::Sources(id) => write!(f, "sources-{id}"),
        }
    }
}

// === impl ChainName ===

impl<V: Vocabulary> ChainName<V> {
    /// Parses a name; `None` for one that this mode never makes.
    pub fn parse(name: &str) -> Option<Self> {
        match name.strip_prefix("restricted-") {
            Some(id) => SourcesId::parse(id).map(Self::Restricted),
            None => V::Chain::parse(name).map(Self::Fixed),
        }
    }

    /// The chain without its rules, as sent to the kernel.
    pub fn chain(self) -> nft::Chain {
        let hook = match self {
            Self::Fixed(fixed) => V::hook(fixed),
            Self::Restricted(_) => None,
        };
        nft::Chain { name: self.to_string(), hook }
    }
}

impl<V: Vocabulary> fmt::Display for ChainName<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(fixed) => fixed.fmt(f),
            Self::Restricted(id) => write!(f, "restricted-{id}"),
        }
    }
}
