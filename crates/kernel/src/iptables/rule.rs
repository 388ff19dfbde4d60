//! Rules as this program writes them, and as the tool prints them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;

/// A table, in the order in which they are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// `mangle`
    Mangle,
    /// `filter`
    Filter,
    /// `nat`
    Nat,
}

/// A chain's name: 1 to 28 bytes of printable ASCII without blanks (`XT_EXTENSION_MAXNAMELEN` in
/// linux/netfilter/x_tables.h, with its final zero).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainName {
    bytes: [u8; Self::MAX],
    length: u8,
}

/// One rule of a chain. What it matches stands in the order in which it is written, which the kernel keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// `-s`
    pub source: Option<Side>,
    /// `-d`
    pub destination: Option<Side>,
    /// `-i`; in a box because few rules have it, and there may be many rules
    pub input: Option<Box<Input>>,
    /// `-p`
    pub protocol: Option<Protocol>,
    /// `-m …`
    pub matches: Box<[Match]>,
    /// `-j`
    pub target: Target,
}

/// Addresses that a packet's source or destination is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Side {
    /// without host bits
    pub net: IpNet,
    /// `!`: everybody else
    pub inverted: bool,
}

/// The interface that a packet came in through.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Input {
    /// its name; one that ends in `+` stands for all that begin so
    pub name: Box<str>,
    /// `!`: any other
    pub inverted: bool,
}

/// Protocols with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// `tcp`
    Tcp,
    /// `udp`
    Udp,
    /// `sctp`
    Sctp,
}

/// A match extension.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Match {
    /// `-m comment`: at most 255 bytes, no control characters
    Comment(Arc<str>),
    /// `-m tcp` and the like, of the rule's protocol, with `--dport`
    Port(Option<u16>),
    /// `-m conntrack --ctstate`
    CtState {
        /// `!`: none of them
        inverted: bool,
        /// which
        states: CtStates,
    },
    /// `-m addrtype --src-type LOCAL`
    SourceLocal,
    /// `-m addrtype --dst-type LOCAL`
    DestinationLocal,
    /// `-m mark --mark value/mask`
    Mark {
        /// `!`: any other
        inverted: bool,
        /// these bits are set
        value: u32,
        /// of these
        mask: u32,
    },
    /// `-m nfacct --nfacct-name`: at most 31 bytes of printable ASCII without blanks
    Account(Box<str>),
    /// `-m recent --rcheck --seconds … --reap --name … --rsource`, with a mask of all bits
    RecentlySeen {
        /// how long ago at most: from 1 to 2^31 - 1, the tools print others with a sign
        seconds: u32,
        /// of the list
        list: Box<ChainName>,
    },
    /// `-m recent --set --name … --rsource`, with a mask of all bits
    SeeNow {
        /// the list
        list: Box<ChainName>,
    },
    /// `-m statistic --mode random --probability`, in units of 1/2^31
    Random(u32),
}

/// Which states of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CtStates {
    /// `NEW`
    New,
    /// `INVALID`
    Invalid,
    /// `RELATED,ESTABLISHED`
    RelatedEstablished,
    /// `RELATED,ESTABLISHED,DNAT`
    RelatedEstablishedDnat,
}

/// What becomes of a packet that matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// nothing: the next rule
    #[default]
    None,
    /// on to another chain, and back from its end
    Jump(ChainName),
    /// back to where the chain was called from
    Return,
    /// through
    Accept,
    /// no answer
    Drop,
    /// an ICMP (ICMPv6) message: port unreachable
    Reject,
    /// `MARK --set-xmark value/mask`: the bits of the mask are cleared, then those of the value flipped
    SetXmark {
        /// flipped
        value: u32,
        /// cleared
        mask: u32,
    },
    /// the source becomes this machine's address
    Masquerade {
        /// `--random-fully`
        random_fully: bool,
    },
    /// the destination becomes this one
    Dnat(SocketAddr),
}

// === impl Table ===

impl Table {
    /// All of these.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Filter, Self::Nat];

    /// As the tool calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl ChainName ===

impl ChainName {
    /// Bytes in a name, at most.
    pub const MAX: usize = 28;

    /// A name; `None` if the text is none.
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=Self::MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..text.len()).filter(|_| fits)?.copy_from_slice(text.as_bytes());
        Some(Self { bytes, length: u8::try_from(text.len()).ok()? })
    }

    /// A name that is written in the program.
    ///
    /// # Panics
    /// If the text is none; in a constant that is an error of compilation.
    pub const fn literal(text: &'static str) -> Self {
        let text = text.as_bytes();
        assert!(!text.is_empty() && text.len() <= Self::MAX, "too long or too short");
        let mut bytes = [0; Self::MAX];
        let (name, _) = bytes.split_at_mut(text.len());
        name.copy_from_slice(text);
        Self { bytes, length: text.len() as u8 }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.bytes.get(..usize::from(self.length)).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Side ===

impl Side {
    /// These addresses, without their host bits; `None` for all addresses, for which the tools print nothing.
    pub fn only(net: IpNet) -> Option<Self> {
        (net.prefix_len() > 0).then(|| Self { net: net.trunc(), inverted: false })
    }

    /// All but these addresses, without their host bits. `None` for all but all: no packet has such an address, and the
    /// tool's nft variant refuses the rule.
    pub fn except(net: IpNet) -> Option<Self> {
        (net.prefix_len() > 0).then(|| Self { net: net.trunc(), inverted: true })
    }

    /// Whether it says anything: all addresses are no condition.
    pub(super) fn is_said(&self) -> bool {
        self.inverted || self.net.prefix_len() > 0
    }
}

// === impl Protocol ===

impl Protocol {
    /// As the tool calls it, and the extension with its ports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}
