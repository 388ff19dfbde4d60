//! TCP: accepts connections, dials endpoints, relays.

mod accept;
mod connection;
mod dial;

pub(crate) use accept::accept;
