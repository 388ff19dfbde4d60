//! Progress of the running request.

use std::time::{Duration, Instant};

use super::failure::{FailureCause, RequestFailure};
use super::step::NextRequest;

/// Progress of one step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempt {
    pub(super) began: Option<Instant>,
    /// requested end of the stream
    until: Option<Instant>,
    pub(super) streaming: bool,
    pub(super) checking: bool,
    /// time of the response's head
    pub(super) answered: Option<Instant>,
    /// time of the first byte of the body
    pub(super) first_byte: Option<Instant>,
    /// the response has delivered something new
    pub(super) progress: bool,
}

/// A stream that ends this much sooner than requested was interrupted.
const EARLY: Duration = Duration::from_secs(2);

// === impl Attempt ===

impl Attempt {
    /// An attempt of a step that begins at `now`.
    pub(super) fn new(step: &NextRequest, now: Instant) -> Self {
        let seconds = match step {
            NextRequest::StreamingList { seconds, .. } | NextRequest::Watch { seconds, .. } => Some(*seconds),
            NextRequest::List(_) | NextRequest::Check { .. } => None,
        };
        Self {
            began: Some(now),
            until: seconds.and_then(|seconds| now.checked_add(Duration::from_secs(seconds))),
            streaming: matches!(step, NextRequest::StreamingList { .. }),
            checking: matches!(step, NextRequest::Check { .. }),
            ..Self::default()
        }
    }

    /// True if a stream ends early, as all do when the server stops or the connection to it breaks.
    pub(super) fn is_interrupted(&self, failure: Option<&RequestFailure>, now: Instant) -> bool {
        self.until.is_some_and(|until| match failure {
            Some(failure) => failure.cause == FailureCause::Interrupted,
            None => now + EARLY < until,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_end_before_their_time_are_interrupted() {
        let now = Instant::now();
        let watch = Attempt::new(&NextRequest::Watch { version: "7".into(), seconds: 300 }, now);
        let after = |seconds| now + Duration::from_secs(seconds);
        assert!(watch.is_interrupted(None, after(200)));
        assert!(!watch.is_interrupted(None, after(299)));
        let failure = |cause| Some(RequestFailure::new(cause, "it failed"));
        assert!(watch.is_interrupted(failure(FailureCause::Interrupted).as_ref(), after(299)));
        assert!(!watch.is_interrupted(failure(FailureCause::Expired).as_ref(), after(1)));
        let check = Attempt::new(&NextRequest::Check { name: None, version: "7".into() }, now);
        assert!(check.checking && !check.is_interrupted(None, after(1)));
        assert!(!check.is_interrupted(failure(FailureCause::Interrupted).as_ref(), after(1)));
    }
}
