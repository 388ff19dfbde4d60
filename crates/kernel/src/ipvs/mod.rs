//! IPVS over generic netlink: virtual servers, their destinations, and timeouts of connections; single connections, and the destinations of
//! all servers at once, from files of `/proc`.
//!
//! Layouts and numbers are those of `linux/ip_vs.h`. A *server* is an address, port and protocol that clients use (the kernel's
//! name is service), a *destination* one of the addresses and ports that serve it. [`IpvsSocket`] dumps both and commits
//! [`Command`]s, many with one `send`.
//!
//! Facts of the kernel that callers have to know:
//!
//! - There are no transactions: each command takes effect, or is refused, on its own, in the order of sending.
//! - All netlink requests, also reads, need `CAP_NET_ADMIN` in the initial user namespace. The table belongs to the network namespace.
//! - A destination is refused with `EINVAL` if its address isn't unicast in the routing tables. Also a namespace whose loopback
//!   interface was never up refuses all of IPv4: it has no routing tables yet.
//! - The kernel loads the module of a scheduler, `ip_vs_NAME`, when the first server needs it.
//! - Dumps don't report changes that happen while they run: a server that was there all the time may be missing, or listed
//!   twice, if another one was added or deleted meanwhile. A commit of what seems to be missing is then refused with `EEXIST`.
//! - A dump of the destinations of a server that does not exist is an empty list, not an error.
//! - There are no notifications of changes.
//!
//! Servers of firewall marks and of other protocols than TCP, UDP and SCTP belong to other programs: they are counted, but
//! neither decoded nor changed. Persistence engines and parameters of tunnels are not decoded; [`Command::EditServer`] and
//! [`Command::EditDestination`] reset them.

mod command;
mod connections;
mod destination;
mod listing;
mod server;
mod socket;
mod timeouts;
mod wire;

#[cfg(test)]
mod tests;

pub use command::{Command, RefusalCause, RefusedCommand};
pub use connections::{decode_one_sided, one_sided};
pub use destination::{Connections, Forwarding, IpvsDestination, decode_destination};
pub use listing::{ListedLine, ListedServer, Listing, decode_listed};
pub use server::{Flags, IpvsProtocol, IpvsServer, Scheduler, ServerId, Statistics, decode_server, decode_statistics};
pub use socket::{COMMANDS_PER_SEND, IpvsError, IpvsSocket, Lost, Sent};
pub use timeouts::{Timeouts, decode_timeouts};
