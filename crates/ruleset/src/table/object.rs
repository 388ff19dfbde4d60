//! The objects of a table, their keys and ranks.

use std::fmt;

use super::{ChainName, ELEMENT_RANK, SetName, Vocabulary};
use crate::Rules;
use crate::read::TableOwner;
use crate::sources::{Ranges, SourcesId};

/// One object of a mode's table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableObject<V: Vocabulary> {
    /// the table
    Table(TableOwner),
    /// a set or map without its elements; its shape follows from its name. Not [`SetName::Sources`]
    Set(SetName<V>),
    /// the set of source ranges with this id, with all its elements. Its key is that of a set and sorts behind all other sets
    Ranges(SourcesId, Ranges),
    /// a chain with its rules; its hook follows from its name
    Chain(ChainName<V>, Rules),
    /// an element
    Element(V::Element, V::Value),
}

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableKey<V: Vocabulary> {
    /// the table
    Table,
    /// a set or map
    Set(SetName<V>),
    /// a chain
    Chain(ChainName<V>),
    /// an element
    Element(V::Element),
}

// === impl TableObject ===

impl<V: Vocabulary> TableObject<V> {
    /// The key.
    pub fn key(&self) -> TableKey<V> {
        match self {
            Self::Table(_) => TableKey::Table,
            Self::Set(name) => TableKey::Set(*name),
            Self::Ranges(id, _) => TableKey::Set(SetName::Sources(*id)),
            Self::Chain(name, _) => TableKey::Chain(*name),
            Self::Element(element, _) => TableKey::Element(element.clone()),
        }
    }

    /// The rank, up to [`ELEMENT_RANK`].
    pub fn rank(&self) -> u8 {
        match self {
            Self::Table(_) => 0,
            Self::Set(_) | Self::Ranges(..) => 1,
            Self::Chain(ChainName::Fixed(chain), _) => V::rank(*chain),
            Self::Chain(ChainName::Restricted(_), _) => 3,
            Self::Element(..) => ELEMENT_RANK,
        }
    }

    /// The set of source ranges and the chain that checks it, which several Services may share.
    pub fn shared_sources(&self) -> Option<TableKey<V>> {
        match self {
            Self::Ranges(..) | Self::Chain(ChainName::Restricted(_), _) => Some(self.key()),
            Self::Table(_) | Self::Set(_) | Self::Chain(ChainName::Fixed(_), _) | Self::Element(..) => None,
        }
    }
}

impl<V: Vocabulary> fmt::Display for TableObject<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(TableOwner::Ours) => write!(f, "table {} {{ comment \"{}\" }}", V::TABLE, V::COMMENT),
            Self::Table(TableOwner::Foreign) => write!(f, "table {} {{ foreign }}", V::TABLE),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Ranges(id, ranges) => write!(f, "set {} {{ {ranges} }}", SetName::<V>::Sources(*id)),
            Self::Chain(name, rules) => write!(f, "chain {name} {{{rules} }}"),
            Self::Element(element, value) => write!(f, "element {} {{ {element}{value} }}", V::set_of(element)),
        }
    }
}

// === impl TableKey ===

impl<V: Vocabulary> fmt::Display for TableKey<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => write!(f, "table {}", V::TABLE),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Chain(name) => write!(f, "chain {name}"),
            Self::Element(element) => write!(f, "element {} {{ {element} }}", V::set_of(element)),
        }
    }
}
