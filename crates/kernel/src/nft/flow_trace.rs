//! Traces the packets of one flow through all chains of nf_tables, by the kernel's trace notifications.
//!
//! A table of its own marks these packets (`meta nftrace set 1`), before all chains but those of hook ingress and of priorities up to
//! that of defragmentation. The kernel deletes it with the socket that owns it (`NFT_TABLE_F_OWNER`), so that nothing is left however the
//! process ends. Over TCP and SCTP only packets that open a connection are marked: an established one would report each of its packets.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::time::Duration;

use ferry_family::Family;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    BaseHook, Chain, ChainKind, CmpOp, CommitFailure, Expr, Hook, MetaKey, NftBatch, NftSocket, PayloadBase, Reg,
    TraceEvent, decode_traces, wire,
};
use crate::netlink::{Notifications, Overrun, wait_readable_for};

/// Bytes of unread reports that the kernel keeps: those of some thousand packets.
const RECEIVE_BYTES: usize = 4 << 20;
/// Reports that are read at a time.
const DATAGRAMS: usize = 1024;
/// After defragmentation (`NF_IP_PRI_CONNTRACK_DEFRAG`, -400) and before everything else (`NF_IP_PRI_RAW`, -300).
const PRIORITY: i32 = -350;
const REGISTER: Reg = Reg(8);
const TCP: u8 = 6;
const SCTP: u8 = 132;
/// The byte of a TCP header with its flags; `SYN`, and `SYN` with `ACK`.
const TCP_FLAGS: u32 = 13;
const SYN: u8 = 0x02;
const SYN_OR_ACK: u8 = 0x12;
/// The first byte after an SCTP header, the type of a chunk, and that of `INIT`.
const SCTP_CHUNK: u32 = 12;
const INIT: u8 = 1;

/// The packets from a client to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// the client's address
    pub source: IpAddr,
    /// the destination's address, of the same family
    pub destination: IpAddr,
    /// number of the transport protocol
    pub protocol: u8,
    /// destination port
    pub port: u16,
}

/// The reports about a flow, until it is dropped.
#[derive(Debug)]
pub struct FlowTrace {
    notifications: Notifications,
    table: String,
    /// owns the table
    _owner: NftSocket,
}

// === impl FlowTrace ===

impl FlowTrace {
    /// Starts to mark the flow's packets in the network namespace of this thread. The table gets this name, which no other may have.
    ///
    /// # Errors
    /// The system's; `EPERM` without `CAP_NET_ADMIN`, `InvalidInput` for addresses of two families.
    pub fn start(flow: &Flow, table: &str) -> io::Result<Self> {
        let family = match (flow.source, flow.destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => Family::V4,
            (IpAddr::V6(_), IpAddr::V6(_)) => Family::V6,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "addresses of two families")),
        };
        let mut owner = NftSocket::open_required()?;
        let notifications = Notifications::open(NETLINK_NETFILTER)?;
        notifications.set_receive_buffer(RECEIVE_BYTES)?;
        notifications.join(wire::TRACE_GROUP)?;
        let mut batch = NftBatch::new(family, table);
        batch.add_owned_table();
        for hook in [Hook::Prerouting, Hook::Output] {
            let name = format!("{hook:?}").to_lowercase();
            let base = BaseHook { kind: ChainKind::Filter, hook, priority: PRIORITY };
            batch.add_chain(&Chain { name: name.clone(), hook: Some(base) });
            batch.add_rule(&name, &marking(flow));
        }
        owner.commit(batch).map_err(system_error)?;
        Ok(Self { notifications, table: table.to_owned(), _owner: owner })
    }

    /// The table that marks the packets. Its rules are in the reports, first.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Waits for a report; false if none came within this time.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        wait_readable_for(self.notifications.as_fd(), limit)
    }

    /// Reads reports that have come, a bounded number: under a flood more come than can be read.
    ///
    /// # Errors
    /// The system's, an overrun excepted.
    pub fn read(&mut self, each: &mut dyn FnMut(TraceEvent)) -> io::Result<Overrun> {
        self.notifications.read_some(DATAGRAMS, &mut |datagram| decode_traces(datagram, each))
    }
}

/// The rule that marks a flow's packets. The mark needs a register that isn't zero: that of the protocol.
fn marking(flow: &Flow) -> Vec<Expr> {
    let (source_at, destination_at) = match flow.source {
        IpAddr::V4(_) => (12, 16),
        IpAddr::V6(_) => (8, 24),
    };
    let is = |data: Vec<u8>| Expr::Cmp { sreg: REGISTER, op: CmpOp::Eq, data };
    let field = |base, offset, len| Expr::Payload { dreg: REGISTER, base, offset, len };
    let address = |address: IpAddr, offset| {
        let (len, octets) = match address {
            IpAddr::V4(address) => (4, address.octets().to_vec()),
            IpAddr::V6(address) => (16, address.octets().to_vec()),
        };
        [field(PayloadBase::Network, offset, len), is(octets)]
    };
    let protocol = || [Expr::Meta { key: MetaKey::L4Proto, dreg: REGISTER }, is(vec![flow.protocol])];
    let mut exprs = Vec::new();
    exprs.extend(address(flow.source, source_at));
    exprs.extend(address(flow.destination, destination_at));
    exprs.extend(protocol());
    exprs.extend([field(PayloadBase::Transport, 2, 2), is(flow.port.to_be_bytes().to_vec())]);
    match flow.protocol {
        TCP => {
            let mask = Expr::Bitwise { sreg: REGISTER, dreg: REGISTER, mask: vec![SYN_OR_ACK], xor: vec![0] };
            exprs.extend([field(PayloadBase::Transport, TCP_FLAGS, 1), mask, is(vec![SYN])]);
        }
        SCTP => exprs.extend([field(PayloadBase::Transport, SCTP_CHUNK, 1), is(vec![INIT])]),
        _ => {}
    }
    exprs.extend(protocol());
    exprs.push(Expr::SetMeta { key: MetaKey::NfTrace, sreg: REGISTER });
    exprs
}

/// The system's error of a commit: that of the first refused operation, if the kernel names one.
fn system_error(failure: CommitFailure) -> io::Error {
    match failure {
        CommitFailure::Messages(errors) => match errors.into_iter().next() {
            Some(first) => first.error.into(),
            None => io::Error::other("the kernel refused the table without a reason"),
        },
        CommitFailure::Io(error) | CommitFailure::Lost(error) => error,
    }
}
