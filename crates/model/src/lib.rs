//! Objects and node facts in, decisions out: what the kernel must do for each Service, in each IP family.
//!
//! Pure: no clock, file, environment or log. What is wrong with an object becomes a [`Diagnostic`].
//!
//! Read `state` first, then `resolve`. Events change the [`Store`], which returns the services to resolve again;
//! [`resolve()`] computes the state of one service in one family, [`base`] the state outside of services, and
//! [`decide()`] gives the verdict of a state on a packet.

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
pub mod resolve;
mod select;
mod slices;
mod sources;
mod special;
pub mod state;
pub mod store;
mod treatment;
mod visible;

#[cfg(test)]
mod testing;

pub use claims::Claims;
pub use context::{Context, LocalDetector, PerFamily};
pub use decide::decide;
pub use diagnostic::{Cause, Diagnostic};
pub use facts::{DetectLocal, NodePortSelection, Settings, base, context, node_port_addresses};
pub use flows::{Flow, FlowRule, RightFlows, flow_rules};
pub use node::Retained;
pub use packet::{Packet, Verdict};
pub use profile::{Profile, ReplyOwner};
pub use resolve::resolve;
pub use slices::may_serve;
pub use state::{
    Action, Affinity, BaseState, Endpoint, Frontend, FrontendAddr, FrontendKind, HealthCheck, MAX_COPIES,
    MAX_ENDPOINTS, NodePortAddresses, Pool, PortState, Scope, ServiceState, Snat, SourceRanges, Treatment,
};
pub use store::{Dirty, Event, Limits, ServiceObjects, Store};
pub use visible::serves;
