//! The contract of a data plane, and the engine that drives it. Knows no mode.
//!
//! A mode says *what* ([`Compile`]) and *how* ([`Kernel`]); the [`Engine`](engine::Engine) says when, how often, and
//! what if it fails. A mode of several subsystems is [`Layered`](layered::Layered) kernels under one engine.

mod attempt;
mod batch;
mod diff;
mod drift;
pub mod engine;
mod failure;
pub mod layered;
pub mod mailbox;
#[cfg(feature = "testing")]
pub mod memory;
mod quarantine;
mod rivals;
mod turn;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_model::{BaseState, Context, FrontendAddr, Packet, Profile, ServiceState, Verdict};

pub use batch::{Batch, Op};
pub use drift::{Drift, Extent};
pub use failure::{Applied, CommitError, CommitFailure, Refusal};
pub use ferry_api::object::ObjectName;
pub use turn::Turn;

/// The grain of change, error and quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// tables, hooks, sets of node addresses
    Base(BaseState),
    /// one Service
    Service(ServiceState),
}

/// Names a unit within one engine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnitId {
    /// the base objects
    Base,
    /// a Service
    Service(ObjectName),
}

/// What changed. Merging two: the later context, the later unit.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// a new context diffs every unit
    pub context: Option<Arc<Context>>,
    /// `None`: gone
    pub units: BTreeMap<UnitId, Option<Arc<Unit>>>,
}

/// What is in the kernel, per unit; a quarantined unit stays with the context it was accepted under.
#[derive(Clone, Debug)]
pub struct Acked {
    /// the unit, placed
    pub unit: Arc<Unit>,
    /// what it was compiled with
    pub context: Arc<Context>,
}

/// One thing we own in the kernel: a set, a chain with all its rules, a map element, a virtual server, a listener …
/// `Display` is what `render` prints.
pub trait Object: Ord + Clone + fmt::Display + fmt::Debug {
    /// What makes it the same object when its content changes.
    type Key: Ord + Clone + Hash + fmt::Display + fmt::Debug;
    /// The key.
    fn key(&self) -> Self::Key;
    /// Created low to high, deleted high to low; an object refers only to lower ranks.
    fn rank(&self) -> u8;
    /// What stands for the key where several units may want the object: the engine counts who does, so it is held in
    /// memory once for each such object and should be small.
    type Shared: Copy + Eq + Hash + Send + fmt::Debug;
    /// Whether there are such objects at all: where there are none, nobody counts.
    const SHARES: bool = true;
    /// That of this object; `None` if only one unit can want it.
    fn shared(&self) -> Option<Self::Shared> {
        None
    }
    /// Left where it is when nobody wants it any more, and no drift then; only clean-up removes it.
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
    /// What this mode puts into the kernel.
    type Object: Object;
    /// How this mode differs from the others.
    const PROFILE: Profile;
    /// So many units that come at once and are new are committed together; more take more memory, and serve later.
    const PORTION: usize = 1000;
    /// Whether [`Compile::place`] does anything: where it doesn't, no unit is copied to be placed.
    const PLACES: bool = false;
    /// What a key and the units that may want it have in common, and a unit shows without being compiled: a frontend, a
    /// chain's name.
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
    /// False if the unit, under any context, wants no object of a key with hints of which all are `asked` for. A repair
    /// calls this for every unit, and compiles those for which it is true.
    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&Self::Hint) -> bool) -> bool {
        let _ = (unit, asked);
        true
    }
    /// Where a mode cares for the order of a pool (nftables: slots), it carries it over here, from the unit in force
    /// or, at start, from the objects read back. The engine keeps the placed unit. Called only with [`Compile::PLACES`].
    fn place(&self, next: &mut Unit, before: Before<'_, Self::Object>) {
        let _ = (next, before);
    }
}

/// Only for planes whose objects are rules: what would happen to a packet. The others are proven by packets.
pub trait Trace: Compile {
    /// What these objects, all of one family, do with the packet.
    fn trace(&self, objects: &[Self::Object], packet: &Packet, context: &Context) -> Verdict;
}

/// What was there before, for [`Compile::place`].
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
    /// Probes what is needed, sets sysctls, loads modules. Idempotent.
    fn prepare(&mut self) -> Result<(), CommitError>;
    /// What the kernel holds of ours.
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
    /// Makes the difference: all or nothing where the kernel can, otherwise in the order of [`Batch::operations`].
    ///
    /// # Errors
    /// With [`Applied::Unknown`] if some of the batch may be in force: the engine reads its keys back before it goes on.
    fn commit(&mut self, batch: &Batch<O>) -> Result<(), CommitFailure>;
    /// The plane's own time: memories to purge, objects to delete late, foreign changes since the last call. Called when the
    /// waker was woken, when the time of [`Kernel::wake`] has come, and after a failed pass.
    ///
    /// # Errors
    /// If foreign changes can't be found out.
    fn tend(&mut self, now: Instant) -> Result<Drift<O::Key>, CommitError>;
    /// When [`Kernel::tend`] is to be called at the latest, asked after every pass. `None`: only when the waker is woken. There is no
    /// other clock: a kernel without notifications returns when it wants to look for foreign changes.
    fn wake(&mut self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }
    /// Sets what is to be woken when [`Kernel::tend`] or [`Kernel::news`] has foreign changes to return.
    fn wake_by(&mut self, waker: &Waker) {
        let _ = waker;
    }
}

/// What the run loop sees. Time is an argument.
pub trait SyncEngine: Send {
    /// Takes a change; no I/O.
    fn offer(&mut self, delta: Delta);
    /// Commits what is pending.
    fn sync(&mut self, now: Instant) -> Outcome;
    /// Compares everything with the kernel and mends it.
    fn repair(&mut self, now: Instant) -> Outcome;
    /// Gives the plane its time, and mends the drift it finds.
    fn tend(&mut self, now: Instant) -> Outcome;
    /// Sets what is woken when [`SyncEngine::tend`] has something to do before the time that the last pass returned.
    fn wake_by(&mut self, waker: &Waker);
    /// Shows every unit in force.
    fn each_unit(&self, see: &mut dyn FnMut(&Unit));
    /// Shows every unit that was offered and isn't in force.
    fn each_pending(&self, see: &mut dyn FnMut(&UnitId));
    /// What a repair would do, as text.
    fn plan(&mut self) -> Result<Batch<String>, CommitError>;
    /// Removes all that is ours but what [`Object::stays`], in one batch; returns the number of objects. After an error some,
    /// or all of it, may be left, or nothing: what the rules served is added to `served` before the first is removed.
    fn retire(self: Box<Self>, served: &mut Vec<Served>) -> Result<usize, CommitError>;
}

/// A unit that is in force now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// which
    pub id: UnitId,
    /// what was in force of it; the same allocation where only what it was compiled with has changed
    pub before: Option<Arc<Unit>>,
    /// what is; `None`: gone
    pub after: Option<Arc<Unit>>,
}

/// What one turn of an engine did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// units the kernel has acknowledged, also those that changed nothing
    pub acked: Vec<Acknowledged>,
    /// frontends of objects that a full sync, or the way back after a failed commit, deleted. Other rules may serve some of
    /// them; the units in force name their own
    pub unserved: Vec<Served>,
    /// units that wait because the kernel refuses them, with the reason
    pub quarantined: Vec<(UnitId, Arc<CommitError>)>,
    /// why the turn failed
    pub error: Option<Arc<CommitError>>,
    /// what somebody else had changed and is mended; at most [`Outcome::NAMED`] are named
    pub repaired: Vec<String>,
    /// how many objects were mended
    pub repairs: usize,
    /// objects that a second writer keeps changing, and that are left to him for a while
    pub contested: Vec<String>,
    /// operations committed
    pub ops: usize,
    /// whether everything was compared with the kernel
    pub full: bool,
    /// whether there was anything to do; not set where all that failed is the look at the kernel, which `error` tells
    pub worked: bool,
    /// time in the turn
    pub elapsed: Duration,
    /// what to do next
    pub next: Next,
}

/// When an engine wants its next turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// when something changes, or the waker is woken
    #[default]
    Idle,
    /// after this time
    RetryAfter(Duration),
}

/// The name of the thread that drives the engine of a family. By it the kernel's notifications tell the commits of another proxy from
/// those of other programs.
pub const fn thread_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "sync-v4",
        Family::V6 => "sync-v6",
    }
}

// === impl Before ===

// Derived, these would ask for the same of the objects.
impl<O> Clone for Before<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Before<'_, O> {}

// === impl Outcome ===

impl Outcome {
    /// How many objects [`Outcome::repaired`] names.
    pub const NAMED: usize = 16;
}

// === impl UnitId ===

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => f.write_str("base"),
            Self::Service(name) => write!(f, "service {name}"),
        }
    }
}
