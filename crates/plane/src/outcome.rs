//! The outcome of one pass of an engine.

use std::sync::Arc;
use std::time::Duration;

use crate::{CommitError, Extent, Served, Unit, UnitId};

/// A unit that is in force now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// the unit
    pub id: UnitId,
    /// its state in force before; the same allocation if only its context has changed
    pub before: Option<Arc<Unit>>,
    /// its state in force now; `None`: removed
    pub after: Option<Arc<Unit>>,
}

/// The outcome of one pass of an engine.
#[derive(Debug, Default)]
pub struct Outcome {
    /// units the kernel has acknowledged, also those that changed nothing
    pub acked: Vec<Acknowledged>,
    /// frontends of objects that a full sync, or the way back after a failed commit, deleted. Other rules may serve some of
    /// them; the units in force name their own
    pub unserved: Vec<Served>,
    /// units that wait because the kernel rejects them, with the reason
    pub quarantined: Vec<(UnitId, Arc<CommitError>)>,
    /// error of the pass
    pub error: Option<Arc<CommitError>>,
    /// objects that were repaired after foreign changes; at most [`Outcome::NAMED`] are named
    pub repaired: Vec<String>,
    /// number of repaired objects
    pub repairs: usize,
    /// units whose objects were repaired: until then, packets to their frontends may have passed by their rules. `None`: no repair
    pub damaged: Option<Extent<UnitId>>,
    /// contested objects, whose repair is paused
    pub contested: Vec<String>,
    /// operations committed
    pub ops: usize,
    /// true if everything was compared with the kernel
    pub full: bool,
    /// true if the pass did any work; false if only the drift check failed (see `error`)
    pub worked: bool,
    /// duration of the pass
    pub elapsed: Duration,
    /// time of the next pass
    pub next: Next,
}

/// The time of an engine's next pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// when something changes, or the waker is woken
    #[default]
    Idle,
    /// after this time
    RetryAfter(Duration),
}

// === impl Outcome ===

impl Outcome {
    /// The most objects in [`Outcome::repaired`].
    pub const NAMED: usize = 16;
}
