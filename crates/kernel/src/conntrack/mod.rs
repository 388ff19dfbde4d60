//! Connection tracking over netlink: filtered dumps of the conntrack table, and deletion of single entries.
//!
//! Layouts and numbers are those of `linux/netfilter/nfnetlink_conntrack.h`. No function empties the table: the kernel takes a
//! deletion that names no entry as a flush, and such a message is never written.

mod entry;
mod filter;
mod proc;
mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod wire;

#[cfg(test)]
mod tests;

pub use entry::{Entry, FlowStatus, Tuple, decode_entry};
pub use filter::Filter;
pub use proc::decode_line;
pub use socket::{ConntrackError, ConntrackSocket, DELETIONS_PER_SEND, Deletion};
