//! Health of the proxy, shared between the threads that change it and those that answer probes: how long changes of an IP
//! family have waited for the kernel ([`Pulse`]), how stale the objects of the API server are ([`Freshness`]), and what tests of the data path
//! have found ([`DataPath`]).

mod data_path;
mod freshness;
mod pulse;

pub use data_path::{DataPath, TestState};
pub use freshness::{Fresh, Freshness};
pub use pulse::{Pulse, Pulses};
