//! Where objects come from. A source delivers batches of [`Event`]s to the core, which applies them on the source's thread: at
//! start `Restart(kind)` … `Synced(kind)` for every kind it has, then one batch per change. A batch is applied as a
//! whole before anything is decided, so what belongs together should come together.

pub mod api;
pub mod directory;

use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use ferry_api::object::Kind;
use ferry_model::store::Event;

use crate::core::{Applied, Desk};
use crate::input::Input;

/// The way to the core. When the core is slow, delivering waits.
#[derive(Clone, Debug)]
pub struct Sink {
    inputs: SyncSender<Input>,
    /// applies inputs at once; without it they go to the receiver of the channel
    desk: Option<Desk>,
}

/// The core thread has ended; so should the source.
#[derive(Debug, thiserror::Error)]
#[error("the core thread has ended")]
pub struct Closed;

/// A batch of more events is applied on the core's thread.
const SMALL: usize = 64;
/// Interval of attempts to deliver to a busy core.
const ROOM: Duration = Duration::from_millis(1);

// === impl Sink ===

impl Sink {
    /// A way to whoever holds the other end.
    pub fn new(sender: SyncSender<Input>) -> Self {
        Self { inputs: sender, desk: None }
    }

    /// A way to this core. The channel is that of its thread.
    pub fn direct(desk: Desk, inputs: SyncSender<Input>) -> Self {
        Self { inputs, desk: Some(desk) }
    }

    /// Hands over one batch; an empty one is nothing.
    pub fn deliver(&self, events: Vec<Event>) -> Result<(), Closed> {
        if events.is_empty() {
            return Ok(());
        }
        self.put(Input::Events(events))
    }

    /// The same without holding up the thread, on which connections are kept alive and other kinds are read: what is large, or
    /// meets a busy core, is left to the core's thread.
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

    /// Says how many files are there that could not be read once since the start. To be told before the initial lists
    /// are complete, and whenever it changes.
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

/// True if the core applies these quickly: they are few, and none is about a Node, on which every Service depends.
fn is_small(events: &[Event]) -> bool {
    let of_node = |event: &Event| match event {
        Event::Upsert(object) => object.kind() == Kind::Node,
        Event::Restart(kind) | Event::Synced(kind) | Event::Delete(kind, _) | Event::Unreadable(kind, _) => {
            *kind == Kind::Node
        }
    };
    events.len() <= SMALL && !events.iter().any(of_node)
}
