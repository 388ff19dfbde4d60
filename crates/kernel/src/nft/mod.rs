//! nf_tables: typed objects, transactions that write them, a socket that reads them back, and notifications: a monitor of all
//! changes, a listener that separates foreign changes from those of this process, and reports of what the packets of a flow meet.
//!
//! Layouts and numbers are those of `linux/netfilter/nf_tables.h`. Only objects that this program writes are typed; all other
//! objects are decoded as [`Expr::Opaque`], [`ChainKind::Other`] or [`OwnedData::Other`], so that a comparison with the desired
//! state finds the difference.

mod batch;
mod consistency;
mod decode;
mod element;
mod encode;
mod event;
mod expr;
mod expr_decode;
mod expr_text;
mod flow_trace;
mod listener;
mod monitor;
mod object;
mod octets;
mod socket;
mod trace_event;
pub mod userdata;
mod wire;

#[cfg(test)]
mod tests;

pub use batch::{BatchError, CommitFailure, CommitStats, NftBatch};
pub use decode::{
    decode_base_chain, decode_chain, decode_elements, decode_expression, decode_generation, decode_rule, decode_set,
    decode_table,
};
pub use element::{Element, ElementData, OwnedData, VerdictRef};
pub use event::{Changed, NftEvent, NftNotice, decode_events};
pub use expr::{CmpOp, CtKey, DynsetOp, Expr, FibAddress, MetaKey, PayloadBase, Reg, Verdict};
pub use expr_text::expressions_text;
pub use flow_trace::{Flow, FlowTrace};
pub use listener::{Accounting, Arrivals, ForeignChanges, NftListener, ReadProgress};
pub use monitor::Monitor;
pub use object::{BaseChain, BaseHook, Chain, ChainKind, Hook, Rule, Set, SetData, SetFlags, Table, TableFamily};
pub use octets::Octets;
pub use socket::NftSocket;
pub use trace_event::{Headers, TraceEvent, TraceKind, decode_traces};

/// Data types of keys and values. The kernel only stores them; the `nft` tool formats values by them.
pub mod data_type {
    /// a number in host byte order
    pub const INTEGER: u32 = 4;
    /// four bytes
    pub const IPV4_ADDR: u32 = 7;
    /// sixteen bytes
    pub const IPV6_ADDR: u32 = 8;
    /// an IP protocol number, one byte
    pub const INET_PROTO: u32 = 12;
    /// a port in network byte order, two bytes
    pub const INET_SERVICE: u32 = 13;
    /// a packet mark in host byte order
    pub const MARK: u32 = 19;
    /// the value of a verdict map
    pub const VERDICT: u32 = 0xffff_ff00;
}

/// The type of a concatenation: six bits per field, the first field in the highest bits. At most five fields fit.
pub const fn concat_type(fields: &[u32]) -> u32 {
    match fields {
        [] => 0,
        [rest @ .., last] => concat_type(rest) << 6 | *last,
    }
}
