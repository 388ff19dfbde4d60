//! The userspace mode: the proxy accepts the connections to Services itself, and relays them to endpoints (crate `ferry-relay`).
//!
//! There are two ways in which traffic reaches it, each with objects, a compiler and layers of its own: [`redirect`] by an nf_tables
//! table, and [`bind`] by listeners at the addresses of Services, which are made this machine's. Linux has both, Windows the second one.
//!
//! Both are made of the same parts. [`port`] identifies the service ports, and `balancers` has the choice among their endpoints,
//! `change` the comparison that leaves frontends out.
//! [`SharedRelay`] (`shared`) is what the engines of a process share: the relay, the names of its listeners, and the sockets of the
//! process before. [`Readings`] has the counters, by port of a Service, [`DatagramEndpoints`] what is behind UDP listeners, and `failing`
//! reports listeners that are not open. [`Onward`] passes on connections that wait in the sockets of a process before, once another
//! mode or way serves.
//!
//! Read first: `redirect/mod.rs` or `bind/mod.rs`. [docs/modes/userspace.md](../../../docs/modes/userspace.md) shows the result.

mod balancers;
pub mod bind;
mod change;
mod datagrams;
mod failing;
mod onward;
pub mod port;
mod readings;
#[cfg(target_os = "linux")]
pub mod redirect;
mod shared;

pub use datagrams::DatagramEndpoints;
pub use failing::{ListenerReports, Report};
pub use ferry_relay::{Inheritance, Relay, RelayConfig, Removal, Totals, Worker, raise_limit};
pub use onward::Onward;
pub use readings::{EndpointReading, PortDirectory, PortReading, Readings};
pub use shared::{ListenerNames, SharedRelay, is_gate};
