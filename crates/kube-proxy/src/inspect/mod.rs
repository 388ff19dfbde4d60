//! What the program shows instead of running: the desired state of a source's objects, resolved by the same core as in a run.
//!
//! `objects` reads a source once, `desired` has the core resolve it. `render` prints it as a mode would have it in the kernel; `explain`
//! says what happens to connections, and why, of what is `known`. `plan` compares objects with this machine's kernel, and `verify` what
//! packets meet there, by `engines` that only show; `comparison` prints both. Nothing here changes the machine.

mod comparison;
mod desired;
mod engines;
mod explain;
mod known;
mod objects;
mod plan;
mod render;
mod verify;

pub use self::comparison::Comparison;
pub use self::desired::{Desired, DesiredSetup, LocalAddresses, desired};
pub use self::explain::{Connection, ExplainRequest, Question, explain, service_name};
pub use self::objects::Objects;
pub use self::plan::{PlanRequest, plan};
pub use self::render::{RenderRequest, render};
pub use self::verify::{VerifyRequest, verify};
