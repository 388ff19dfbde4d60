//! The kernel half of the mode: two layers under one engine. Creations go from the relay to the table, deletions come back.

use ferry_api::object::Family;
use ferry_plane::CommitError;
use ferry_plane::engine::Engine;
use ferry_plane::layered::Layered;
use ferry_ruleset::table::{TableCommitLock, TableLayer};

use super::compile::Relaying;
use super::doors::Doors;
use super::element::Userspace;
use super::object::UserspaceObject;
use super::relay::RelayLayer;
use crate::failing::ListenerReports;
use crate::shared::SharedRelay;

/// Engines of one process commit to their tables one after another.
pub type UserspaceCommitLock = TableCommitLock<Userspace, UserspaceObject>;

/// The engine of this mode.
pub type UserspaceEngine = Engine<Relaying, Layered<UserspaceObject>>;

/// Opens the engine of one family, in the network namespace of this thread, with which the relay's threads share it. Engines of one
/// process share the lock and the relay.
///
/// # Errors
/// As [`TableLayer::open`].
pub fn engine(
    family: Family,
    lock: &UserspaceCommitLock,
    relay: &SharedRelay,
    reports: ListenerReports,
) -> Result<UserspaceEngine, CommitError> {
    let doors = Doors::default();
    let table = TableLayer::<Userspace, UserspaceObject>::open(family, doors.clone(), lock.clone())?;
    let relay = RelayLayer::new(family, relay.clone(), doors, reports);
    Ok(Engine::new(Relaying::new(family), Layered::new(vec![Box::new(relay), Box::new(table)])))
}
