//! Timeouts of connections.

use super::wire::{self, command, message};
use crate::netlink::{Malformed, MessageWriter};

/// The seconds after its last packet when a connection ends: three values for all servers of a network namespace. The kernel has
/// others for the further states of TCP and for SCTP, which it doesn't let anybody change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// of established TCP connections
    pub tcp_seconds: u32,
    /// of TCP connections after a FIN
    pub tcp_fin_seconds: u32,
    /// of UDP
    pub udp_seconds: u32,
}

// === impl Timeouts ===

impl Timeouts {
    pub(super) fn encode(self, writer: &mut MessageWriter) {
        wire::number(writer, message::TIMEOUT_TCP, self.tcp_seconds);
        wire::number(writer, message::TIMEOUT_TCP_FIN, self.tcp_fin_seconds);
        wire::number(writer, message::TIMEOUT_UDP, self.udp_seconds);
    }
}

/// Decodes the payload of a message with timeouts. Those of a protocol that the kernel was built without are 0.
///
/// # Errors
/// [`Malformed`] if the payload has no timeouts.
pub fn decode_timeouts(payload: &[u8]) -> Result<Timeouts, Malformed> {
    let mut attributes = wire::body(payload, command::SET_CONFIG)?;
    let mut decoded = Timeouts { tcp_seconds: 0, tcp_fin_seconds: 0, udp_seconds: 0 };
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            message::TIMEOUT_TCP => decoded.tcp_seconds = attribute.native_u32()?,
            message::TIMEOUT_TCP_FIN => decoded.tcp_fin_seconds = attribute.native_u32()?,
            message::TIMEOUT_UDP => decoded.udp_seconds = attribute.native_u32()?,
            _ => {} // attributes of later kernels
        }
    }
    Ok(decoded)
}
