//! Fields of keys: the expressions that load them, and their text.

use ferry_api::object::Family;
use ferry_kernel::nft::{CtKey, Expr, MetaKey, PayloadBase, Reg};

/// One field of a key.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// the source address
    Source,
    /// the destination address
    Destination,
    /// the number of the transport protocol
    Protocol,
    /// the destination port
    Port,
    /// a random slot: number of slots, first slot
    Slot(u32, u32),
    /// the destination address of the connection before its translation
    OriginalDestination,
    /// the destination port of the connection before its translation
    OriginalPort,
    /// an octet of the source address, counted from 0
    SourceOctet(u32),
    /// an octet of the destination address, counted from 0
    DestinationOctet(u32),
}

/// VIP, protocol and port of the packet.
pub const VIP: &[Field] = &[Field::Destination, Field::Protocol, Field::Port];
/// Protocol and port of the packet.
pub const NODE_PORT: &[Field] = &[Field::Protocol, Field::Port];

// === impl Field ===

impl Field {
    /// Loads the field into a register; returns the number of registers of four bytes that it takes, too.
    pub(super) fn load(self, family: Family, dreg: Reg) -> (Expr, u32) {
        let (address, words) = (4 * address_words(family), address_words(family));
        let network = |offset| Expr::Payload { dreg, base: PayloadBase::Network, offset, len: address };
        let octet = |offset| Expr::Payload { dreg, base: PayloadBase::Network, offset, len: 1 };
        match self {
            Self::Source => (network(source_offset(family)), words),
            Self::Destination => (network(destination_offset(family)), words),
            Self::Protocol => (Expr::Meta { key: MetaKey::L4Proto, dreg }, 1),
            Self::Port => (Expr::Payload { dreg, base: PayloadBase::Transport, offset: 2, len: 2 }, 1),
            Self::Slot(modulus, offset) => (Expr::Numgen { dreg, modulus, random: true, offset }, 1),
            Self::OriginalDestination => {
                let key = match family {
                    Family::V4 => CtKey::DstIp,
                    Family::V6 => CtKey::DstIp6,
                };
                (Expr::Ct { key, original: true, dreg }, words)
            }
            Self::OriginalPort => (Expr::Ct { key: CtKey::ProtoDst, original: true, dreg }, 1),
            Self::SourceOctet(at) => (octet(source_offset(family) + at), 1),
            Self::DestinationOctet(at) => (octet(destination_offset(family) + at), 1),
        }
    }

    /// The field in the language of the `nft` tool.
    pub(super) fn text(self, family: Family) -> String {
        let ip = keyword(family);
        match self {
            Self::Source => format!("{ip} saddr"),
            Self::Destination => format!("{ip} daddr"),
            Self::Protocol => "meta l4proto".to_owned(),
            Self::Port => "th dport".to_owned(),
            Self::Slot(modulus, 0) => format!("numgen random mod {modulus}"),
            Self::Slot(modulus, offset) => format!("numgen random mod {modulus} offset {offset}"),
            Self::OriginalDestination => format!("ct original {ip} daddr"),
            Self::OriginalPort => "ct original proto-dst".to_owned(),
            Self::SourceOctet(at) => format!("@nh,{},8", 8 * (source_offset(family) + at)),
            Self::DestinationOctet(at) => format!("@nh,{},8", 8 * (destination_offset(family) + at)),
        }
    }
}

/// The family of a table, and of a header, in the language of the `nft` tool.
pub(crate) fn keyword(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Registers of four bytes that an address takes.
pub(super) fn address_words(family: Family) -> u32 {
    match family {
        Family::V4 => 1,
        Family::V6 => 4,
    }
}

/// Offset of the source address in the header, in bytes.
pub(super) fn source_offset(family: Family) -> u32 {
    match family {
        Family::V4 => 12,
        Family::V6 => 8,
    }
}

/// Offset of the destination address in the header, in bytes.
pub(super) fn destination_offset(family: Family) -> u32 {
    match family {
        Family::V4 => 16,
        Family::V6 => 24,
    }
}
