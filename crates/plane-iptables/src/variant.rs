//! What differs between the two variants of the tool: how tables are read, how a run is accounted for, and how changes by others
//! are found.

mod legacy;
mod nft;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::iptables::{Backend, Failure, Run, Table, Tool};

use crate::encode::Outline;
use crate::mirror::Mirror;
use crate::object::{ChainId, IptKey};
use crate::sort::Found;
use crate::watch::{Heard, Turn};

use legacy::Legacy;
use nft::Nft;

/// What a run of `iptables-restore` came to.
pub(crate) type Restored = (Result<Run, Failure>, Outline);

/// One of the two variants, for one family. Engines of one process run the tool one after another.
pub(crate) trait Variant: fmt::Debug + Send {
    /// Subscribes to changes by others, where there are notifications.
    fn listen(&mut self) -> io::Result<()>;

    /// What others have changed since the last call. Waits while the other family runs the tool.
    fn changes(&mut self, family: Family) -> io::Result<Heard>;

    /// The same without waiting, and what is due without any change.
    fn tend(&mut self, family: Family, now: Instant) -> io::Result<Observation>;

    /// Takes those of these tables that others have changed, where only that is known of a change: they must be read.
    fn take_changed(&mut self, tables: &BTreeSet<Table>) -> BTreeSet<Table>;

    /// These could not be read.
    fn put_back(&mut self, tables: BTreeSet<Table>);

    /// So long it took to read these.
    fn was_read(&mut self, tables: &BTreeSet<Table>, took: Duration);

    /// Reads tables as a whole.
    fn tables(&self, tool: &Tool, wanted: &[Table]) -> Result<Found, Failure>;

    /// Reads these chains, each as a whole.
    fn chains(&self, tool: &Tool, wanted: &BTreeSet<ChainId>) -> Result<Found, Failure>;

    /// Chains of units that are gone or empty, found without the tool, which can't show their rules.
    fn lost(&self, tool: &Tool, mirror: &Mirror) -> Result<Vec<IptKey>, Failure>;

    /// Runs the tool with a text of about so many lines. Its changes are not those of others.
    fn run(&mut self, lines: usize, restore: &mut dyn FnMut() -> Restored) -> io::Result<Restored>;

    /// After a commit that made this change, or none that is known.
    fn account(&mut self, family: Family, change: Option<&Change<'_>>) -> io::Result<()>;
}

/// What a look without waiting found.
#[derive(Debug, Default)]
pub(crate) struct Observation {
    /// touched by others
    pub(crate) touched: Heard,
    /// must be read, since others may have changed them
    pub(crate) tables: BTreeSet<Table>,
    /// when to look again at the latest; `None`: when others have changed something
    pub(crate) wake: Option<Instant>,
}

/// What a commit did to the tables.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    /// our entries of each table before
    pub(crate) before: [i64; Table::ALL.len()],
    /// the tables after it
    pub(crate) after: &'a Mirror,
    /// rules of others that it removed from each table
    pub(crate) strays: [i64; Table::ALL.len()],
}

/// The variant of a tool.
pub(crate) fn of(tool: &Tool, turn: Turn) -> Box<dyn Variant> {
    match tool.backend() {
        Backend::Nft => Box::new(Nft::new(turn)),
        Backend::Legacy => Box::new(Legacy::new(turn)),
    }
}

/// The line at which the tool failed.
pub(crate) fn line_of(failure: &Failure) -> Option<usize> {
    match failure {
        Failure::Refused { line, .. } | Failure::Exhausted { line, .. } => *line,
        _ => None,
    }
}
