//! Objects and node facts in, decisions out: what the kernel must do for each Service, in each IP family.
//!
//! Pure: no clock, file, environment or log. What is wrong with an object becomes a [`Diagnostic`].
//!
//! Read `state` first, then `resolve`.

pub mod context;
pub mod diagnostic;
pub mod packet;
pub mod profile;
pub mod state;

pub use context::{Context, LocalDetector, PerFamily};
pub use diagnostic::Diagnostic;
pub use packet::{Packet, Verdict};
pub use profile::Profile;
pub use state::{
    Action, Affinity, BaseState, Endpoint, Frontend, FrontendAddr, FrontendKind, NodePortAddresses, Pool, PortState,
    Scope, ServiceState, Snat, SourceRanges, Treatment,
};
