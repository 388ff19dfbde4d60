//! The pieces of the kube-proxy executable: edges and wiring. Start reading in [`app`].
//!
//! Threads: the main one has the edges (HTTP, reports), `source` follows manifests, `addresses` the machine's own
//! addresses, `core` decides, `sync-v4` and `sync-v6` each drive an engine, and `flows` removes what the kernel remembers of
//! rules that are gone. After a change of mode `handover` removes what the other left, and ends.

pub mod app;
mod backoff;
pub mod cli;
pub mod client;
pub mod commands;
pub mod core;
pub mod engine_loop;
pub mod events;
pub mod flows;
pub mod handover;
pub mod logging;
pub mod origin;
pub mod planes;
pub mod platform;
pub mod report;
pub mod serve;
pub mod source;
pub mod version;
