//! Where objects come from. A source delivers batches of [`Event`]s into a bounded channel to the core thread: at
//! start `Restart(kind)` … `Synced(kind)` for every kind it has, then one batch per change. A batch is applied as a
//! whole before anything is decided, so what belongs together should come together.

pub mod api;
pub mod directory;
pub mod freshness;
pub mod local_node;

use std::sync::mpsc::SyncSender;

use ferry_model::store::Event;

use crate::core::Input;

/// The way to the core thread. When the core is slow, delivering waits.
#[derive(Clone, Debug)]
pub struct Sink(SyncSender<Input>);

/// The core thread has ended; so should the source.
#[derive(Debug, thiserror::Error)]
#[error("the core thread has ended")]
pub struct Closed;

// === impl Sink ===

impl Sink {
    /// A way to whoever holds the other end.
    pub fn new(sender: SyncSender<Input>) -> Self {
        Self(sender)
    }

    /// Hands over one batch; an empty one is nothing.
    pub fn deliver(&self, events: Vec<Event>) -> Result<(), Closed> {
        if events.is_empty() {
            return Ok(());
        }
        self.0.send(Input::Events(events)).map_err(|_| Closed)
    }

    /// Says how many files are there that could not be read once since the start. To be told before the initial lists
    /// are complete, and whenever it changes.
    pub fn unreadable(&self, files: usize) -> Result<(), Closed> {
        self.0.send(Input::Unreadable(files)).map_err(|_| Closed)
    }
}
