//! The expressions that rules consist of.

use ferry_family::Family;

use std::time::Duration;

/// A register: 0 is the verdict's, 8 to 23 are sixteen of four bytes each. The kernel also knows the first, fifth,
/// ninth and thirteenth as 1 to 4, of sixteen bytes; what is read back says 8, 12, 16 and 20.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(
    /// its number
    pub u32,
);

/// What becomes of the packet, or where the evaluation goes on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// let the packet pass this hook
    Accept,
    /// throw the packet away
    Drop,
    /// go on in the chain that jumped here
    Return,
    /// go to this chain, and come back
    Jump(String),
    /// go to this chain for good
    Goto(String),
}

/// From where [`Expr::Payload`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PayloadBase {
    /// the start of the IP header
    Network,
    /// the start of the TCP, UDP or SCTP header
    Transport,
}

/// A property of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetaKey {
    /// its mark, in the machine's byte order
    Mark,
    /// the name of the interface it came in by, 16 bytes
    IifName,
    /// its transport protocol, one byte
    L4Proto,
    /// its family, `NFPROTO_…`, one byte
    NfProto,
}

/// How [`Expr::Cmp`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CmpOp {
    /// go on if equal
    Eq,
    /// go on if not equal
    Neq,
}

/// What [`Expr::Dynset`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DynsetOp {
    /// add it if it is not there
    Add,
    /// add it, or renew its timeout
    Update,
    /// take it away
    Delete,
}

/// Which address [`Expr::Fib`] looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FibOf {
    /// the source
    Source,
    /// the destination
    Destination,
}

/// A property of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CtKey {
    /// bits: invalid 1, established 2, related 4, new 8, untracked 64
    State,
    /// bits, `IPS_…`
    Status,
    /// the destination address of a direction, 4 bytes
    DstIp,
    /// the destination address of a direction, 16 bytes
    DstIp6,
    /// the destination port of a direction, 2 bytes in network byte order
    ProtoDst,
}

/// One expression of a rule. A rule is evaluated left to right and ends at the first that does not match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expr {
    /// loads bytes of the packet
    Payload {
        /// to
        dreg: Reg,
        /// counted from
        base: PayloadBase,
        /// in bytes
        offset: u32,
        /// in bytes
        len: u32,
    },
    /// loads a property of the packet
    Meta {
        /// which
        key: MetaKey,
        /// to
        dreg: Reg,
    },
    /// sets a property of the packet
    SetMeta {
        /// which
        key: MetaKey,
        /// from
        sreg: Reg,
    },
    /// compares
    Cmp {
        /// what was loaded
        sreg: Reg,
        /// how
        op: CmpOp,
        /// with what
        data: Vec<u8>,
    },
    /// `dreg = sreg & mask ^ xor`
    Bitwise {
        /// from
        sreg: Reg,
        /// to
        dreg: Reg,
        /// as long as the value
        mask: Vec<u8>,
        /// as long as the value
        xor: Vec<u8>,
    },
    /// looks a key up, goes on if it is there
    Lookup {
        /// where
        set: String,
        /// the key
        sreg: Reg,
        /// where a map's value goes; [`Reg`] 0 for a verdict map
        dreg: Option<Reg>,
        /// goes on if it is not there
        invert: bool,
    },
    /// changes a set from the packet's way
    Dynset {
        /// which
        set: String,
        /// how
        op: DynsetOp,
        /// the key
        key: Reg,
        /// a map's value
        data: Option<Reg>,
        /// `None`: the set's
        timeout: Option<Duration>,
    },
    /// loads a number from `offset` to `offset + modulus - 1`, in the machine's byte order
    Numgen {
        /// to
        dreg: Reg,
        /// how many numbers
        modulus: u32,
        /// else they come in order
        random: bool,
        /// the lowest
        offset: u32,
    },
    /// translates the destination
    Dnat {
        /// of the address
        family: Family,
        /// the new address
        address: Reg,
        /// the new port
        port: Option<Reg>,
    },
    /// translates the source to an address of this machine
    Masquerade {
        /// with a random port
        fully_random: bool,
    },
    /// answers with a TCP reset
    RejectTcpReset,
    /// answers with an ICMP destination unreachable, of the table's family
    RejectIcmp {
        /// ICMP's
        code: u8,
    },
    /// loads the type of an address, `RTN_…`, in the machine's byte order
    Fib {
        /// to
        dreg: Reg,
        /// of which address
        of: FibOf,
    },
    /// loads a property of the connection
    Ct {
        /// which
        key: CtKey,
        /// of the original direction; the keys that have a direction exist only with it here
        original: bool,
        /// to
        dreg: Reg,
    },
    /// the verdict
    Verdict(Verdict),
    /// anything else that was read back
    Opaque {
        /// of the expression
        name: String,
        /// its attributes
        data: Vec<u8>,
    },
}

// === impl Reg ===

impl Reg {
    /// The verdict register.
    pub const VERDICT: Self = Self(0);

    /// From the number that the kernel reports.
    pub(crate) fn from_kernel(number: u32) -> Self {
        match number {
            1..=4 => Self(4 + 4 * number),
            _ => Self(number),
        }
    }
}
