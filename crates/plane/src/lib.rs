//! The contract of a mode's data plane, and the engine that reconciles it with the desired state. It depends on no mode.
//!
//! A mode has two halves. [`Compile`] turns a [`Unit`] of desired state into kernel objects: pure, total, deterministic.
//! [`Kernel`] reads objects back, commits batches of operations and reports foreign changes. The [`Engine`](engine::Engine)
//! between them decides when to commit what, and reacts to failures. A mode of several subsystems combines
//! [`Layered`](layered::Layered) kernels under one engine.
//!
//! # The way of a change
//!
//! 1. The core sends a [`Delta`] of changed units through the [`mailbox`]; later changes of a unit replace earlier ones.
//! 2. [`SyncEngine::offer`] makes them pending, [`SyncEngine::sync`] commits them (`engine/changes.rs`): `attempt` pairs each
//!    unit with its acknowledged state, the mode compiles both, `diff` computes the operations, `batch` orders them by rank.
//! 3. After a success the units are acknowledged, and [`Outcome::acked`] (`outcome`) returns them.
//! 4. A [`CommitError`] (`failure`) leads to a reconciliation with the actual objects (`engine/conflict.rs`,
//!    `engine/unverified.rs`), to `quarantine` (`engine/blame.rs`), or to a retry.
//! 5. Foreign changes come from [`Kernel::news`] and [`Kernel::tend`]. `engine/candidates.rs` decides when to compare them,
//!    `engine/drift.rs` repairs, `contested` pauses the repair of contested objects. `engine/full.rs` compares everything: at a
//!    start, once an hour, and when single keys are not enough.
//!
//! `plan` and `path` are for people: what a repair would change, and how a packet goes. `commit_lock` serialises a process's commits. For tests, `memory` is a kernel that checks references and fails on demand.

mod attempt;
mod batch;
mod commit_lock;
mod contested;
mod diff;
mod drift;
pub mod engine;
mod failure;
pub mod layered;
pub mod mailbox;
#[cfg(feature = "testing")]
pub mod memory;
mod outcome;
mod path;
mod plan;
mod quarantine;
mod unit;

use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::task::Waker;
use std::time::{Duration, Instant};

use ferry_api::object::Protocol;
use ferry_model::{Context, FrontendAddr, Profile};

pub use batch::{Batch, Op};
pub use commit_lock::{CommitLock, thread_name};
pub use drift::{Drift, Extent};
pub use failure::{Applied, CommitError, CommitFailure, Refusal};
pub use ferry_api::object::ObjectName;
pub use outcome::{Acknowledged, Next, Outcome};
pub use path::{Inspector, PacketPath, PathStep, RuleTexts, Trace, Traced, Tracer};
pub use plan::Plan;
pub use unit::{Acked, Delta, Unit, UnitId};

/// One thing we own in the kernel: a set, a chain with all its rules, a map element, a virtual server, a listener …
/// `Display` is what `render` prints.
pub trait Object: Ord + Clone + fmt::Display + fmt::Debug {
    /// The identity of the object, whatever its content.
    type Key: Ord + Clone + Hash + fmt::Display + fmt::Debug;
    /// The key.
    fn key(&self) -> Self::Key;
    /// Created low to high, deleted high to low; an object refers only to lower ranks.
    fn rank(&self) -> u8;
    /// Stands for the key of a shared object in the engine's reference counts: it is held in memory once for each such object
    /// and should be small.
    type Shared: Copy + Eq + Hash + Send + fmt::Debug;
    /// False if the mode has no shared objects: the engine counts no references then.
    const SHARES: bool = true;
    /// The shared key of this object; `None` if only one unit can want it.
    fn shared(&self) -> Option<Self::Shared> {
        None
    }
    /// True if the object stays when no unit wants it any more (an idle chain): then it is no drift, and only clean-up removes
    /// it.
    fn spare(&self) -> bool {
        false
    }
    /// Not even clean-up removes it: other programs count on it.
    fn stays(&self) -> bool {
        false
    }
    /// The frontend or node addresses that only this object serves: lost when it is deleted or replaced. Objects adopted
    /// from an earlier run have no unit that would name it.
    fn serves(&self) -> Option<Served> {
        None
    }
    /// True if no other object refers to it, so that it can be deleted alone. In most modes these are the objects that serve
    /// something.
    fn is_leaf(&self) -> bool {
        self.serves().is_some()
    }
    /// True if its content may depend on the order of endpoints, which [`Compile::place`] chooses.
    fn is_placed(&self) -> bool {
        true
    }
    /// True for a table: the other objects are inside it, and go when another program deletes it.
    fn is_container(&self) -> bool {
        false
    }
}

/// A destination that objects lead to endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Served {
    /// a frontend
    Frontend(Protocol, FrontendAddr),
    /// all node ports, on this address
    NodePorts(IpAddr),
    /// all node ports, on every local address
    NodePortsEverywhere,
}

/// The pure half of a mode.
pub trait Compile {
    /// The mode's kernel objects.
    type Object: Object;
    /// The mode's capabilities.
    const PROFILE: Profile;
    /// The most new units of one commit when many come at once: more take more memory, and serve later.
    const PORTION: usize = 1000;
    /// True if the mode implements [`Compile::place`]: otherwise no unit is copied for it.
    const PLACES: bool = false;
    /// Time without a further change by other programs (not proxies) after which the engine repairs what they have damaged, if that is
    /// more than one object. Zero where a change is one transaction, longer where it may be one of several commands.
    const REPAIR_PAUSE: Duration = Duration::ZERO;
    /// A property that a key has in common with the units that may want it, and that is known of a unit without compiling it: a
    /// frontend, a chain's name.
    type Hint: Eq + Hash;
    /// The objects of a unit. Total and deterministic: no I/O, clock or failure.
    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<Self::Object>);
    /// The objects of a unit before and after a change, both under this context. Objects that are equal in both may be left
    /// out of both: a large unit of which little changes then costs little to compare.
    fn compile_change(
        &self,
        context: &Context,
        units: (&Unit, &Unit),
        before: &mut Vec<Self::Object>,
        after: &mut Vec<Self::Object>,
    ) {
        self.compile(context, units.0, before);
        self.compile(context, units.1, after);
    }
    /// Adds hints to the units that may want the object of this key. A key without a hint may be any unit's: to find it the
    /// engine compiles one unit after the other.
    fn hints(&self, key: &<Self::Object as Object>::Key, hints: &mut Vec<Self::Hint>) {
        let _ = (key, hints);
    }
    /// False if the unit, under any context, wants no object of a key whose hints are all `asked` for. A repair
    /// calls this for every unit, and compiles those for which it is true.
    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&Self::Hint) -> bool) -> bool {
        let _ = (unit, asked);
        true
    }
    /// Keeps the order of a pool where the mode's objects depend on it (nftables: slots): applies the order of the unit in
    /// force, or at a start of the objects read back. The engine keeps the placed unit. Called only with [`Compile::PLACES`].
    fn place(&self, next: &mut Unit, before: Before<'_, Self::Object>) {
        let _ = (next, before);
    }
}

/// The state before a change, for [`Compile::place`].
#[derive(Debug)]
pub enum Before<'a, O> {
    /// nothing
    Nothing,
    /// the unit in force
    Unit(&'a Unit),
    /// everything that was read back at start, sorted by key
    Objects(&'a [O]),
}

/// The half of a mode that touches the world.
pub trait Kernel<O: Object> {
    /// Probes the required features, sets sysctls, loads modules. Idempotent.
    fn prepare(&mut self) -> Result<(), CommitError>;
    /// Reads back the objects with this proxy's names.
    fn read_back(&mut self, extent: &Extent<O::Key>) -> Result<Vec<O>, CommitError>;
    /// Frontends of foreign rules that [`Kernel::read_back`] doesn't return one by one, since they are replaced as a whole.
    /// Rules that can't be read are left out.
    fn foreign_serves(&mut self) -> Vec<Served> {
        Vec::new()
    }
    /// Foreign changes since the last call, or since [`Kernel::tend`] returned some. Called before a commit, so that a change
    /// that another writer made first starts from the actual state. Nothing also where only `tend` can report them.
    ///
    /// # Errors
    /// If the notifications can't be read.
    fn news(&mut self) -> Result<Drift<O::Key>, CommitError> {
        Ok(Drift::default())
    }
    /// Commits the batch: atomically if the kernel can, otherwise in the order of [`Batch::operations`].
    ///
    /// # Errors
    /// With [`Applied::Unknown`] if some of the batch may be in force: the engine reads its keys back before it goes on.
    fn commit(&mut self, batch: &Batch<O>) -> Result<(), CommitFailure>;
    /// The desired objects of units that are in force now, after each change of such a unit and after each full sync: for what a
    /// kernel half has to know of the desired state beside what it writes, and what a comparison of objects leaves out. Other
    /// layers' objects are among them. Those that [`Compile::compile_change`] leaves out are missing; modes without
    /// [shared objects](Object::SHARES) get none.
    fn acknowledged(&mut self, objects: &[O]) {
        let _ = objects;
    }
    /// Deferred work of the plane: purges of affinity maps, late deletions, foreign changes since the last call. Called when the
    /// waker was woken, at the time of [`Kernel::wake`], and after a failed pass.
    ///
    /// # Errors
    /// If foreign changes can't be found out.
    fn tend(&mut self, now: Instant) -> Result<Drift<O::Key>, CommitError>;
    /// The latest time of the next call of [`Kernel::tend`], queried after every pass. `None`: only when the waker is woken.
    /// There is no other clock: a kernel without notifications returns the time of its next check for foreign changes.
    fn wake(&mut self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }
    /// Sets the waker that is woken when [`Kernel::tend`] or [`Kernel::news`] has foreign changes to return.
    fn wake_by(&mut self, waker: &Waker) {
        let _ = waker;
    }
}

/// An engine as the run loop uses it. Time is an argument.
pub trait SyncEngine: Send {
    /// Takes a change; no I/O.
    fn offer(&mut self, delta: Delta);
    /// Commits pending changes.
    fn sync(&mut self, now: Instant) -> Outcome;
    /// Full sync: compares everything with the kernel and commits the difference.
    fn repair(&mut self, now: Instant) -> Outcome;
    /// Runs the plane's deferred work ([`Kernel::tend`]), repairs drift, and retries failed work.
    fn tend(&mut self, now: Instant) -> Outcome;
    /// Sets the waker that is woken when [`SyncEngine::tend`] has work before the time that the last pass returned.
    fn wake_by(&mut self, waker: &Waker);
    /// Shows every unit in force.
    fn each_unit(&self, see: &mut dyn FnMut(&Unit));
    /// Shows every pending unit.
    fn each_pending(&self, see: &mut dyn FnMut(&UnitId));
    /// The operations of a repair that takes all pending changes along. Reads the kernel, and changes nothing, not even what
    /// [`Kernel::prepare`] sets.
    ///
    /// # Errors
    /// If the objects can't be read.
    fn plan(&mut self) -> Result<Plan, CommitError>;
    /// Removes all our objects except those that [stay](Object::stays), in one batch; returns their number. After an error any
    /// part of them may be left: the frontends that they served are added to `served` before the first is removed.
    fn retire(self: Box<Self>, served: &mut Vec<Served>) -> Result<usize, CommitError>;
}

// === impl Before ===

// Derived, these would ask for the same of the objects.
impl<O> Clone for Before<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Before<'_, O> {}
