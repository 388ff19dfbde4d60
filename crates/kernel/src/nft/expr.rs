//! Expressions, the parts of a rule.

use ferry_family::Family;

use std::time::Duration;

/// A register: 0 is the verdict register, 8 to 23 are sixteen registers of four bytes each. The kernel also numbers the first,
/// fifth, ninth and thirteenth as 1 to 4, of sixteen bytes; in rules that are read, they are 8, 12, 16 and 20.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(
    /// its number
    pub u32,
);

/// The verdict on a packet, or the chain in which evaluation continues.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// accept the packet at this hook
    Accept,
    /// drop the packet
    Drop,
    /// return to the calling chain
    Return,
    /// continue in this chain, and return from it
    Jump(String),
    /// continue in this chain without return
    Goto(String),
}

/// The header from which [`Expr::Payload`] counts its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PayloadBase {
    /// the IP header
    Network,
    /// the TCP, UDP or SCTP header
    Transport,
}

/// A property of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetaKey {
    /// its mark, in host byte order
    Mark,
    /// the name of its input interface, 16 bytes
    IifName,
    /// the name of its output interface, 16 bytes; empty before the packet is routed
    OifName,
    /// whether the kernel reports what the packet meets, one byte; can only be set
    NfTrace,
    /// its transport protocol, one byte
    L4Proto,
    /// its family, `NFPROTO_…`, one byte
    NfProto,
}

/// The comparison of [`Expr::Cmp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CmpOp {
    /// matches if equal
    Eq,
    /// matches if not equal
    Neq,
}

/// The operation of [`Expr::Dynset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DynsetOp {
    /// add the element if it does not exist
    Add,
    /// add the element, or renew its timeout
    Update,
    /// delete the element
    Delete,
}

/// The address that [`Expr::Fib`] looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FibAddress {
    /// the source address
    Source,
    /// the destination address
    Destination,
}

/// A property of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CtKey {
    /// state bits: invalid 1, established 2, related 4, new 8, untracked 64
    State,
    /// the direction of the packet, one byte: 0 as the first packet of the connection, 1 the other way
    Direction,
    /// status bits, `IPS_…`
    Status,
    /// the destination address of a direction, 4 bytes
    DstIp,
    /// the destination address of a direction, 16 bytes
    DstIp6,
    /// the destination port of a direction, 2 bytes in network byte order
    ProtoDst,
}

/// One expression of a rule. A rule is evaluated left to right and ends at the first expression that does not match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expr {
    /// loads bytes of the packet
    Payload {
        /// destination register
        dreg: Reg,
        /// the header at which the offset starts
        base: PayloadBase,
        /// in bytes
        offset: u32,
        /// in bytes
        len: u32,
    },
    /// loads a property of the packet
    Meta {
        /// the property
        key: MetaKey,
        /// destination register
        dreg: Reg,
    },
    /// sets a property of the packet
    SetMeta {
        /// the property
        key: MetaKey,
        /// source register
        sreg: Reg,
    },
    /// compares
    Cmp {
        /// source register
        sreg: Reg,
        /// the comparison
        op: CmpOp,
        /// the value to compare with
        data: Vec<u8>,
    },
    /// `dreg = sreg & mask ^ xor`
    Bitwise {
        /// source register
        sreg: Reg,
        /// destination register
        dreg: Reg,
        /// as long as the source value
        mask: Vec<u8>,
        /// as long as the source value
        xor: Vec<u8>,
    },
    /// looks up a key, matches if it exists
    Lookup {
        /// name of the set or map
        set: String,
        /// register of the key
        sreg: Reg,
        /// register for a map's value; [`Reg::VERDICT`] for a verdict map
        dreg: Option<Reg>,
        /// matches if the key does not exist
        invert: bool,
    },
    /// changes a set while a packet is evaluated
    Dynset {
        /// name of the set or map
        set: String,
        /// the operation
        op: DynsetOp,
        /// register of the key
        key: Reg,
        /// register of a map's value
        data: Option<Reg>,
        /// timeout of the element; `None`: the set's
        timeout: Option<Duration>,
    },
    /// loads a number from `offset` to `offset + modulus - 1`, in host byte order
    Numgen {
        /// destination register
        dreg: Reg,
        /// number of distinct values
        modulus: u32,
        /// random, else incremental
        random: bool,
        /// the lowest value
        offset: u32,
    },
    /// translates the destination
    Dnat {
        /// family of the new address
        family: Family,
        /// register of the new address
        address: Reg,
        /// register of the new port
        port: Option<Reg>,
    },
    /// translates the source to an address of the outgoing interface
    Masquerade {
        /// chooses the source port at random (`fully-random`)
        fully_random: bool,
    },
    /// answers with a TCP reset
    RejectTcpReset,
    /// answers with an ICMP destination unreachable, of the table's family
    RejectIcmp {
        /// the ICMP code
        code: u8,
    },
    /// loads the type of an address, `RTN_…`, in host byte order
    Fib {
        /// destination register
        dreg: Reg,
        /// the address to look up
        of: FibAddress,
    },
    /// loads a property of the connection
    Ct {
        /// the property
        key: CtKey,
        /// for the original direction, the only one supported for keys that have a direction
        original: bool,
        /// destination register
        dreg: Reg,
    },
    /// the verdict
    Verdict(Verdict),
    /// any other expression that was read
    Opaque {
        /// name of the expression
        name: String,
        /// its attributes
        data: Vec<u8>,
    },
}

// === impl Reg ===

impl Reg {
    /// The verdict register.
    pub const VERDICT: Self = Self(0);

    /// Converts the register number that the kernel reports.
    pub(crate) fn from_kernel(number: u32) -> Self {
        match number {
            1..=4 => Self(4 + 4 * number),
            _ => Self(number),
        }
    }
}
