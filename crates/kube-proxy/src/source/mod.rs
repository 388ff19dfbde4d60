//! Object sources: the API server or a directory of manifests. A source delivers batches of [`Event`]s to the core, which applies
//! them on the source's thread: at start `Restart(kind)` … `Synced(kind)` for every kind it has, then one batch per change. A
//! batch is applied as a whole before Services are resolved, so events that belong together should be in one batch.

pub mod api;
pub mod directory;
pub mod dump;
mod file;

use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use ferry_api::object::Kind;
use ferry_model::store::Event;

use crate::core::{Applied, Desk};
use crate::input::Input;

/// The source's connection to the core. Delivery waits while the core is busy.
#[derive(Clone, Debug)]
pub struct Sink {
    inputs: SyncSender<Input>,
    /// applies inputs at once; without it they go to the receiver of the channel
    desk: Option<Desk>,
}

/// The core thread has ended, and the source should end, too.
#[derive(Debug, thiserror::Error)]
#[error("the core thread has ended")]
pub struct Closed;

/// Stack of a source's thread: manifests may nest deeply.
pub const STACK_BYTES: usize = 8 * 1024 * 1024;
/// Largest batch that is applied on the source's thread; larger ones go to the core's.
const SMALL: usize = 64;
/// Retry interval of delivery to a busy core.
const ROOM: Duration = Duration::from_millis(1);

// === impl Sink ===

impl Sink {
    /// A sink that sends all batches over the channel.
    pub fn new(sender: SyncSender<Input>) -> Self {
        Self { inputs: sender, desk: None }
    }

    /// A sink for this core, with the channel of its thread.
    pub fn direct(desk: Desk, inputs: SyncSender<Input>) -> Self {
        Self { inputs, desk: Some(desk) }
    }

    /// Delivers one batch; an empty one is ignored.
    pub fn deliver(&self, events: Vec<Event>) -> Result<(), Closed> {
        if events.is_empty() {
            return Ok(());
        }
        self.put(Input::Events(events))
    }

    /// The same without blocking the thread, which keeps connections alive and reads other kinds: large batches, and batches for
    /// a busy core, are left to the core's thread.
    pub async fn deliver_in_turn(&self, events: Vec<Event>) -> Result<(), Closed> {
        if events.is_empty() {
            return Ok(());
        }
        let small = is_small(&events);
        let input = Input::Events(events);
        let Some(desk) = &self.desk else { return self.queue(input).await };
        let applied = if small { desk.try_apply(input) } else { Err(input) };
        match applied {
            Ok(Applied::Decided) => Ok(()),
            Ok(Applied::Undecided) => self.queue(Input::Undecided).await,
            Err(input) => {
                desk.announce();
                self.queue(input).await
            }
        }
    }

    async fn queue(&self, mut input: Input) -> Result<(), Closed> {
        loop {
            input = match self.inputs.try_send(input) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(Closed),
                Err(TrySendError::Full(input)) => input,
            };
            tokio::time::sleep(ROOM).await;
        }
    }

    /// Reports the number of files that have not been readable since the start. To be called before the initial lists are
    /// complete, and whenever the number changes.
    pub fn unreadable(&self, files: usize) -> Result<(), Closed> {
        self.put(Input::Unreadable(files))
    }

    fn put(&self, input: Input) -> Result<(), Closed> {
        let rest = match &self.desk {
            None => input,
            Some(desk) => match desk.apply(input) {
                Applied::Decided => return Ok(()),
                Applied::Undecided => Input::Undecided,
            },
        };
        self.inputs.send(rest).map_err(|_| Closed)
    }
}

/// True if the core applies the batch quickly: few events, and none of a Node, on which every Service depends.
fn is_small(events: &[Event]) -> bool {
    let of_node = |event: &Event| match event {
        Event::Upsert(object) => object.kind() == Kind::Node,
        Event::Restart(kind) | Event::Synced(kind) | Event::Delete(kind, _) | Event::Unreadable(kind, _) => {
            *kind == Kind::Node
        }
    };
    events.len() <= SMALL && !events.iter().any(of_node)
}
