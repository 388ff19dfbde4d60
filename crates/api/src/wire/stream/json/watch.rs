//! Decodes the events of a watch in JSON.

use super::super::object::{EventType, malformed};
use super::super::{StreamError, WatchEvent};
use super::scan::{Members, Sink};
use super::{bookmark, loose_text, object, remains, status};
use crate::object::Kind;

/// Reads a watch.
#[derive(Debug)]
pub(in super::super) struct JsonWatch {
    members: Members,
    frame: Frame,
}

/// The parts read so far of the current event.
#[derive(Debug)]
struct Frame {
    kind: Kind,
    event_type: Option<EventType>,
    /// the object with the number of its parts, where it stands before the type
    object: Option<(Vec<u8>, u32)>,
    event: Option<WatchEvent>,
}

struct WatchSink<'w> {
    frame: &'w mut Frame,
    events: &'w mut Vec<WatchEvent>,
}

// === impl JsonWatch ===

impl JsonWatch {
    pub(in super::super) fn new(kind: Kind) -> Self {
        let frame = Frame { kind, event_type: None, object: None, event: None };
        Self { members: Members::new(None), frame }
    }

    pub(in super::super) fn push(&mut self, bytes: &[u8], events: &mut Vec<WatchEvent>) -> Result<(), StreamError> {
        self.members.push(bytes, &mut WatchSink { frame: &mut self.frame, events })
    }

    pub(in super::super) fn finish(self) -> Result<(), StreamError> {
        if self.members.is_between_objects() { Ok(()) } else { Err(StreamError::Truncated) }
    }

    #[cfg(test)]
    pub(in super::super) fn capacity(&self) -> usize {
        self.members.capacity() + self.frame.object.as_ref().map_or(0, |(bytes, _)| bytes.capacity())
    }
}

// === impl Frame ===

impl Frame {
    fn read(&mut self, event_type: EventType, bytes: &[u8], parts: u32) {
        let kind = self.kind;
        let event = match event_type {
            EventType::Upsert => Ok(object(kind, bytes, parts).upsert()),
            EventType::Delete => remains(kind, bytes).map(|remains| remains.delete(kind)),
            EventType::Bookmark => bookmark(kind, bytes),
            EventType::Error => Ok(WatchEvent::error(status(bytes))),
        };
        self.event = Some(event.unwrap_or_else(|message| WatchEvent::unreadable(kind, &message)));
    }
}

// === impl WatchSink ===

impl Sink for WatchSink<'_> {
    fn begin(&mut self) -> Result<(), StreamError> {
        *self.frame = Frame { kind: self.frame.kind, event_type: None, object: None, event: None };
        Ok(())
    }

    fn member(&mut self, key: &str, value: &[u8], parts: u32) -> Result<(), StreamError> {
        let frame = &mut *self.frame;
        match key {
            "type" if frame.event_type.is_some() => return Err(malformed("an event with two types")),
            "type" => {
                let text = loose_text(value).unwrap_or_default();
                let event_type = EventType::of(&text).ok_or_else(|| malformed(format!("an event of type {text:?}")))?;
                frame.event_type = Some(event_type);
                if let Some((object, parts)) = frame.object.take() {
                    frame.read(event_type, &object, parts);
                }
            }
            "object" if frame.object.is_some() || frame.event.is_some() => {
                return Err(malformed("an event with two objects"));
            }
            "object" => match frame.event_type {
                Some(event_type) => frame.read(event_type, value, parts),
                None => frame.object = Some((value.to_vec(), parts)),
            },
            _other => {}
        }
        Ok(())
    }

    fn item(&mut self, _item: &[u8], _parts: u32) {}

    fn end(&mut self) -> Result<(), StreamError> {
        let event = self.frame.event.take().ok_or_else(|| malformed("an event without a type or an object"))?;
        self.events.push(event);
        Ok(())
    }
}
