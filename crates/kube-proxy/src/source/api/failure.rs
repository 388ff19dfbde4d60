//! Classifies failures of requests by their consequences for the next step.

use std::fmt;
use std::time::Duration;

use ferry_api::wire::stream::{Status, StreamError};

use ferry_client::CallError;

/// Failure of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestFailure {
    pub(super) cause: FailureCause,
    /// message without parts that differ each time
    text: String,
    /// the server's Retry-After
    pub(super) retry_after: Option<Duration>,
}

/// Class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureCause {
    /// no connection to the server; the client paces the attempts
    Unreached,
    /// no credentials to send
    Unequipped,
    /// the connection broke during a response
    Interrupted,
    /// no data for too long
    Silent,
    /// the requested version is older than the server's history
    Expired,
    /// the server rejected the request
    Refused {
        /// the HTTP status, or the one in the event
        code: u16,
        /// in an event or body, after a successful response head
        within: bool,
    },
    /// malformed data
    Broken,
    /// unsupported content type
    Foreign,
    /// more objects or pages than possible
    Endless,
    /// the stream ended early
    Short,
    /// the server treats a streaming list as a plain watch
    Unsupported,
    /// the server's resource version went back
    Behind,
    /// the server hasn't reached the requested version
    Future,
}

/// Part of the server's message if its history ends before the requested version. The code, 504, has other causes, too.
const TOO_LARGE: &str = "Too large resource version";

/// The same if its watch cache begins after that version.
const TOO_OLD: &str = "too old resource version:";

/// Longest quotation of a server's or a proxy's text, in bytes.
const MOST_TEXT: usize = 1024;

// === impl RequestFailure ===

impl RequestFailure {
    pub(super) fn new(cause: FailureCause, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(MOST_TEXT));
        Self { cause, text, retry_after: None }
    }

    /// A status of the server, from the response's head or within the response.
    pub(super) fn status(status: &Status, within: bool) -> Self {
        let Status { code, reason, message, retry_after_seconds } = status;
        let parts = [reason, message].map(|part| part.trim());
        let mut text = code.to_string();
        for (part, separator) in parts.into_iter().zip([" ", ": "]) {
            if !part.is_empty() {
                text.extend([separator, part]);
            }
        }
        let cause = match (code, &**reason) {
            (410, _) | (_, "Expired" | "Gone") => FailureCause::Expired,
            _ if message.contains(TOO_LARGE) => FailureCause::Future,
            (code, _) => FailureCause::Refused { code: *code, within },
        };
        let seconds = retry_after_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        Self::new(cause, text).after(seconds)
    }

    /// Adds the server's Retry-After.
    pub(super) fn after(self, wait: Option<Duration>) -> Self {
        Self { retry_after: self.retry_after.max(wait), ..self }
    }

    /// The oldest version in the server's watch cache, if its message has it: "too old resource version: 5 (7)".
    pub(super) fn oldest(&self) -> Option<&str> {
        let (_, versions) = self.text.split_once(TOO_OLD)?;
        let (_, oldest) = versions.split_once('(')?;
        Some(oldest.split_once(')')?.0.trim())
    }

    /// True for failed authentication or authorization.
    pub(super) fn is_refused_access(&self) -> bool {
        matches!(self.cause.code(), Some(401 | 403))
    }
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<StreamError> for RequestFailure {
    fn from(error: StreamError) -> Self {
        let cause = match &error {
            StreamError::Status(status) => return Self::status(status, true),
            StreamError::Malformed(_) | StreamError::TooLarge { .. } => FailureCause::Broken,
            StreamError::Truncated => FailureCause::Interrupted,
        };
        Self::new(cause, error.to_string())
    }
}

impl From<CallError> for RequestFailure {
    fn from(error: CallError) -> Self {
        let cause = match &error {
            CallError::Connect(_) => FailureCause::Unreached,
            CallError::Credentials(_) => FailureCause::Unequipped,
            CallError::Interrupted(_) => FailureCause::Interrupted,
            CallError::Timeout { .. } => FailureCause::Silent,
        };
        Self::new(cause, error.to_string())
    }
}

// === impl FailureCause ===

impl FailureCause {
    /// The server's status code.
    pub(super) fn code(self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(code),
            Self::Expired => Some(410),
            _ => None,
        }
    }

    /// True if the server or a proxy answered, and a retry is unlikely to change the answer soon.
    pub(super) fn is_answer(self) -> bool {
        let refused = self.code().is_some_and(|code| (400..500).contains(&code) && code != 429);
        refused || matches!(self, Self::Broken | Self::Foreign | Self::Endless | Self::Unsupported)
    }

    /// True if the server is unreachable or has just started. It may have been restored from a backup: then the known version is
    /// in its future, watches from there are silent until it has caught up, and deletions before that are never delivered.
    pub(super) fn is_absence(self) -> bool {
        matches!(self, Self::Unreached | Self::Unequipped)
            || self.code().is_some_and(|code| matches!(code, 401 | 403 | 500..))
    }

    /// True if the server doesn't support streaming lists; false if it rejects any request at present.
    pub(super) fn is_refusal_of_streaming(self) -> bool {
        let passing = [401, 403, 404, 408, 410, 429, 502, 503, 504];
        self.code().is_some_and(|code| code >= 400 && !passing.contains(&code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, reason: &str, message: &str) -> Status {
        Status { code, reason: reason.into(), message: message.into(), retry_after_seconds: None }
    }

    #[test]
    fn a_status_is_told_whole() {
        let failure =
            RequestFailure::status(&status(403, "Forbidden", "nodes is forbidden: User \"u\" cannot watch"), false);
        assert_eq!(failure.to_string(), "403 Forbidden: nodes is forbidden: User \"u\" cannot watch");
        assert_eq!(failure.cause, FailureCause::Refused { code: 403, within: false });
        assert!(failure.is_refused_access());
        assert_eq!(RequestFailure::status(&status(500, "", ""), true).to_string(), "500");
        assert_eq!(RequestFailure::status(&status(0, "", "odd"), true).to_string(), "0: odd");
    }

    #[test]
    fn gone_is_expired_wherever_it_stands() {
        assert_eq!(RequestFailure::status(&status(410, "Gone", ""), false).cause, FailureCause::Expired);
        assert_eq!(RequestFailure::from(StreamError::Status(status(410, "Expired", ""))).cause, FailureCause::Expired);
        assert_eq!(RequestFailure::status(&status(0, "Expired", ""), true).cause, FailureCause::Expired);
    }

    #[test]
    fn a_version_that_the_server_hasnt_come_to_is_told_by_its_message() {
        let status = status(504, "Timeout", "Too large resource version: 9, current: 7");
        assert_eq!(RequestFailure::status(&status, false).cause, FailureCause::Future);
    }

    #[test]
    fn the_oldest_version_is_found_where_the_server_has_it() {
        let oldest = |message: &str| {
            let failure = RequestFailure::status(&status(410, "Expired", message), true);
            failure.oldest().map(str::to_owned)
        };
        assert_eq!(oldest("too old resource version: 207 (211)").as_deref(), Some("211"));
        assert_eq!(oldest("too old resource version: 207"), None);
        assert_eq!(oldest("The resourceVersion for the provided watch is too old. (5)"), None);
    }

    #[test]
    fn the_longer_wait_counts() {
        let mut told = status(429, "TooManyRequests", "");
        told.retry_after_seconds = Some(3);
        let (one, five) = (Duration::from_secs(1), Duration::from_secs(5));
        assert_eq!(RequestFailure::status(&told, true).after(Some(one)).retry_after, Some(Duration::from_secs(3)));
        assert_eq!(RequestFailure::status(&told, true).after(Some(five)).retry_after, Some(five));
        assert_eq!(RequestFailure::status(&status(500, "", ""), true).after(None).retry_after, None);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let failure = RequestFailure::new(FailureCause::Broken, "ä".repeat(MOST_TEXT));
        assert_eq!(failure.to_string().len(), MOST_TEXT);
        let failure = RequestFailure::new(FailureCause::Broken, format!("x{}", "ä".repeat(MOST_TEXT)));
        assert_eq!(failure.to_string().len(), MOST_TEXT - 1);
    }
}
