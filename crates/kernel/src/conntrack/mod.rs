//! Connection tracking: what the kernel remembers of each flow, a filtered list of it, and the removal of single entries.
//!
//! Layouts and numbers are those of `linux/netfilter/nfnetlink_conntrack.h`. There is no way to empty the table: the
//! kernel takes a removal that names no entry for one, and none is ever written.

mod entry;
mod filter;
mod proc;
mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod wire;

#[cfg(test)]
mod tests;

pub use entry::{Entry, Status, Tuple, decode_entry};
pub use filter::Filter;
pub use proc::decode_line;
pub use socket::{AT_ONCE, Deletion, Error, Socket};
