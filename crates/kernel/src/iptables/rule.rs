//! Typed rules, tables and chain names of iptables, as far as this program writes them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;

/// A table; the order is that in which tables are read.
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
/// linux/netfilter/x_tables.h, which includes the final NUL).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IptablesChainName {
    bytes: [u8; Self::MAX],
    length: u8,
}

/// One rule of a chain. Its matches are in the order in which they are written, which the kernel preserves.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// `-s`
    pub source: Option<AddressMatch>,
    /// `-d`
    pub destination: Option<AddressMatch>,
    /// `-i`; boxed because few of many rules have it
    pub input: Option<Box<InterfaceMatch>>,
    /// `-p`
    pub protocol: Option<PortProtocol>,
    /// `-m …`
    pub matches: Box<[Match]>,
    /// `-j`
    pub target: Target,
}

/// A condition on a packet's source or destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressMatch {
    /// without host bits
    pub net: IpNet,
    /// `!`: all other addresses
    pub inverted: bool,
}

/// A condition on a packet's input interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceMatch {
    /// its name; a final `+` matches all names with this prefix
    pub name: Box<str>,
    /// `!`: any other
    pub inverted: bool,
}

/// Protocols with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortProtocol {
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
        /// the states
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
        /// expected value of the masked bits
        value: u32,
        /// bits to compare
        mask: u32,
    },
    /// `-m nfacct --nfacct-name`: at most 31 bytes of printable ASCII without blanks
    Account(Box<str>),
    /// `-m recent --rcheck --seconds … --reap --name … --rsource`, with a mask of all bits
    RecentlySeen {
        /// maximum age in seconds: from 1 to 2^31 - 1, because the tools print larger ones with a sign
        seconds: u32,
        /// name of the list
        list: Box<IptablesChainName>,
    },
    /// `-m recent --set --name … --rsource`, with a mask of all bits
    SeeNow {
        /// name of the list
        list: Box<IptablesChainName>,
    },
    /// `-m set --match-set … src`: the source address is in this ipset
    InSet {
        /// name of the set
        set: Box<IptablesChainName>,
    },
    /// `-m statistic --mode random --probability`, in units of 1/2^31
    Random(u32),
}

/// A set of connection states.
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

/// The target: the action on a packet that matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// no target: evaluation continues with the next rule
    #[default]
    None,
    /// evaluates another chain, and returns from its end
    Jump(IptablesChainName),
    /// returns to the calling chain
    Return,
    /// accepts the packet
    Accept,
    /// drops the packet without an answer
    Drop,
    /// rejects the packet with an ICMP (ICMPv6) message: port unreachable
    Reject,
    /// `MARK --set-xmark value/mask`: clears the bits of the mask, then flips those of the value
    SetXmark {
        /// bits to flip
        value: u32,
        /// bits to clear
        mask: u32,
    },
    /// translates the source to an address of the outgoing interface
    Masquerade {
        /// `--random-fully`
        random_fully: bool,
    },
    /// translates the destination to this address and port
    Dnat(SocketAddr),
}

// === impl Table ===

impl Table {
    /// All tables.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Filter, Self::Nat];

    /// The tool's name for the table.
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

// === impl IptablesChainName ===

impl IptablesChainName {
    /// Maximum length in bytes.
    pub const MAX: usize = 28;

    /// Validates a name; `None` if the text is not a valid one.
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=Self::MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..text.len()).filter(|_| fits)?.copy_from_slice(text.as_bytes());
        Some(Self { bytes, length: u8::try_from(text.len()).ok()? })
    }

    /// A name that is a constant of the program.
    ///
    /// # Panics
    /// If the text is not a valid name; in a constant that is a compile-time error.
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

impl fmt::Display for IptablesChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for IptablesChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl AddressMatch ===

impl AddressMatch {
    /// Matches these addresses, without their host bits; `None` for all addresses, for which the tools print nothing.
    pub fn only(net: IpNet) -> Option<Self> {
        (net.prefix_len() > 0).then(|| Self { net: net.trunc(), inverted: false })
    }

    /// Matches all but these addresses, without their host bits. `None` if these are all addresses: no packet would match, and
    /// the tool's nft variant refuses the rule.
    pub fn except(net: IpNet) -> Option<Self> {
        (net.prefix_len() > 0).then(|| Self { net: net.trunc(), inverted: true })
    }

    /// True unless it matches all addresses, which is no condition.
    pub(super) fn is_condition(&self) -> bool {
        self.inverted || self.net.prefix_len() > 0
    }
}

// === impl PortProtocol ===

impl PortProtocol {
    /// The tool's name for the protocol and for the match extension with its ports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}
