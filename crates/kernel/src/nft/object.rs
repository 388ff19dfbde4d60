//! nf_tables objects: tables, sets, chains and rules.

use std::fmt;
use std::time::Duration;

use ferry_family::Family;

use super::Expr;

/// `NFPROTO_INET`
const INET: u8 = 1;

/// The family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableFamily {
    /// packets of both IP families, `inet`
    Inet,
    /// packets of one, `ip` or `ip6`
    Single(Family),
}

/// A table that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// its name
    pub name: String,
    /// its comment, by which the owner of a table is recognized
    pub comment: Option<String>,
    /// disabled: none of its chains sees a packet
    pub dormant: bool,
    /// port id of the only socket that may change the table
    pub owner: Option<u32>,
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainKind {
    /// `type nat`: sees the first packet of a connection
    Nat,
    /// `type filter`: sees every packet
    Filter,
    /// only in chains that were read: a type, hook or flag that this crate doesn't write, or a policy other than accept
    Other,
}

/// The netfilter hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// incoming packets, before routing
    Prerouting,
    /// packets to this host
    Input,
    /// packets to other hosts
    Forward,
    /// packets of this host
    Output,
    /// outgoing packets, after routing
    Postrouting,
}

/// The hook that makes a chain a base chain. Its policy is accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseHook {
    /// its type
    pub kind: ChainKind,
    /// its hook
    pub hook: Hook,
    /// its order among the chains of the hook, lowest first
    pub priority: i32,
}

/// A chain without its rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain {
    /// its name
    pub name: String,
    /// `None`: a regular chain, reached only by jumps
    pub hook: Option<BaseHook>,
}

/// A base chain of any table, by its name, with what decides about packets that none of its rules does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BaseChain {
    /// the family of its table
    pub family: TableFamily,
    /// its table
    pub table: String,
    /// its name
    pub name: String,
    /// its hook
    pub hook: Hook,
    /// its order among the chains of the hook, lowest first
    pub priority: i32,
    /// its policy is drop
    pub drops: bool,
}

/// The values of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetData {
    /// verdicts
    Verdict,
    /// values
    Value {
        /// see [`data_type`](super::data_type) and [`concat_type`](super::concat_type)
        data_type: u32,
        /// in bytes
        len: u32,
    },
}

/// The flags of a set or map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetFlags {
    /// elements are ranges
    pub interval: bool,
    /// with `interval`: the key is a concatenation, with the fields in [`Set::field_lens`]; hash sets do not have the flag
    pub concat: bool,
    /// elements expire
    pub timeout: bool,
    /// rules add elements
    pub dynamic: bool,
}

/// A set or map without its elements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set {
    /// its name
    pub name: String,
    /// see [`data_type`](super::data_type) and [`concat_type`](super::concat_type)
    pub key_type: u32,
    /// in bytes, each field of a concatenation padded to four
    pub key_len: u32,
    /// `Some` makes it a map
    pub data: Option<SetData>,
    /// its flags
    pub flags: SetFlags,
    /// of a concatenation of intervals: the length of each field in bytes, without padding; else empty
    pub field_lens: Vec<u32>,
    /// maximum number of elements
    pub size: Option<u32>,
    /// timeout of elements without one of their own
    pub timeout: Option<Duration>,
    /// annotations for the `nft` tool, see [`userdata`](super::userdata)
    pub userdata: Vec<u8>,
}

/// A rule. Comparisons ignore its handle.
#[derive(Clone, Debug, Eq)]
pub struct Rule {
    /// its expressions, evaluated left to right
    pub exprs: Vec<Expr>,
    /// its comment
    pub comment: Option<String>,
    /// the handle that the kernel assigned; 0: not read from the kernel
    pub handle: u64,
}

// === impl TableFamily ===

impl TableFamily {
    /// Its number, `NFPROTO_…`.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Inet => INET,
            Self::Single(family) => family.number(),
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        if number == INET { Some(Self::Inet) } else { Family::from_number(number).map(Self::Single) }
    }

    /// True if the table sees packets of this family.
    pub fn covers(self, family: Family) -> bool {
        self == Self::Inet || self == Self::Single(family)
    }
}

impl From<Family> for TableFamily {
    fn from(family: Family) -> Self {
        Self::Single(family)
    }
}

impl fmt::Display for TableFamily {
    /// As the `nft` tool names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inet => "inet",
            Self::Single(Family::V4) => "ip",
            Self::Single(Family::V6) => "ip6",
        })
    }
}

// === impl Hook ===

impl Hook {
    /// The hook number, `NF_INET_…`.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }

    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Prerouting),
            1 => Some(Self::Input),
            2 => Some(Self::Forward),
            3 => Some(Self::Output),
            4 => Some(Self::Postrouting),
            _ => None,
        }
    }
}

// === impl Rule ===

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.exprs == other.exprs && self.comment == other.comment
    }
}
