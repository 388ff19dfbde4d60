//! Decodes trace notifications of nf_tables (`NFT_MSG_TRACE`): the rules, policies and ends of chains that one packet reaches.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::decode::open;
use super::expr_decode::decode_verdict;
use super::wire::{self, msg, trace};
use super::{TableFamily, Verdict};
use crate::netlink::{Malformed, Messages};

/// A trace notification: one packet at one rule, policy or end of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// tells packets apart, as long as they exist
    pub packet: u32,
    /// the family of the table; `None` for one of another family than `ip`, `ip6` and `inet`
    pub family: Option<TableFamily>,
    /// its table
    pub table: String,
    /// its chain
    pub chain: String,
    /// the rule, policy or end of the chain
    pub kind: TraceKind,
    /// the packet's addresses and ports at that time, if the kernel reports them: with the first event of a chain
    pub headers: Option<Headers>,
}

/// The point in a chain that a packet has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceKind {
    /// a rule that matched
    Rule {
        /// the handle of the rule
        handle: u64,
        /// its verdict; `None` if the next rule follows, and for verdicts that this program doesn't write
        verdict: Option<Verdict>,
    },
    /// the end of the chain, and its verdict
    End(Option<Verdict>),
    /// the policy of a base chain
    Policy {
        /// the packet is dropped
        drops: bool,
    },
}

/// The addresses and ports of a packet. Ports are those of TCP, UDP and SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// source address and port
    pub source: (IpAddr, u16),
    /// destination address and port
    pub destination: (IpAddr, u16),
}

/// Decodes the traces in one datagram. Other notifications are left out.
///
/// # Errors
/// [`Malformed`] if a length is invalid, or a packet, table, chain or kind is missing; earlier events were passed to `each`.
pub fn decode_traces(datagram: &[u8], each: &mut dyn FnMut(TraceEvent)) -> Result<(), Malformed> {
    for message in Messages::new(datagram) {
        let message = message?;
        if wire::message_of(message.kind) == Some(msg::TRACE) {
            each(decode(message.payload)?);
        }
    }
    Ok(())
}

fn decode(payload: &[u8]) -> Result<TraceEvent, Malformed> {
    let (family, mut attributes) = open(payload)?;
    let (mut packet, mut table, mut chain, mut number) = (None, None, None, None);
    let (mut handle, mut verdict, mut policy) = (0, None, None);
    let (mut network, mut transport) = (None, None);
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            trace::ID => packet = Some(attribute.be_u32()?),
            trace::TABLE => table = Some(attribute.text().into_owned()),
            trace::CHAIN => chain = Some(attribute.text().into_owned()),
            trace::TYPE => number = Some(attribute.be_u32()?),
            trace::RULE_HANDLE => handle = attribute.be_u64()?,
            trace::VERDICT => verdict = decode_verdict(attribute.nested())?,
            trace::POLICY => policy = Some(attribute.be_u32()?),
            trace::NETWORK_HEADER => network = Some(attribute.value),
            trace::TRANSPORT_HEADER => transport = Some(attribute.value),
            _ => {} // link layer, interfaces, mark, protocol, connection
        }
    }
    let (Some(packet), Some(table), Some(chain)) = (packet, table, chain) else {
        return Err(Malformed("trace without a packet, table or chain"));
    };
    let kind = match number {
        Some(trace::RULE) => TraceKind::Rule { handle, verdict },
        // A rule whose verdict is return has this type, too.
        Some(trace::RETURN) if handle != 0 => TraceKind::Rule { handle, verdict },
        Some(trace::RETURN) => TraceKind::End(verdict),
        Some(trace::POLICY_MET) => TraceKind::Policy { drops: policy == Some(0) },
        _ => return Err(Malformed("trace of an unknown kind")),
    };
    let headers = network.and_then(|network| headers(network, transport.unwrap_or_default()));
    Ok(TraceEvent { packet, family: TableFamily::from_number(family), table, chain, kind, headers })
}

/// The addresses in a network header, and the ports in a transport header, 0 if it is missing.
fn headers(network: &[u8], transport: &[u8]) -> Option<Headers> {
    let port =
        |at: usize| transport.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_be_bytes);
    let v4 = |at: usize| Some(IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(network.get(at..at + 4)?).ok()?)));
    let v6 = |at: usize| Some(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(network.get(at..at + 16)?).ok()?)));
    let (source, destination) = match network.first()? >> 4 {
        4 => (v4(12)?, v4(16)?),
        6 => (v6(8)?, v6(24)?),
        _ => return None,
    };
    Some(Headers { source: (source, port(0)), destination: (destination, port(2)) })
}
