//! Health of the proxy, shared between the threads that change it and those that answer probes: how long changes of an IP
//! family have waited for the kernel ([`Pulse`]), and how stale the objects of the API server are ([`Freshness`]).

mod freshness;
mod pulse;

pub use freshness::{Fresh, Freshness};
pub use pulse::{Pulse, Pulses};
