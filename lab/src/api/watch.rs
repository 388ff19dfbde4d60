//! Answers watch requests, from a resourceVersion or with initial events (streaming lists).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::Kind;

use super::body::ChunkedBody;
use super::connection::{Wake, drain};
use super::entry::{Damage, StoredObject};
use super::exchange::{Encoding, Exchange, failure};
use super::fault::{FaultAction, RequestForm};
use super::list::{GARBAGE, GARBAGE_JSON, Template, endless, enveloped, too_large, typed_json};
use super::selector::Selector;
use super::store::Verb;
use super::{Delivery, ServerState, locked};
use crate::wire::{self, ApiStatus};

/// Duration of a watch without timeoutSeconds.
const UNASKED_TIMEOUT: Duration = Duration::from_mins(30);

/// Counts as an open watch until it is dropped.
struct Subscription<'a> {
    server: &'a ServerState,
    number: u64,
    waker: Arc<OwnedFd>,
}

/// First events and version of a watch.
struct WatchStart {
    /// the initial events
    initial: Vec<Arc<StoredObject>>,
    /// the resourceVersion whose later changes follow
    after: u64,
}

/// An open watch.
struct OpenWatch<'a> {
    body: ChunkedBody<'a>,
    kind: Kind,
    encoding: Encoding,
    action: Option<&'a FaultAction>,
    events: usize,
    /// the Status of a scripted ERROR event
    error: ApiStatus,
}

/// State of a watch after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continuation {
    Goes,
    Ended,
}

// === impl Subscription ===

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        self.server.store().unsubscribe(self.number);
    }
}

// === impl Exchange ===

impl Exchange<'_> {
    pub(super) fn watch(&mut self, kind: Kind) -> io::Result<()> {
        let (number, waker) = self.server.store().subscribe(kind);
        let subscription = Subscription { server: self.server, number, waker };
        let (selector, start) = match self.selector(kind).and_then(|selector| {
            let start = self.start(kind, &selector)?;
            Ok((selector, start))
        }) {
            Ok(begin) => begin,
            // For an expired version, a real server sends an ERROR event within the stream.
            Err(status) if status.code == 410 && !self.server.options.gone_as_status => {
                let encoding = self.encoding;
                let Some(mut body) = self.begin(true)? else { return Ok(()) };
                body.content(&error_frame(encoding, &status))?;
                return body.end();
            }
            Err(status) => return self.fail(&status),
        };
        let (server, seen, encoding) = (self.server, self.seen, self.encoding);
        let action = self.action.clone();
        let code = if let Some(FaultAction::ErrorEvent { code, .. }) = action { code } else { 500 };
        let error = failure(code, seen, "lab");
        let Some(body) = self.begin(true)? else { return Ok(()) };
        let mut watch = OpenWatch { body, kind, encoding, action: action.as_ref(), events: 0, error };
        let streaming = seen.form == RequestForm::StreamingList;
        if watch.open(&start, streaming)? == Continuation::Goes {
            let timeout = seen.parameter("timeoutSeconds").and_then(|text| text.parse().ok());
            let deadline = Instant::now() + timeout.map_or(UNASKED_TIMEOUT, Duration::from_secs);
            let bookmarks = seen.parameter("allowWatchBookmarks") == Some("true");
            watch.follow(server, &subscription, &selector, start.after, deadline, bookmarks)?;
        }
        watch.body.end()
    }

    fn start(&self, kind: Kind, selector: &Selector) -> Result<WatchStart, ApiStatus> {
        let parameter = |name| self.seen.parameter(name).filter(|value| !value.is_empty());
        let say = |code, message: &str| ApiStatus { message: message.to_owned(), ..failure(code, self.seen, "") };
        let version = match parameter("resourceVersion").unwrap_or("0").parse::<u64>() {
            Ok(version) => version,
            Err(error) => return Err(say(400, &format!("invalid resource version: {error}"))),
        };
        let store = self.server.store();
        if self.seen.form == RequestForm::StreamingList {
            if !self.server.options.streaming_lists {
                let message = "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents \
                               is forbidden for watch unless the WatchList feature gate is enabled";
                return Err(say(422, message));
            }
            if parameter("resourceVersionMatch") != Some("NotOlderThan") {
                let message = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
                               sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                return Err(say(422, message));
            }
            if version > store.version() {
                return Err(too_large(version, store.version(), failure(504, self.seen, "")));
            }
        }
        if self.seen.form == RequestForm::StreamingList || version == 0 {
            let snapshot = store.list(kind, selector);
            return Ok(WatchStart { initial: snapshot.entries.to_vec(), after: snapshot.version });
        }
        if version < store.floor() {
            return Err(say(410, &format!("too old resource version: {version} ({})", store.floor())));
        }
        Ok(WatchStart { initial: Vec::new(), after: version })
    }
}

// === impl OpenWatch ===

impl OpenWatch<'_> {
    /// Sends the initial events.
    fn open(&mut self, start: &WatchStart, streaming: bool) -> io::Result<Continuation> {
        match self.action {
            Some(FaultAction::Endless) => {
                let mut template = Template::new(self.kind, start.initial.first());
                loop {
                    self.body.content(&frame(self.encoding, "ADDED", template.next()))?;
                }
            }
            Some(FaultAction::EndlessObject) => {
                self.body.content(match self.encoding {
                    Encoding::Json => br#"{"type":"ADDED","object":{"metadata":{"name":"endless","annotations":{"a":""#,
                    Encoding::Protobuf => &[0xff; 4],
                })?;
                endless(&mut self.body)?;
            }
            _ => {}
        }
        if self.fault_after_events()? == Continuation::Ended {
            return Ok(Continuation::Ended);
        }
        for entry in &start.initial {
            if self.event("ADDED", entry)? == Continuation::Ended {
                return Ok(Continuation::Ended);
            }
        }
        if streaming {
            self.body.content(&bookmark(self.encoding, self.kind, start.after, true))?;
        }
        self.body.flush()?;
        Ok(Continuation::Goes)
    }

    /// Sends changes as they happen.
    fn follow(
        &mut self,
        server: &ServerState,
        subscription: &Subscription<'_>,
        selector: &Selector,
        mut after: u64,
        deadline: Instant,
        bookmarks: bool,
    ) -> io::Result<()> {
        let interval = server.options.bookmarks.filter(|_| bookmarks);
        let mut next_bookmark = interval.map(|interval| Instant::now() + interval);
        let mut asked = server.store().bookmarks();
        while Instant::now() < deadline {
            let (changes, asked_now, is_ending) = {
                let store = server.store();
                (store.changes(self.kind, after), store.bookmarks(), store.is_ending(subscription.number))
            };
            let (changes, version) = match changes {
                Ok(changes) => changes,
                Err(gone) => {
                    let message = format!("too old resource version: {after} ({})", gone.floor);
                    let status =
                        ApiStatus { code: 410, reason: "Expired".to_owned(), message, retry_after_seconds: None };
                    return self.body.content(&error_frame(self.encoding, &status));
                }
            };
            for (verb, entry) in changes.iter().filter_map(|change| change.seen_by(selector)) {
                if self.event(verb.text(), entry)? == Continuation::Ended {
                    return Ok(());
                }
                let begun = Instant::now();
                self.body.flush()?;
                *locked(&server.last_delivery) =
                    Some(Delivery { version: entry.version, begun, ended: Instant::now() });
            }
            if is_ending {
                return Ok(());
            }
            after = version;
            let now = Instant::now();
            let is_due = next_bookmark.is_some_and(|due| due <= now);
            if is_due || (bookmarks && asked_now != asked) {
                self.body.content(&bookmark(self.encoding, self.kind, version, false))?;
                self.body.flush()?;
                next_bookmark = interval.map(|interval| now + interval);
            }
            asked = asked_now;
            let until = next_bookmark.map_or(deadline, |due| due.min(deadline));
            match self.body.connection.wait(Some(subscription.waker.as_fd()), Some(until))? {
                Wake::Closed => return Err(io::ErrorKind::BrokenPipe.into()),
                Wake::Woken => drain(&subscription.waker),
                Wake::Time => {}
            }
        }
        Ok(())
    }

    fn event(&mut self, verb: &str, entry: &StoredObject) -> io::Result<Continuation> {
        let bytes = match self.action {
            Some(FaultAction::BrokenObject) if self.events == 0 => {
                frame(self.encoding, verb, &entry.damaged(Damage::Content))
            }
            Some(FaultAction::BrokenName) if self.events == 0 => {
                frame(self.encoding, verb, &entry.damaged(Damage::Everything))
            }
            _ => frame(self.encoding, verb, entry),
        };
        self.body.content(&bytes)?;
        self.events += 1;
        self.fault_after_events()
    }

    /// Applies the faults that occur after a number of events.
    fn fault_after_events(&mut self) -> io::Result<Continuation> {
        match self.action {
            Some(FaultAction::ErrorEvent { after, .. }) if *after == self.events => {
                self.body.content(&error_frame(self.encoding, &self.error))?;
                Ok(Continuation::Ended)
            }
            Some(FaultAction::BrokenFrame { after }) if *after == self.events => {
                let garbage = match self.encoding {
                    Encoding::Json => [GARBAGE_JSON, b"\n"].concat(),
                    // A valid length, but not an event.
                    Encoding::Protobuf => [&[0, 0, 0, 16], GARBAGE].concat(),
                };
                self.body.content(&garbage)?;
                self.body.flush()?;
                Ok(Continuation::Goes)
            }
            _ => Ok(Continuation::Goes),
        }
    }
}

// === impl Verb ===

impl Verb {
    fn text(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

fn frame(encoding: Encoding, verb: &str, entry: &StoredObject) -> Vec<u8> {
    match encoding {
        Encoding::Json => json_frame(verb, &typed_json(entry)),
        Encoding::Protobuf => wire::watch_frame(verb, &enveloped(entry)),
    }
}

fn json_frame(verb: &str, object: &[u8]) -> Vec<u8> {
    let mut out = format!(r#"{{"type":"{verb}","object":"#).into_bytes();
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out
}

fn error_frame(encoding: Encoding, status: &ApiStatus) -> Vec<u8> {
    match encoding {
        Encoding::Json => json_frame("ERROR", &status.to_json()),
        Encoding::Protobuf => wire::watch_frame("ERROR", &status.to_protobuf()),
    }
}

fn bookmark(encoding: Encoding, kind: Kind, version: u64, initial_events_end: bool) -> Vec<u8> {
    let end = if initial_events_end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    let rest = match kind {
        Kind::Service => r#""spec":{},"status":{"loadBalancer":{}}"#,
        Kind::EndpointSlice => r#""addressType":"","endpoints":null,"ports":null"#,
        Kind::Node => r#""spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{}}"#,
        Kind::ServiceCidr => r#""spec":{},"status":{}"#,
    };
    let api_version = wire::api_version(kind);
    let meta = format!(r#"{{"resourceVersion":"{version}","creationTimestamp":null{end}}}"#);
    let json = format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{meta},{rest}}}"#);
    match encoding {
        Encoding::Json => json_frame("BOOKMARK", json.as_bytes()),
        Encoding::Protobuf => {
            let object = serde_json::from_str(&json).expect("the JSON above");
            let message = wire::encode(kind, &object).expect("the object above");
            wire::watch_frame("BOOKMARK", &wire::envelope(api_version, &kind.to_string(), &message))
        }
    }
}
