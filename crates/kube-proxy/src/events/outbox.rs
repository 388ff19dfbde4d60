//! Pending requests of the events writer, and their retries.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ferry_api::wire::stream::Status;

use super::EventTiming;
use super::event::EventRecord;
use super::series::Write;

/// Pending requests, in order.
#[derive(Debug)]
pub(super) struct Outbox {
    pause: Duration,
    tries: u32,
    retry_after_limit: Duration,
    waiting: VecDeque<PendingWrite>,
    /// no request is sent before this time
    held: Option<Instant>,
}

/// A request that is pending or running.
#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) write: Write,
    /// failed attempts
    tries: u32,
    due: Instant,
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    /// the server has stored it
    Done,
    /// the Event to be patched has expired: API servers keep Events for an hour
    Gone,
    /// no response; other requests would fail, too
    Unreachable(String),
    /// temporary failure with its reason, and the server's Retry-After
    Later(String, Option<Duration>),
    /// permanent rejection
    Refused(Status),
}

// === impl Outbox ===

impl Outbox {
    pub(super) fn new(timing: &EventTiming) -> Self {
        let EventTiming { pause, tries, retry_after_limit, .. } = *timing;
        Self { pause, tries, retry_after_limit, waiting: VecDeque::new(), held: None }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a request. It replaces a pending one about the same Event.
    pub(super) fn push(&mut self, write: Write, now: Instant) {
        let name = &write.record().name;
        match self.waiting.iter_mut().find(|waiting| waiting.write.record().name == *name) {
            Some(waiting) => *waiting.write.record_mut() = write.into_record(),
            None => self.waiting.push_back(PendingWrite { write, tries: 0, due: now }),
        }
    }

    /// Time of the next request.
    pub(super) fn due(&self) -> Option<Instant> {
        let first = self.waiting.iter().map(|waiting| waiting.due).min()?;
        Some(self.held.map_or(first, |held| held.max(first)))
    }

    /// Takes the next request if it is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<PendingWrite> {
        if self.held.is_some_and(|held| now < held) {
            return None;
        }
        let at = self.waiting.iter().position(|waiting| waiting.due <= now)?;
        self.waiting.remove(at)
    }

    /// Handles a request without a response. Returns the number of dropped requests, after too many attempts: the attempt counts
    /// for all pending ones, which would have failed, too.
    pub(super) fn unreachable(&mut self, failed: PendingWrite, now: Instant) -> usize {
        self.waiting.push_front(failed);
        let before = self.waiting.len();
        self.waiting.iter_mut().for_each(|waiting| waiting.tries += 1);
        self.waiting.retain(|waiting| waiting.tries < self.tries);
        self.held = Some(now + self.pause);
        before - self.waiting.len()
    }

    /// Handles a temporary failure; with a Retry-After no other request is sent before. True if the request is dropped after too
    /// many attempts.
    pub(super) fn later(&mut self, failed: PendingWrite, after: Option<Duration>, now: Instant) -> bool {
        let wait = after.map_or(self.pause, |after| after.clamp(self.pause, self.retry_after_limit.max(self.pause)));
        if after.is_some() {
            self.held = Some(now + wait);
        }
        let tries = failed.tries + 1;
        if tries >= self.tries {
            return true;
        }
        self.waiting.push_front(PendingWrite { tries, due: now + wait, ..failed });
        false
    }
}

// === impl Write ===

impl Write {
    pub(super) fn record(&self) -> &EventRecord {
        match self {
            Self::Create(record) | Self::Patch(record) => record,
        }
    }

    fn record_mut(&mut self) -> &mut EventRecord {
        match self {
            Self::Create(record) | Self::Patch(record) => record,
        }
    }

    fn into_record(self) -> EventRecord {
        match self {
            Self::Create(record) | Self::Patch(record) => record,
        }
    }
}

// === impl WriteOutcome ===

impl WriteOutcome {
    /// Classifies an unsuccessful response.
    pub(super) fn of(write: &Write, status: Status, retry_after: Option<Duration>) -> Self {
        match (write, status.code, &*status.reason) {
            // Another node was first, or an earlier attempt has reached the server and its response was lost.
            (Write::Create(_), 409, "AlreadyExists") => Self::Done,
            (Write::Patch(_), 404, _) => Self::Gone,
            (_, 429 | 500..=599, _) => {
                let told = status.retry_after_seconds.map(|seconds| Duration::from_secs(seconds.into()));
                Self::Later(text(&status), retry_after.max(told))
            }
            _ => Self::Refused(status),
        }
    }
}

/// A status as a text.
pub(super) fn text(status: &Status) -> String {
    let Status { code, reason, message, .. } = status;
    let parts = [reason.trim(), message.trim()].into_iter().filter(|part| !part.is_empty());
    let parts: Vec<&str> = parts.collect();
    format!("{code} {}", parts.join(": ")).trim_end().to_owned()
}

/// True for an expected rejection: the namespace is being deleted or is gone, and the Event would be deleted with it.
pub(super) fn is_harmless(status: &Status) -> bool {
    match status.code {
        403 => status.message.contains("because it is being terminated"),
        404 => status.message.starts_with("namespaces "),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::EventRepeats;
    use super::super::testing::{event, record, time};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn create(service: &str) -> Write {
        Write::Create(record(event(service), time(1, 0)))
    }

    fn patch(service: &str, count: u32) -> Write {
        let series = Some(EventRepeats { count, last: time(2, 0) });
        Write::Patch(EventRecord { series, ..record(event(service), time(1, 0)) })
    }

    fn status(code: u16, reason: &str, message: &str) -> Status {
        Status { code, reason: reason.into(), message: message.into(), retry_after_seconds: None }
    }

    #[test]
    fn one_request_of_each_event_waits() {
        let now = Instant::now();
        let mut outbox = Outbox::new(&EventTiming::default());
        for write in [create("a"), create("b"), patch("a", 2), patch("c", 5), patch("c", 9)] {
            outbox.push(write, now);
        }
        let taken: Vec<Write> = std::iter::from_fn(|| outbox.take(now)).map(|waiting| waiting.write).collect();
        let whole = Write::Create(patch("a", 2).into_record());
        assert_eq!(taken, [whole, create("b"), patch("c", 9)], "one is created with its series at once");
    }

    #[test]
    fn what_nobody_answers_is_tried_twelve_times() {
        let mut now = Instant::now();
        let mut outbox = Outbox::new(&EventTiming::default());
        outbox.push(create("a"), now);
        outbox.push(create("b"), now);
        for round in 1..12 {
            let taken = outbox.take(now).unwrap();
            assert_eq!((taken.write.clone(), outbox.unreachable(taken, now)), (create("a"), 0), "{round}");
            assert!(outbox.take(now + 9 * SECOND).is_none(), "the others wait, too");
            assert_eq!(outbox.due(), Some(now + 10 * SECOND));
            now += 10 * SECOND;
        }
        outbox.push(create("c"), now);
        let taken = outbox.take(now).unwrap();
        assert_eq!((outbox.unreachable(taken, now), outbox.len()), (2, 1));
        assert_eq!(outbox.take(now + 10 * SECOND).unwrap().write, create("c"));
        assert_eq!(outbox.due(), None);
    }

    #[test]
    fn one_that_the_server_cant_take_holds_up_nobody() {
        let mut now = Instant::now();
        let mut outbox = Outbox::new(&EventTiming::default());
        outbox.push(create("a"), now);
        outbox.push(create("b"), now);
        let taken = outbox.take(now).unwrap();
        assert!(!outbox.later(taken, None, now));
        assert_eq!(outbox.take(now).unwrap().write, create("b"));
        assert!(outbox.take(now + 9 * SECOND).is_none());
        for _ in 2..12 {
            now += 10 * SECOND;
            let taken = outbox.take(now).unwrap();
            assert!(!outbox.later(taken, None, now));
        }
        let taken = outbox.take(now + 10 * SECOND).unwrap();
        assert!(outbox.later(taken, None, now), "given up");
        assert_eq!(outbox.len(), 0);
    }

    #[test]
    fn the_wait_that_the_server_asks_for_is_kept() {
        let now = Instant::now();
        for (asked, kept) in [(30, 30), (0, 10), (3, 10), (100_000, 300)] {
            let mut outbox = Outbox::new(&EventTiming::default());
            outbox.push(create("a"), now);
            outbox.push(create("b"), now);
            let taken = outbox.take(now).unwrap();
            assert!(!outbox.later(taken, Some(asked * SECOND), now));
            assert_eq!(outbox.due(), Some(now + kept * SECOND));
            assert!(outbox.take(now + kept * SECOND - SECOND).is_none(), "nobody else is sent before");
            assert_eq!(outbox.take(now + kept * SECOND).unwrap().write, create("a"));
        }
    }

    #[test]
    fn answers_mean_what_they_mean() {
        let exists = status(409, "AlreadyExists", "");
        assert_eq!(WriteOutcome::of(&create("a"), exists.clone(), None), WriteOutcome::Done);
        assert_eq!(WriteOutcome::of(&patch("a", 2), exists.clone(), None), WriteOutcome::Refused(exists));
        assert_eq!(WriteOutcome::of(&patch("a", 2), status(404, "NotFound", ""), None), WriteOutcome::Gone);
        for code in [400, 401, 403, 404, 409, 413, 422] {
            let refused = status(code, "", "");
            assert_eq!(WriteOutcome::of(&create("a"), refused.clone(), None), WriteOutcome::Refused(refused));
        }
        for code in [429, 500, 502, 503, 504] {
            let mut busy = status(code, "Busy", "wait");
            assert_eq!(
                WriteOutcome::of(&create("a"), busy.clone(), None),
                WriteOutcome::Later(format!("{code} Busy: wait"), None)
            );
            busy.retry_after_seconds = Some(3);
            let later = |seconds| WriteOutcome::Later(format!("{code} Busy: wait"), Some(seconds * SECOND));
            assert_eq!(WriteOutcome::of(&create("a"), busy.clone(), None), later(3));
            assert_eq!(WriteOutcome::of(&create("a"), busy, Some(5 * SECOND)), later(5));
        }
    }

    #[test]
    fn a_namespace_that_goes_is_no_trouble() {
        let ending = "events.events.k8s.io \"web.1\" is forbidden: unable to create new content in namespace shop because \
                      it is being terminated";
        assert!(is_harmless(&status(403, "Forbidden", ending)));
        assert!(is_harmless(&status(404, "NotFound", "namespaces \"shop\" not found")));
        assert!(!is_harmless(&status(403, "Forbidden", "events is forbidden: User \"u\" cannot create resource")));
        assert!(!is_harmless(&status(404, "NotFound", "the server could not find the requested resource")));
        assert_eq!(text(&status(404, "", "")), "404");
    }
}
