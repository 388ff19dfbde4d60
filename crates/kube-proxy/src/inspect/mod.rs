//! What the program shows instead of running: the desired state of a source's objects, resolved by the same core as in a run.
//!
//! `objects` reads a source once, `desired` has the core resolve it. `render` prints it as a mode would have it in the kernel; `explain`
//! says what happens to connections, and why; `plan` compares it with this machine's kernel. Nothing here changes the machine.

mod desired;
mod explain;
mod objects;
mod plan;
mod render;

pub use self::desired::{Desired, DesiredSetup, LocalAddresses, desired};
pub use self::explain::{Connection, ExplainRequest, Question, explain, service_name};
pub use self::objects::Objects;
pub use self::plan::{PlanRequest, Planned, plan};
pub use self::render::{RenderRequest, render};
