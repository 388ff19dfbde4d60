//! Relays TCP connections and UDP datagrams from listeners to endpoints: the part of mode userspace that moves bytes, without
//! Services, Kubernetes or nftables.
//!
//! - [`Relay`] (`relay.rs`) holds a set of listeners that changes while it runs; `listener.rs` opens one, serves it, and opens it
//!   again after a failure; `socket.rs` has the options of sockets.
//! - [`Gate`] (`gate.rs`) is a listener for many destinations, which nf_tables redirects to it; [`Routes`] (`route.rs`) has the port of
//!   each.
//! - [`Port`] is what listeners serve: source ranges ([`SourceRanges`]), a limit, counters, and the choice of endpoints
//!   ([`Choose`]). [`Balancer`] chooses round robin, with session affinity, failing endpoints last.
//! - [`SocketName`] and [`Inheritance`] (`handover.rs`) are for listening sockets that pass from one process to the next one.
//! - `tcp` accepts and dials; `copy` moves the bytes of a connection, large streams inside the kernel (`copy/splice.rs`), others
//!   through a buffer on the stack (`copy/buffered.rs`), so that an idle connection owns neither buffer nor pipe.
//! - `udp` has an association for each client of a listener.
//! - [`Worker`] (`worker.rs`) is a thread with its runtime; a connection stays on one.
//! - `system` has the operating system's part, a file for each: Linux and Windows.
//! - [`PortCounters`], [`EndpointCounters`] and [`Totals`] are read without a lock; [`raise_limit`] raises the limit of
//!   descriptors.
//!
//! Read first: `relay.rs`, `tcp/connection.rs`, `copy/mod.rs`.

mod balancer;
mod choose;
mod config;
mod copy;
mod counters;
mod endpoint;
mod gate;
mod handover;
mod listener;
mod port;
mod protocol;
mod relay;
mod route;
mod socket;
mod sources;
mod system;
mod tcp;
mod udp;
mod worker;

pub use balancer::{Balancer, DEFAULT_PENALTY};
pub use choose::{Choice, Choose, MAX_TRIES};
pub use config::{Keepalive, RelayConfig, Removal};
pub use counters::{Counter, EndpointCounters, Gauge, PortCounters, Totals};
pub use endpoint::Endpoint;
pub use gate::Gate;
pub use handover::{Inheritance, InvalidName, SocketName};
pub use listener::{Listener, ListenerError, ListenerState};
pub use port::Port;
pub use protocol::Protocol;
pub use relay::{ListenerId, Relay};
pub use route::{Destination, Route, Routes};
pub use socket::Bind;
pub use sources::SourceRanges;
pub use system::{OpenSocket, raise_limit};
pub use worker::Worker;
