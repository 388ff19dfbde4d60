//! Input of the core: batches of object events, local addresses, and failures of health-check servers.

use std::net::IpAddr;

use ferry_api::object::ObjectName;
use ferry_model::store::Event;

/// What the core is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// a source's batch; it is applied as a whole before anything is decided
    Events(Vec<Event>),
    /// all addresses of the machine's interfaces, after one changed
    Addresses(Vec<IpAddr>),
    /// nothing new: what has been applied can't be decided yet, or never
    Undecided,
    /// so many files are there that could not be read once since the start: nobody knows what they hold
    Unreadable(usize),
    /// the health checks of a Service can't be answered
    HealthCheckFailed {
        /// the Service
        service: ObjectName,
        /// what is wrong
        note: String,
    },
}
