//! Decides on the next request of one kind and its time: list, watch or check. Pure, without clock, socket or log, so that every
//! fault can be tested.
//!
//! A list is requested as a stream first, in pages after failures of that; then a watch continues from its version, which
//! advances only after delivery.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use ferry_api::wire::stream::compare_versions;

use super::attempt::Attempt;
use super::failure::{FailureCause, RequestFailure};
use super::history::{Finding, HistoryChecks, Witnesses};
use super::resource::Recency;
use super::step::NextRequest;
use super::timing::SourceTiming;
use ferry_client::backoff::{Backoff, Jitter};

/// Consequence of an attempt's end.
#[derive(Debug)]
pub(super) enum AttemptResult {
    /// no failure: continue after the pause
    GoOn(Duration),
    /// the attempt failed
    Failed {
        failure: RequestFailure,
        /// pause before the next step
        pause: Duration,
        /// expected, not worth a warning
        quiet: bool,
        /// the server had sent a response head
        answered: bool,
    },
}

/// Position in a kind's history, and the state of failures.
#[derive(Debug)]
pub(super) struct RequestPlan {
    timing: SourceTiming,
    jitter: Jitter,
    /// version up to which everything has been delivered; `None` without a complete list
    version: Option<Box<str>>,
    /// a list has been complete since the start
    listed: bool,
    /// the last delivered version, even if watches from it were given up: a list must not return an older state
    known: Option<Box<str>>,
    /// the server doesn't have that version: a list must return the latest state
    latest: bool,
    history: HistoryChecks,
    /// consecutive failed streaming lists: after the second one the next list is paged
    failed_streams: u8,
    /// no streaming list before this time
    streaming_from: Option<Instant>,
    /// backoff of broken streams and other failures
    trouble: Backoff,
    /// backoff after 429 or 5xx
    failing: Backoff,
    /// backoff after rejections: begins small after another kind of failure
    refusals: Backoff,
    /// start of an unbroken series of rejections
    refused_since: Option<Instant>,
    relists: Backoff,
    last_relist: Option<Instant>,
    /// consecutive failures that cast doubt on the version
    doubts: u8,
    /// consecutive watches that ended without a byte
    mute: u8,
    /// total time of open watches since the last byte
    deaf: Duration,
    /// backoff of streams that end properly, but at once
    hasty: Backoff,
    /// the server was unreachable, and hasn't answered since: it may have been restored to an older state
    away: bool,
    /// a watch ended early, and no list or watch has been answered since: the server may be restarting
    interrupted: bool,
    attempt: Attempt,
}

/// Consecutive failures of streaming lists after which lists are paged.
const STREAMS: u8 = 2;

/// Failures at one version after which a list follows.
const DOUBTS: u8 = 2;

/// Consecutive watches without a byte after which a proxy is assumed to buffer responses until their end.
const MUTE: u8 = 2;

impl RequestPlan {
    pub(super) fn new(timing: SourceTiming, jitter: Jitter) -> Self {
        let hasty = Backoff::new(timing.floor);
        Self {
            trouble: Backoff::new(timing.backoff),
            failing: Backoff::new(timing.failing),
            refusals: Backoff::new(timing.failing),
            refused_since: None,
            relists: Backoff::new(timing.backoff),
            timing,
            jitter,
            version: None,
            listed: false,
            known: None,
            latest: false,
            history: HistoryChecks::default(),
            failed_streams: 0,
            streaming_from: None,
            last_relist: None,
            doubts: 0,
            mute: 0,
            deaf: Duration::ZERO,
            hasty,
            away: false,
            interrupted: false,
            attempt: Attempt::default(),
        }
    }

    /// Notes a failed attempt to connect, of this kind or another.
    pub(super) fn missed(&mut self) {
        self.away |= self.listed;
        self.history.again();
    }

    /// True if kinds take turns: the server was unreachable, or may be, and hasn't answered since.
    pub(super) fn asks_in_turn(&self) -> bool {
        (self.away || self.interrupted) && !self.history.is_under_way()
    }

    /// Takes over from another kind that the server's watch cache begins with this version. Returns the pause before a list if
    /// the known version is older: a watch from it would only be rejected.
    pub(super) fn forgotten(&mut self, oldest: &str, now: Instant) -> Option<Duration> {
        let is_older = |known: &str| compare_versions(known, oldest) == Some(Ordering::Less);
        if !self.version.as_deref().is_some_and(is_older) {
            return None;
        }
        self.away = false;
        Some(self.relist(now))
    }

    /// Begins the next step.
    pub(super) fn begin(&mut self, now: Instant) -> NextRequest {
        let may_stream = self.timing.streaming_lists && self.streaming_from.is_none_or(|from| now >= from);
        if !self.away && self.history.list_is_due(now) {
            self.version = None;
        }
        let step = match self.version.clone() {
            Some(version) => self.resume(version, now),
            None if self.failed_streams >= STREAMS || !may_stream => NextRequest::List(self.recency()),
            None => NextRequest::StreamingList { recency: self.recency(), seconds: self.seconds() },
        };
        self.attempt = Attempt::new(&step, now);
        step
    }

    /// A watch from this version; after an outage, first a check, or a scheduled list.
    fn resume(&mut self, version: Box<str>, now: Instant) -> NextRequest {
        if self.away && self.history.is_doubted() {
            self.doubt(now);
        } else if self.away && !self.history.is_lagging() || self.history.check_is_due(now) {
            return NextRequest::Check { name: self.history.name().cloned(), version };
        }
        let left = self.history.seconds_left(now);
        NextRequest::Watch { version, seconds: self.seconds().min(left) }
    }

    /// Schedules a full list.
    fn doubt(&mut self, now: Instant) {
        self.history.doubt(now, &self.timing, &mut self.jitter);
    }

    fn recency(&self) -> Recency {
        match &self.known {
            _ if self.latest => Recency::Latest,
            Some(known) => Recency::Since(known.clone()),
            None => Recency::Any,
        }
    }

    /// Requested duration of a stream, in seconds. If a proxy buffers responses, the stream must end before the silence timeout.
    fn seconds(&mut self) -> u64 {
        match self.mute {
            0..MUTE => self.jitter.among(&self.timing.watch_seconds),
            MUTE.. => (self.timing.silence.as_secs() / 4).max(1),
        }
    }

    /// Notes the response's head.
    pub(super) fn answered(&mut self, now: Instant) {
        self.attempt.answered = Some(now);
        if !self.attempt.checking {
            self.away = false;
            self.interrupted = false;
        }
    }

    /// Takes a check's result: the version of its object, if that exists.
    pub(super) fn checked(&mut self, found: Option<&str>, now: Instant) {
        let known = self.version.as_deref().unwrap_or_default();
        let finding = self.history.found(found, known);
        // The next check follows at once.
        self.away = finding == Finding::Open;
        if finding == Finding::Doubtful {
            self.doubt(now);
        }
        self.attempt.progress = true;
    }

    /// Notes the last changes, after their delivery.
    pub(super) fn witnessed(&mut self, changes: Witnesses) {
        self.history.changed(changes);
    }

    /// Notes received bytes.
    pub(super) fn received_bytes(&mut self, now: Instant) {
        self.attempt.first_byte.get_or_insert(now);
        self.deaf = Duration::ZERO;
    }

    /// True if bytes of this step's response have been received.
    pub(super) fn has_first_byte(&self) -> bool {
        self.attempt.first_byte.is_some()
    }

    /// True if the step is a check.
    pub(super) fn is_checking(&self) -> bool {
        self.attempt.checking
    }

    /// True if a list has been complete since the start.
    pub(super) fn has_listed(&self) -> bool {
        self.listed
    }

    /// True if the current list is complete, so that further events are changes.
    pub(super) fn is_complete(&self) -> bool {
        self.version.is_some()
    }

    /// Notes a list that is complete and delivered; `witnesses` are its objects that changed last.
    pub(super) fn listed(&mut self, version: Box<str>, witnesses: Witnesses) {
        self.known = Some(version.clone());
        self.version = Some(version);
        self.listed = true;
        self.latest = false;
        self.away = false;
        self.history.restart(witnesses);
        self.failed_streams = 0;
        self.progressed();
    }

    /// Advances the version up to which everything is delivered. False, without a change, if it isn't newer.
    pub(super) fn advanced(&mut self, version: Box<str>) -> bool {
        let known = self.version.as_deref();
        let is_new = known.is_some_and(|known| match compare_versions(&version, known) {
            Some(order) => order.is_gt(),
            None => *version != *known,
        });
        if is_new {
            self.known = Some(version.clone());
            self.version = Some(version);
            self.progressed();
        }
        is_new
    }

    fn progressed(&mut self) {
        self.attempt.progress = true;
        self.works();
        self.doubts = 0;
    }

    fn works(&mut self) {
        self.trouble.reset();
        self.failing.reset();
        self.refusals.reset();
        self.refused_since = None;
    }

    /// True if a server at this version is behind the known one, as after a restore from a backup.
    pub(super) fn is_behind(&self, version: &str) -> bool {
        self.version.as_deref().is_some_and(|known| compare_versions(version, known) == Some(Ordering::Less))
    }

    /// True if the server has only sent rejections for a while, so that they count as permanent.
    pub(super) fn is_refused(&self, now: Instant) -> bool {
        self.refused_since.is_some_and(|since| now.saturating_duration_since(since) >= self.timing.refusal_grace)
    }

    /// The server doesn't serve the kind: begins as at the start, after the returned pause.
    pub(super) fn rest(&mut self) -> Duration {
        self.version = None;
        self.failed_streams = 0;
        self.timing.optional_retry
    }

    /// Ends the step; `failure` is `None` after its proper end.
    pub(super) fn ended(&mut self, failure: Option<RequestFailure>, now: Instant) -> AttemptResult {
        let attempt = self.attempt;
        let lasted = |since: Option<Instant>| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= self.timing.brief)
        };
        if attempt.checking && failure.is_none() {
            return AttemptResult::GoOn(Duration::ZERO);
        }
        self.interrupted |= self.is_complete() && attempt.is_interrupted(failure.as_ref(), now);
        let (steady, live) = (self.is_complete() && lasted(attempt.answered), lasted(attempt.first_byte));
        let worked = attempt.progress || steady;
        if worked {
            self.works();
        }
        if live {
            self.mute = 0;
        }
        let failure = if self.is_deaf(now) {
            Some(RequestFailure::new(FailureCause::Behind, "the server keeps watches open and sends nothing"))
        } else {
            failure
        };
        let failure = match failure {
            None if worked => return AttemptResult::GoOn(self.after_a_good_end(now)),
            None => RequestFailure::new(FailureCause::Short, "the stream ended at once without an event"),
            Some(failure) => failure,
        };
        let quiet = match failure.cause {
            // The watch that follows is rejected, too, and that is logged.
            FailureCause::Refused { .. } if attempt.checking => true,
            FailureCause::Interrupted => worked,
            // Some servers send no bookmarks, and an unreachable one shows at the next step.
            FailureCause::Silent => self.is_complete() && attempt.answered.is_some(),
            FailureCause::Expired => self.is_first_relist(now),
            // Older servers don't support streaming lists.
            FailureCause::Unsupported | FailureCause::Refused { code: 400 | 422, .. } => {
                attempt.streaming && !self.is_complete()
            }
            _ => false,
        };
        let mut pause = self.after(&failure, now);
        if let Some(wanted) = failure.retry_after {
            // With jitter: many nodes get the same answer.
            let wanted = wanted.min(self.timing.retry_after_limit).mul_f64(1.0 + self.jitter.fraction() / 4.0);
            pause = pause.max(wanted);
        }
        if !worked {
            pause = pause.max(self.timing.floor);
        }
        AttemptResult::Failed { failure, pause, quiet, answered: attempt.answered.is_some() }
    }

    /// The pause after a proper end: a server or proxy that ends each stream at once must not cause a busy loop.
    fn after_a_good_end(&mut self, now: Instant) -> Duration {
        let lasted = self.attempt.began.is_some_and(|began| now.saturating_duration_since(began) >= self.timing.brief);
        if lasted {
            self.hasty.reset();
            return Duration::ZERO;
        }
        self.hasty.next(self.timing.short_limit, &mut self.jitter)
    }

    /// True if open watches have been silent for too long in total.
    fn is_deaf(&mut self, now: Instant) -> bool {
        let Attempt { answered: Some(answered), first_byte: None, checking: false, .. } = self.attempt else {
            return false;
        };
        if self.is_complete() {
            self.deaf += now.saturating_duration_since(answered);
        }
        let is_deaf = self.deaf >= self.timing.deaf;
        if is_deaf {
            self.deaf = Duration::ZERO;
        }
        is_deaf
    }

    /// Draws the consequences of a failure; returns the pause without regard to the server's Retry-After.
    fn after(&mut self, failure: &RequestFailure, now: Instant) -> Duration {
        let attempt = self.attempt;
        if !self.is_complete() {
            self.list_failed(failure.cause, now);
        } else if failure.cause == FailureCause::Silent && attempt.first_byte.is_none() {
            self.mute = self.mute.saturating_add(1);
        }
        self.away |= self.listed && failure.cause.is_absence();
        let is_future = failure.cause == FailureCause::Future;
        let known = self.version.as_deref().unwrap_or_default();
        if is_future && attempt.checking && !self.history.lags(known, now, &self.timing, &mut self.jitter) {
            // One of several API servers may lag behind the others. A watch waits there until it has caught up.
            self.away = false;
            return Duration::ZERO;
        }
        if attempt.checking || failure.cause.is_absence() {
            self.history.again();
        }
        self.latest |= is_future || failure.cause == FailureCause::Behind;
        if matches!(failure.cause, FailureCause::Expired | FailureCause::Behind) || is_future && self.is_complete() {
            self.away = false;
            return self.relist(now);
        }
        let pause = self.back_off(failure.cause, now);
        if attempt.checking {
            // A server that has just started may reject access for a moment only.
            let is_passing = failure.is_refused_access() && !self.is_refused(now);
            if failure.cause.is_answer() && !is_passing {
                // The check can't answer the question.
                self.doubt(now);
            }
            return pause;
        }
        if self.is_complete() && self.is_doubtful(failure.cause) { pause.max(self.relist(now)) } else { pause }
    }

    /// The next backoff after failures of this class.
    fn back_off(&mut self, cause: FailureCause, now: Instant) -> Duration {
        let refused = cause.code().is_some_and(|code| (400..500).contains(&code) && code != 429);
        if refused {
            self.refused_since.get_or_insert(now);
        } else {
            self.refused_since = None;
        }
        let SourceTiming { backoff_limit, short_limit, refusal_limit, floor, .. } = self.timing;
        let costly = cause == FailureCause::Endless || cause == FailureCause::Broken && !self.is_complete();
        let (backoff, limit) = match cause {
            // The client itself paces attempts to connect.
            FailureCause::Unreached => return floor.mul_f64(1.0 + self.jitter.fraction()),
            FailureCause::Unequipped => (&mut self.trouble, short_limit),
            _ if costly || self.is_refused(now) => (&mut self.refusals, refusal_limit),
            _ if refused => (&mut self.refusals, short_limit),
            FailureCause::Refused { .. } => (&mut self.failing, backoff_limit),
            _ => (&mut self.trouble, backoff_limit),
        };
        backoff.next(limit, &mut self.jitter)
    }

    fn list_failed(&mut self, cause: FailureCause, now: Instant) {
        if matches!(cause, FailureCause::Unreached | FailureCause::Unequipped | FailureCause::Future) {
            return;
        }
        if self.attempt.streaming {
            self.failed_streams = self.failed_streams.saturating_add(1);
            let is_held_back = cause == FailureCause::Silent && self.attempt.answered.is_some();
            if is_held_back || cause == FailureCause::Unsupported || cause.is_refusal_of_streaming() {
                self.streaming_from = now.checked_add(self.timing.streaming_retry);
            }
        } else {
            // An expired continue token is no argument against paged lists.
            self.failed_streams = if cause == FailureCause::Expired { STREAMS } else { 0 };
        }
        self.latest |= cause == FailureCause::Expired;
    }

    /// True if a full list is better than another request from the same version: after the second failure that may be due to it.
    /// 5xx is about the server's state, in which a list is the costliest request, and would fail, too.
    fn is_doubtful(&mut self, cause: FailureCause) -> bool {
        match cause {
            FailureCause::Refused { code: 401 | 403 | 408 | 429 | 500.., .. } => return false,
            FailureCause::Broken | FailureCause::Refused { .. } => {}
            _ => return false,
        }
        self.doubts += 1;
        self.doubts >= DOUBTS
    }

    fn is_first_relist(&self, now: Instant) -> bool {
        self.last_relist.is_none_or(|last| now.saturating_duration_since(last) > self.timing.relist_memory)
    }

    /// Gives up the version and returns the pause before a full list: none for the first in a while. Lists are costly for the
    /// server, too, and a completed one is no reason to request the next one sooner.
    fn relist(&mut self, now: Instant) -> Duration {
        let is_first = self.is_first_relist(now);
        self.version = None;
        self.doubts = 0;
        self.last_relist = Some(now);
        if is_first {
            self.relists.reset();
            return Duration::ZERO;
        }
        self.relists.next(self.timing.refusal_limit, &mut self.jitter)
    }
}

#[cfg(test)]
mod tests;
