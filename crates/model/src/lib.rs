//! Computes the desired state of each Service in each IP family from API objects and node facts.
//!
//! Pure: no clock, file, environment or log. Each problem of an object becomes a [`Diagnostic`] (`diagnostic`).
//!
//! # The way of an event
//!
//! 1. [`Store::apply`] (`store`) replaces an object and returns the services to resolve again. `claims` chooses the owner of each
//!    frontend that several services claim, `node` retains addresses and pod ranges that the Node has lost.
//! 2. [`context()`] and [`base`] (`facts`) derive the context of all services (`context`) and the state outside of services from
//!    the configuration, the Node and the node's addresses.
//! 3. [`resolve()`] computes the state of one service in one family: `visible` selects its valid addresses and ports, `slices`
//!    collects its endpoints, without special addresses (`special`), `select` chooses the pools of each port by traffic policy,
//!    readiness and topology hints, `sources` merges its source ranges, `treatment` derives the treatment of connections, and
//!    `balance` the scheduler and weights (`scheduler`).
//! 4. The result is a [`ServiceState`] (`state`), which a mode compiles. Modes differ by their [`Profile`] (`profile`) only.
//!
//! Read first: `state`, then `resolve`.
//!
//! # Beside the way
//!
//! - [`decide()`] returns the verdict of a state on a packet (`packet`): the reference for the compiled rules of every mode.
//! - [`flow_rules`] (`flows`) determines the conntrack entries that a change of a state makes stale.
//! - [`Stack`] (`stack`) is the node's primary family, and what doesn't fit it in the configuration.
//! - [`reasons()`] returns why each endpoint of a Service is used or not.
//! - `explain` prints states as text, for golden files.

mod balance;
pub mod claims;
pub mod context;
pub mod decide;
pub mod diagnostic;
pub mod explain;
pub mod facts;
pub mod flows;
mod node;
pub mod packet;
pub mod profile;
pub mod reasons;
pub mod resolve;
pub mod scheduler;
mod select;
mod slices;
mod sources;
mod special;
pub mod stack;
pub mod state;
pub mod store;
mod treatment;
mod visible;

#[cfg(test)]
mod testing;

pub use claims::{Claims, claiming_field};
pub use context::{Context, LocalDetector, PerFamily};
pub use decide::{Origin, decide, origin};
pub use diagnostic::{Cause, Diagnostic};
pub use facts::{DetectLocal, NodePortSelection, Settings, base, context, node_port_addresses};
pub use flows::{Flow, FlowRule, RightFlows, flow_rules, rules_at};
pub use node::Retained;
pub use packet::{Packet, Verdict};
pub use profile::{Profile, ReplyOwner};
pub use reasons::{EndpointReasons, PortReasons, Unused, reasons};
pub use resolve::resolve;
pub use scheduler::{MissingSchedulers, Scheduler, UnknownScheduler};
pub use slices::may_serve;
pub use stack::{Stack, StackError};
pub use state::{
    Action, Affinity, Balance, BaseState, Endpoint, Frontend, FrontendAddr, FrontendKind, HealthCheck, MAX_COPIES,
    MAX_ENDPOINTS, MAX_WEIGHT, NodePortAddresses, Pool, PortState, Scope, ServiceState, Shadowed, Snat, SourceRanges,
    Treatment,
};
pub use store::{Dirty, Event, Limits, ServiceObjects, Store};
pub use visible::serves;
