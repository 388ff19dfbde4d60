//! Watches and streaming lists, decoded and delivered as their bytes arrive.

use ferry_api::object::ObjectName;
use ferry_api::wire::stream::{WatchChange, WatchDecoder, WatchEvent};

use super::failure::{FailureCause, RequestFailure};
use super::history::{Witness, Witnesses};
use super::reflector::{Reflector, Stop};
use ferry_client::Verb;

/// Result of one chunk of bytes beside objects.
#[derive(Debug, Default)]
struct Brought {
    /// version of the list that this chunk completed
    list: Option<Box<str>>,
    /// the last version after the list
    version: Option<Box<str>>,
    /// the last changes after the list
    changes: Witnesses,
    failure: Option<RequestFailure>,
}

/// Capacity for events that is kept: a list has hundreds in one chunk, a quiet cluster one.
const FEW: usize = 8;

impl Reflector {
    /// Follows a stream until it ends. It begins with a list if none is complete.
    pub(super) async fn watch(&mut self, path_and_query: String) -> Result<(), Stop> {
        let (mut body, encoding) = self.open(Verb::Watch, path_and_query).await?;
        if !self.plan.is_complete() {
            self.outlet.begin();
        }
        let mut decoder = WatchDecoder::new(self.kind(), encoding);
        let mut events = Vec::new();
        let mut newest = Witnesses::default();
        loop {
            let complete = self.plan.is_complete();
            let silence = if complete { self.timing.silence } else { self.timing.list_silence };
            let Some(bytes) = self.chunk(&mut body, silence).await? else { break };
            let pushed = decoder.push(&bytes, &mut events);
            // Events before a failure are delivered.
            self.take(&mut events, &mut newest).await?;
            events.shrink_to(FEW);
            pushed?;
            if !self.plan.is_complete() {
                self.check_size()?;
            }
        }
        decoder.finish()?;
        if !self.plan.is_complete() {
            return Err(
                RequestFailure::new(FailureCause::Short, "the stream ended before its list was complete").into()
            );
        }
        Ok(())
    }

    /// Delivers events, and only then advances the known version.
    async fn take(&mut self, events: &mut Vec<WatchEvent>, newest: &mut Witnesses) -> Result<(), Stop> {
        let mut brought = Brought::default();
        let mut complete = self.plan.is_complete();
        for event in events.drain(..) {
            match witness(&event) {
                Some(witness) if complete => brought.changes.changed(witness),
                Some(Witness { name, version: Some(version) }) => newest.listed(&name, &version),
                Some(_) | None => {}
            }
            self.take_one(event, &mut complete, &mut brought);
            if brought.failure.is_some() {
                break;
            }
        }
        self.outlet.deliver().await?;
        if let Some(version) = brought.list {
            self.listed(version, std::mem::take(newest));
        }
        self.plan.witnessed(brought.changes);
        if let Some(version) = brought.version
            && self.plan.advanced(version)
        {
            self.report.works();
        }
        brought.failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// Processes one event; `complete` is true once the list is complete.
    fn take_one(&mut self, event: WatchEvent, complete: &mut bool, brought: &mut Brought) {
        let WatchEvent { change, resource_version: version } = event;
        let was_complete = *complete;
        match change {
            WatchChange::Upsert(object) => self.outlet.object(Ok(object)),
            WatchChange::Unreadable(object) => self.outlet.object(Err(object)),
            WatchChange::Delete(name) => self.outlet.gone(name),
            WatchChange::Error(status) => brought.failure = Some(RequestFailure::status(&status, true)),
            WatchChange::Bookmark { .. } if was_complete => {
                if version.as_deref().is_some_and(|version| self.plan.is_behind(version)) {
                    let text = "the server's resource version went back";
                    brought.failure = Some(RequestFailure::new(FailureCause::Behind, text));
                }
            }
            WatchChange::Bookmark { initial_events_end: true } => {
                if version.is_none() {
                    let text = "the bookmark at the end of the list has no resource version";
                    brought.failure = Some(RequestFailure::new(FailureCause::Broken, text));
                    return;
                }
                self.outlet.complete();
                *complete = true;
                brought.list = version;
                return;
            }
            WatchChange::Bookmark { initial_events_end: false } => {
                let text = "the server doesn't mark the end of the list in its stream";
                brought.failure = Some(RequestFailure::new(FailureCause::Unsupported, text));
            }
        }
        // Until the list is complete, versions are of single objects and in no order.
        if was_complete && brought.failure.is_none() && version.is_some() {
            brought.version = version;
        }
    }
}

/// The event's object and its version. `None` for an event without an object, or with an unreadable name: the last witness stays.
fn witness(event: &WatchEvent) -> Option<Witness> {
    let named = |name: &ObjectName| {
        let version = event.resource_version.clone()?;
        Some(Witness { name: name.clone(), version: Some(version) })
    };
    match &event.change {
        WatchChange::Upsert(object) => named(object.name()),
        WatchChange::Unreadable(object) => object.name.as_ref().and_then(named),
        WatchChange::Delete(name) => Some(Witness { name: name.clone(), version: None }),
        WatchChange::Bookmark { .. } | WatchChange::Error(_) => None,
    }
}
