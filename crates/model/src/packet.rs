//! The types of `decide`: the first packet of a connection, and the verdict on it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ferry_api::object::Protocol;

use crate::state::{Endpoint, Snat};

/// The first packet of a connection, with the facts that rules ask the kernel for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// where it comes from
    pub source: IpAddr,
    /// the source is an address of this node
    pub source_local: bool,
    /// the interface it came in through; `None` if a process of this node sent it
    pub interface: Option<String>,
    /// where it goes to
    pub destination: IpAddr,
    /// the destination is an address of this node
    pub destination_local: bool,
    /// its protocol
    pub protocol: Protocol,
    /// its destination port
    pub port: u16,
}

/// The verdict on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// to one of these, with equal probability; with the translation of its source address, hairpins included
    Forward(BTreeMap<Endpoint, Snat>),
    /// no answer
    Drop,
    /// refused with an answer (TCP reset or ICMP error)
    Reject,
    /// not ours
    Pass,
}
