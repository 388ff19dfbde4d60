//! Input of the core: batches of object events, local addresses, and failures of health-check servers.

use std::net::IpAddr;

use ferry_api::object::ObjectName;
use ferry_model::store::Event;

/// An input of the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// a source's batch, applied as a whole before Services are resolved
    Events(Vec<Event>),
    /// all addresses of the machine's interfaces, after one changed
    Addresses(Vec<IpAddr>),
    /// no new data: the events applied so far can't be resolved yet, or never
    Undecided,
    /// the number of manifest files that have not been readable since the start, so that their objects are unknown
    Unreadable(usize),
    /// the health checks of a Service can't be served
    HealthCheckFailed {
        /// the Service
        service: ObjectName,
        /// the reason
        note: String,
    },
}
