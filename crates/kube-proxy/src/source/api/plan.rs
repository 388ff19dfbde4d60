//! What to ask for next, and when: decided without a clock, a socket or a log, so that every fault can be tested.
//!
//! A list is asked for as a stream first, in pages after any failure of that; then a watch continues from its version,
//! which advances with what has been delivered and never before.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use super::backoff::{Backoff, Dice};
use super::failure::{Cause, Failure};
use super::resource::Recency;
use super::timing::Timing;

/// What to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// everything, then what changes, in one stream of so many seconds
    StreamingList { seconds: u64 },
    /// everything, in pages
    List(Recency),
    /// what changes after a version, in a stream of so many seconds
    Watch { version: Box<str>, seconds: u64 },
}

/// What follows from an attempt's end.
#[derive(Debug)]
pub(super) enum Verdict {
    /// nothing is wrong, go on after the pause
    GoOn(Duration),
    /// it failed
    Failed {
        failure: Failure,
        /// before the next step
        pause: Duration,
        /// it is nothing special
        quiet: bool,
        /// the server had begun to answer
        answered: bool,
    },
}

/// The position in a kind's history and the state of the troubles.
#[derive(Debug)]
pub(super) struct Plan {
    timing: Timing,
    dice: Dice,
    /// everything up to here has been delivered; `None` without a complete list
    version: Option<Box<str>>,
    /// some list was complete: a later one must not show anything older
    listed: bool,
    /// the next list is in pages
    paged: bool,
    recency: Recency,
    /// streaming lists are not tried before
    streaming_from: Option<Instant>,
    /// a server that can't be reached or can't answer
    trouble: Backoff,
    /// one that answers, and to no avail: it begins small when it comes after the other
    refusals: Backoff,
    /// only refusals have come since
    refused_since: Option<Instant>,
    relists: Backoff,
    last_relist: Option<Instant>,
    /// ends in a row that make the version doubtful
    doubts: u8,
    /// watches in a row that ended without a byte
    mute: u8,
    /// how long watches have been open since the last byte
    deaf: Duration,
    /// streams that end well, but at once
    hasty: Backoff,
    /// the server was away since the last list: it may have come back as an older one
    away: bool,
    /// when to list anew because of that
    verify: Option<Instant>,
    attempt: Attempt,
}

/// How the step that runs is doing.
#[derive(Clone, Copy, Debug, Default)]
struct Attempt {
    began: Option<Instant>,
    streaming: bool,
    /// when the server began to answer
    answered: Option<Instant>,
    /// when the first byte came
    heard: Option<Instant>,
    /// it brought something new
    progress: bool,
}

/// So many watches without a byte mean that something between keeps the bytes back until the end.
const MUTE: u8 = 2;

impl Plan {
    pub(super) fn new(timing: Timing, dice: Dice) -> Self {
        let hasty = Backoff::new(timing.floor);
        Self {
            trouble: Backoff::new(timing.backoff),
            refusals: Backoff::new(timing.backoff),
            refused_since: None,
            relists: Backoff::new(timing.backoff),
            timing,
            dice,
            version: None,
            listed: false,
            paged: false,
            recency: Recency::Any,
            streaming_from: None,
            last_relist: None,
            doubts: 0,
            mute: 0,
            deaf: Duration::ZERO,
            hasty,
            away: false,
            verify: None,
            attempt: Attempt::default(),
        }
    }

    /// Begins the next step.
    pub(super) fn begin(&mut self, now: Instant) -> Step {
        let may_stream = self.streaming_from.is_none_or(|from| now >= from);
        if !self.away && self.verify.is_some_and(|at| now >= at) {
            self.version = None;
            self.verify = None;
        }
        if self.version.is_some() && self.away {
            let wait = Duration::from_millis(self.dice.among(&self.timing.verify_millis));
            self.verify = now.checked_add(wait);
        }
        let step = match &self.version {
            Some(version) => {
                let version = version.clone();
                let left = self.verify.map_or(u64::MAX, |at| at.saturating_duration_since(now).as_secs() + 1);
                Step::Watch { version, seconds: self.seconds().min(left) }
            }
            None if self.paged || !may_stream => Step::List(self.recency),
            None => Step::StreamingList { seconds: self.seconds() },
        };
        let streaming = matches!(step, Step::StreamingList { .. });
        self.attempt = Attempt { began: Some(now), streaming, ..Attempt::default() };
        step
    }

    /// How long the server is asked to keep a stream. Where something keeps all bytes back until the end, the end has
    /// to come before the silence is taken for one.
    fn seconds(&mut self) -> u64 {
        match self.mute {
            0..MUTE => self.dice.among(&self.timing.watch_seconds),
            MUTE.. => (self.timing.silence.as_secs() / 4).max(1),
        }
    }

    /// The server has begun to answer what was asked.
    pub(super) fn answered(&mut self, now: Instant) {
        self.attempt.answered = Some(now);
        self.away = false;
    }

    /// Bytes have come.
    pub(super) fn heard(&mut self, now: Instant) {
        self.attempt.heard.get_or_insert(now);
        self.deaf = Duration::ZERO;
    }

    /// Whether some list was complete.
    pub(super) fn has_listed(&self) -> bool {
        self.listed
    }

    /// Whether a list is complete, so that what comes now are changes.
    pub(super) fn is_complete(&self) -> bool {
        self.version.is_some()
    }

    /// A list is complete and delivered.
    pub(super) fn listed(&mut self, version: Box<str>) {
        self.version = Some(version);
        self.listed = true;
        self.away = false;
        self.verify = None;
        self.paged = false;
        self.recency = Recency::Latest;
        self.progressed();
    }

    /// Everything up to this version is delivered. A version that isn't newer changes nothing. Says whether it is.
    pub(super) fn advanced(&mut self, version: Box<str>) -> bool {
        let known = self.version.as_deref();
        let is_new = known.is_some_and(|known| match compare(&version, known) {
            Some(order) => order.is_gt(),
            None => *version != *known,
        });
        if is_new {
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
        self.refusals.reset();
        self.refused_since = None;
    }

    /// Whether a server that has come to this version is behind what we know, as one restored from a backup is.
    pub(super) fn is_behind(&self, version: &str) -> bool {
        self.version.as_deref().is_some_and(|known| compare(version, known) == Some(Ordering::Less))
    }

    /// Whether the server has done nothing but refuse for a while, so that it means it.
    pub(super) fn is_refused(&self, now: Instant) -> bool {
        self.refused_since.is_some_and(|since| now.saturating_duration_since(since) >= self.timing.refusal_grace)
    }

    /// It isn't offered: ask as at the start, after the pause.
    pub(super) fn rest(&mut self) -> Duration {
        self.version = None;
        self.paged = false;
        self.timing.optional_retry
    }

    /// The step has ended; without a failure if it came to its proper end.
    pub(super) fn ended(&mut self, failure: Option<Failure>, now: Instant) -> Verdict {
        let attempt = self.attempt;
        let lasted = |since: Option<Instant>| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= self.timing.brief)
        };
        let (steady, live) = (self.is_complete() && lasted(attempt.answered), lasted(attempt.heard));
        let worked = attempt.progress || steady;
        if worked {
            self.works();
        }
        if live {
            self.mute = 0;
        }
        let failure = if self.is_deaf(now) {
            Some(Failure::new(Cause::Behind, "the server keeps watches open and says nothing"))
        } else {
            failure
        };
        let failure = match failure {
            None if worked => return Verdict::GoOn(self.after_a_good_end(now)),
            None => Failure::new(Cause::Short, "it ended at once and brought nothing"),
            Some(failure) => failure,
        };
        let quiet = match failure.cause {
            Cause::Interrupted => worked,
            // Some servers send no bookmarks, and one that is gone shows at the next step.
            Cause::Silent => self.is_complete() && attempt.answered.is_some(),
            Cause::Expired => self.is_first_relist(now),
            // Older servers don't know streaming lists.
            Cause::Unsupported | Cause::Refused { code: 400 | 422, .. } => attempt.streaming && !self.is_complete(),
            _ => false,
        };
        let mut pause = self.after(&failure, now);
        if let Some(wanted) = failure.retry_after {
            pause = pause.max(wanted.min(self.timing.retry_after_limit));
        }
        if !worked {
            pause = pause.max(self.timing.floor);
        }
        Verdict::Failed { failure, pause, quiet, answered: attempt.answered.is_some() }
    }

    /// A server or proxy that ends each stream at once would be asked without a break.
    fn after_a_good_end(&mut self, now: Instant) -> Duration {
        let lasted = self.attempt.began.is_some_and(|began| now.saturating_duration_since(began) >= self.timing.brief);
        if lasted {
            self.hasty.reset();
            return Duration::ZERO;
        }
        self.hasty.next(self.timing.backoff_limit, &mut self.dice)
    }

    /// Whether the server has told nothing for too long, in watches that were open.
    fn is_deaf(&mut self, now: Instant) -> bool {
        let Attempt { answered: Some(answered), heard: None, .. } = self.attempt else { return false };
        if self.is_complete() {
            self.deaf += now.saturating_duration_since(answered);
        }
        let is_deaf = self.deaf >= self.timing.deaf;
        if is_deaf {
            self.deaf = Duration::ZERO;
        }
        is_deaf
    }

    /// Draws the consequences of a failure and says how long to wait, as far as we decide that.
    fn after(&mut self, failure: &Failure, now: Instant) -> Duration {
        let attempt = self.attempt;
        if !self.is_complete() {
            self.list_failed(failure.cause, now);
        } else if failure.cause == Cause::Silent && attempt.heard.is_none() {
            self.mute = self.mute.saturating_add(1);
        }
        self.away |= self.listed && is_absence(failure.cause);
        if matches!(failure.cause, Cause::Expired | Cause::Behind) {
            return self.relist(now);
        }
        let pause = self.back_off(failure.cause, now);
        if self.is_complete() && self.is_doubtful(failure.cause) { pause.max(self.relist(now)) } else { pause }
    }

    /// The next wait after failures of this sort.
    fn back_off(&mut self, cause: Cause, now: Instant) -> Duration {
        let refused = cause.code().is_some_and(|code| (400..500).contains(&code) && code != 429);
        if refused {
            self.refused_since.get_or_insert(now);
        } else {
            self.refused_since = None;
        }
        let costly = cause == Cause::Endless || cause == Cause::Broken && !self.is_complete();
        let limit = if costly || self.is_refused(now) { self.timing.refusal_limit } else { self.timing.backoff_limit };
        let backoff = if refused || costly { &mut self.refusals } else { &mut self.trouble };
        backoff.next(limit, &mut self.dice)
    }

    fn list_failed(&mut self, cause: Cause, now: Instant) {
        if cause == Cause::Unreached {
            return;
        }
        if self.attempt.streaming {
            self.paged = true;
            let is_held_back = cause == Cause::Silent && self.attempt.answered.is_some();
            if is_held_back || cause == Cause::Unsupported || is_refusal_of_streaming(cause) {
                self.streaming_from = now.checked_add(self.timing.streaming_retry);
            }
        } else {
            // A token that has expired shows nothing against pages.
            self.paged = cause == Cause::Expired;
        }
        if cause == Cause::Expired {
            self.recency = Recency::Latest;
        }
    }

    /// Whether it is better to list anew than to ask again from the same version.
    fn is_doubtful(&mut self, cause: Cause) -> bool {
        let most = match cause {
            Cause::Refused { code: 401 | 403 | 408 | 429 | 502..=504, .. } => return false,
            Cause::Refused { code: 500.., within: false } => 5,
            Cause::Broken => 2,
            Cause::Refused { .. } => 2,
            _ => return false,
        };
        self.doubts += 1;
        self.doubts >= most
    }

    fn is_first_relist(&self, now: Instant) -> bool {
        self.last_relist.is_none_or(|last| now.saturating_duration_since(last) > self.timing.relist_memory)
    }

    /// Gives the version up. At once for the first time in a while: lists are costly, also for the server, and one that
    /// completes is no reason to ask for the next one sooner.
    fn relist(&mut self, now: Instant) -> Duration {
        let is_first = self.is_first_relist(now);
        self.version = None;
        self.doubts = 0;
        self.last_relist = Some(now);
        if is_first {
            self.relists.reset();
            return Duration::ZERO;
        }
        self.relists.next(self.timing.refusal_limit, &mut self.dice)
    }
}

/// Whether the server is away or has just started. It may come back with what a backup held: then our version is one of
/// its future, watches from there say nothing until it has caught up, and what is gone by then is never told.
fn is_absence(cause: Cause) -> bool {
    cause == Cause::Unreached || cause.code().is_some_and(|code| matches!(code, 401 | 403 | 500..))
}

/// Whether the server has said that it doesn't do streaming lists, rather than that it does nothing for us just now.
fn is_refusal_of_streaming(cause: Cause) -> bool {
    let passing = [401, 403, 404, 408, 410, 429, 502, 503, 504];
    cause.code().is_some_and(|code| code >= 400 && !passing.contains(&code))
}

/// Versions are decimal numbers of any length; `None` for anything else.
fn compare(one: &str, other: &str) -> Option<Ordering> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(one) || !digits(other) {
        return None;
    }
    let (one, other) = (one.trim_start_matches('0'), other.trim_start_matches('0'));
    Some(one.len().cmp(&other.len()).then_with(|| one.cmp(other)))
}

#[cfg(test)]
mod tests;
