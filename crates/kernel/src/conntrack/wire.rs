//! Numbers of `linux/netfilter/nfnetlink_conntrack.h`, and of the kernel's own `nf_internals.h` for filters.

use crate::netlink::nfnetlink;

/// `NFNL_SUBSYS_CTNETLINK`, the high byte of a message type
const SUBSYSTEM: u8 = 1;

/// message types
pub(super) mod msg {
    pub(in crate::conntrack) const NEW: u8 = 0;
    pub(in crate::conntrack) const GET: u8 = 1;
    pub(in crate::conntrack) const DELETE: u8 = 2;
}

/// attributes of an entry
pub(super) const TUPLE_ORIGINAL: u16 = 1;
pub(super) const TUPLE_REPLY: u16 = 2;
pub(super) const STATUS: u16 = 3;
pub(super) const TIMEOUT: u16 = 7;
pub(super) const ID: u16 = 12;
pub(super) const ZONE: u16 = 18;
pub(super) const FILTER: u16 = 25;
pub(super) const STATUS_MASK: u16 = 26;

/// attributes of a tuple
pub(super) mod tuple {
    pub(in crate::conntrack) const IP: u16 = 1;
    pub(in crate::conntrack) const PROTO: u16 = 2;
    pub(in crate::conntrack) const ZONE: u16 = 3;
    pub(in crate::conntrack) const V4_SOURCE: u16 = 1;
    pub(in crate::conntrack) const V4_DESTINATION: u16 = 2;
    pub(in crate::conntrack) const V6_SOURCE: u16 = 3;
    pub(in crate::conntrack) const V6_DESTINATION: u16 = 4;
    pub(in crate::conntrack) const PROTOCOL: u16 = 1;
    pub(in crate::conntrack) const SOURCE_PORT: u16 = 2;
    pub(in crate::conntrack) const DESTINATION_PORT: u16 = 3;
}

/// flags for the parts of the original tuple by which a dump is filtered
pub(super) mod filter {
    pub(in crate::conntrack) const ORIGINAL_FLAGS: u16 = 1;
    pub(in crate::conntrack) const F_DESTINATION: u32 = 1 << 1;
    pub(in crate::conntrack) const F_PROTOCOL: u32 = 1 << 3;
    pub(in crate::conntrack) const F_DESTINATION_PORT: u32 = 1 << 5;
}

/// The type of a message about connection tracking.
pub(super) const fn kind(message: u8) -> u16 {
    nfnetlink::kind(SUBSYSTEM, message)
}
