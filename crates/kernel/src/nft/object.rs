//! Tables, sets, chains and rules.

use std::time::Duration;

use super::Expr;

/// A table, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// its name
    pub name: String,
    /// its comment, where tables of several makers are told apart
    pub comment: Option<String>,
    /// switched off: none of its chains sees a packet
    pub dormant: bool,
    /// the only socket that may change it
    pub owner: Option<u32>,
}

/// What a base chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainKind {
    /// `type nat`: sees the first packet of a connection
    Nat,
    /// `type filter`: sees every packet
    Filter,
    /// read back only: another type, hook or flag than this crate writes, or a policy other than accept
    Other,
}

/// Where a base chain is hooked into the packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// arriving, before routing
    Prerouting,
    /// for this machine
    Input,
    /// for another machine
    Forward,
    /// from this machine
    Output,
    /// leaving, after routing
    Postrouting,
}

/// What makes a chain a base chain. Its policy is accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseHook {
    /// its type
    pub kind: ChainKind,
    /// its hook
    pub hook: Hook,
    /// its place among the chains of the hook, lowest first
    pub priority: i32,
}

/// A chain without its rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain {
    /// its name
    pub name: String,
    /// `None`: only jumped to
    pub hook: Option<BaseHook>,
}

/// What a map's values are.
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

/// How a set is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetFlags {
    /// elements are ranges
    pub interval: bool,
    /// with `interval`: the key is a concatenation, whose fields [`Set::field_lens`] lists; hash sets don't say it
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
    /// how it is kept
    pub flags: SetFlags,
    /// of a concatenation of intervals: the bytes of each field, without padding; else empty
    pub field_lens: Vec<u32>,
    /// the most elements that it takes
    pub size: Option<u32>,
    /// how long an element lives if it doesn't say itself
    pub timeout: Option<Duration>,
    /// notes for the `nft` tool, see [`userdata`](super::userdata)
    pub userdata: Vec<u8>,
}

/// A rule. Compared without its handle.
#[derive(Clone, Debug, Eq)]
pub struct Rule {
    /// what it does, left to right
    pub exprs: Vec<Expr>,
    /// its comment
    pub comment: Option<String>,
    /// the kernel's number for it; 0: not read from the kernel
    pub handle: u64,
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
