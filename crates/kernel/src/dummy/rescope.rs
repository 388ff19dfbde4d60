//! The steps that change the scope of an IPv4 address: the kernel can't do that in place.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::address::{encode_reference, encode_service, encode_stand_in};
use super::wire::msg;
use crate::netlink::{MessageWriter, flag};

/// A step. The kernel has two addresses that differ only in their prefix side by side, and keeps the route that makes an address
/// local until the last of them is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RescopeStep {
    /// adds the address with another prefix, which stands in for it
    AddStandIn,
    /// removes the address
    Remove,
    /// adds it with scope `host`
    Add,
    /// removes the one that stood in for it
    RemoveStandIn,
}

// === impl RescopeStep ===

impl RescopeStep {
    pub(super) const ALL: [Self; 4] = [Self::AddStandIn, Self::Remove, Self::Add, Self::RemoveStandIn];

    /// Type and flags of the message.
    pub(super) const fn message(self) -> (u16, u16) {
        match self {
            Self::AddStandIn | Self::Add => (msg::NEW_ADDRESS, flag::CREATE | flag::EXCL),
            Self::Remove | Self::RemoveStandIn => (msg::DELETE_ADDRESS, 0),
        }
    }

    /// Writes the payload of the message.
    pub(super) fn encode(self, writer: &mut MessageWriter, device: u32, ip: Ipv4Addr) {
        match self {
            Self::AddStandIn | Self::RemoveStandIn => encode_stand_in(writer, device, ip),
            Self::Remove => encode_reference(writer, device, IpNet::from(IpAddr::V4(ip))),
            Self::Add => encode_service(writer, device, ip.into()),
        }
    }
}
