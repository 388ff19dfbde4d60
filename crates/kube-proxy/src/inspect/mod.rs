//! Subcommands that print and compare the desired state of a source's objects, resolved by the same core as in a run.
//!
//! `objects` reads a source once, `desired` has the core resolve it. `render` prints it as a mode would have it in the kernel; `explain`
//! prints the treatment of connections, and its reasons. `plan` compares objects with this machine's kernel, `verify` what
//! packets meet there, and `trace` takes the packet of one `connection` through it, by `engines` that only show; `comparison` prints all
//! three. Nothing here changes the machine.

mod comparison;
mod connection;
mod desired;
mod engines;
mod explain;
mod objects;
mod plan;
mod render;
mod terminal;
mod trace;
mod verify;

pub use self::comparison::Comparison;
pub use self::connection::Connection;
pub use self::desired::{Desired, InspectedNode, LocalAddresses, desired};
pub use self::explain::{ExplainRequest, Explanation, Fact, Question, explain, explanation, service_name};
pub use self::objects::ListedObjects;
pub use self::plan::{PlanRequest, plan};
pub use self::render::{RenderRequest, render};
pub use self::terminal::wants_colours;
pub use self::trace::{TraceRequest, trace};
pub use self::verify::{VerifyRequest, verify};

#[cfg(test)]
mod tests;
