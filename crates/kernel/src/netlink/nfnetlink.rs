//! The message header common to all netfilter subsystems, `struct nfgenmsg` in linux/netfilter/nfnetlink.h.

use super::MessageWriter;

/// Bytes of the header, which follows the netlink header: family, version, resource.
pub(crate) const HEADER_LEN: usize = 4;

/// The netlink message type of a subsystem's message.
pub(crate) const fn kind(subsystem: u8, message: u8) -> u16 {
    u16::from_be_bytes([subsystem, message])
}

/// Writes the header of a message about this family; 0 (`NFPROTO_UNSPEC`): about no family.
pub(crate) fn header(writer: &mut MessageWriter, family: u8) {
    writer.raw(&[family, 0, 0, 0]);
}
