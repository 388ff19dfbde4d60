//! Scripted faults: rules that match requests and connections, and the failures that they cause.

use std::time::Duration;

use ferry_api::object::Kind;

/// A fault of the next matching requests. Rules are tried in the order in which they were added; the first match applies,
/// and its count decreases by one.
#[derive(Clone, Debug)]
pub struct FaultRule {
    /// matches this kind only
    pub kind: Option<Kind>,
    /// matches this form only
    pub form: RequestForm,
    /// number of requests that it applies to; `usize::MAX` for all
    pub times: usize,
    /// the fault
    pub action: FaultAction,
}

/// Form of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestForm {
    /// in a rule: any of them
    Any,
    /// a list, or a page of it
    List,
    /// a watch with `sendInitialEvents=true`
    StreamingList,
    /// a watch from a resourceVersion
    Watch,
    /// an Event that is created or patched
    Event,
    /// one object, the version, or an unknown path
    Other,
}

/// A fault of a response. Bytes of a body are counted inside TLS: with chunk framing, after compression. HTTP/2 has no chunk
/// framing, and faults that end or reset a connection reset the stream.
#[derive(Clone, Debug)]
pub enum FaultAction {
    /// A failure, with a Status in the requested encoding, or with the text `body` instead. `retry_after` sets both the header
    /// and details.retryAfterSeconds.
    Status {
        /// HTTP status
        code: u16,
        /// seconds
        retry_after: Option<u32>,
        /// body instead of a Status, as text/plain
        body: Option<String>,
    },
    /// 429 with the retry delay in seconds in only one of the two places
    Throttle {
        /// in the header Retry-After
        header: Option<u32>,
        /// in the Status' details.retryAfterSeconds
        details: Option<u32>,
    },
    /// Watches: after this many events an ERROR event, and the end of the body. Lists: the same as an HTTP status.
    ErrorEvent {
        /// code of the Status in it
        code: u16,
        /// events before it
        after: usize,
    },
    /// The connection ends (FIN, without TLS close_notify) after this many bytes of the body
    CutAfter {
        /// bytes
        bytes: usize,
    },
    /// The same with RST
    ResetAfter {
        /// bytes
        bytes: usize,
    },
    /// [`FaultAction::CutAfter`] a random number of bytes below `below`, drawn for each request
    CutRandom {
        /// the same seed gives the same numbers
        seed: u64,
        /// exclusive
        below: usize,
    },
    /// The connection ends after this many bytes of the head; the request itself takes effect
    CutHead {
        /// bytes
        bytes: usize,
    },
    /// The body ends cleanly after this many bytes of content, even inside an object
    EndAfter {
        /// bytes before compression, without the framing of chunks
        bytes: usize,
    },
    /// A head, then nothing more; the connection stays open
    Silence,
    /// No response at all; the connection stays open
    NoAnswer,
    /// HTTP/2: REFUSED_STREAM. With HTTP/1.1 the connection ends
    RefuseStream,
    /// This many bytes of the body, then nothing more; the connection stays open
    StallAfter {
        /// bytes
        bytes: usize,
    },
    /// The body in small pieces, with a pause after each
    Slow {
        /// bytes of a piece
        bytes: usize,
        /// pause
        pause: Duration,
    },
    /// Waits before the head
    Delay(Duration),
    /// `Content-Encoding: gzip`: one member, flushed at each event
    Gzip,
    /// The same with one gzip member per event or item
    GzipMembers,
    /// Gzip that unpacks to this many zeros
    GzipBomb {
        /// bytes
        bytes: usize,
    },
    /// Another content type, with an unchanged body
    ContentType(String),
    /// Endless items (or ADDED events): copies of one object under new names
    Endless,
    /// Endless pages, each with this many items and a continue token. `times` bounds their number.
    EndlessPages {
        /// items per page; may be 0
        items: usize,
    },
    /// One endless object (item or event)
    EndlessObject,
    /// These bytes as the body, under the requested content type
    Raw(Vec<u8>),
    /// The first object of the response is damaged inside its frame: its metadata can be decoded, the rest can't
    BrokenObject,
    /// The same, but its metadata can't be decoded either
    BrokenName,
    /// After this many objects of the response, bytes that are no valid frame
    BrokenFrame {
        /// objects before it
        after: usize,
    },
}

/// A fault of a connection that was just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Welcome {
    /// closed at once
    Close,
    /// reset at once
    Reset,
    /// bytes that are neither TLS nor HTTP, then closed
    Garbage,
    /// stays open; nothing is read or written
    Silence,
}

/// The active rules.
#[derive(Default)]
pub(super) struct Script {
    rules: Vec<(FaultRule, u64)>,
    welcomes: Vec<(usize, Welcome)>,
}

// === impl FaultRule ===

impl FaultRule {
    /// A fault of requests of any kind and form.
    pub fn new(times: usize, action: FaultAction) -> Self {
        Self { kind: None, form: RequestForm::Any, times, action }
    }

    /// Restricts the rule to this kind.
    pub fn kind(self, kind: Kind) -> Self {
        Self { kind: Some(kind), ..self }
    }

    /// Restricts the rule to this form.
    pub fn form(self, form: RequestForm) -> Self {
        Self { form, ..self }
    }
}

// === impl FaultAction ===

impl FaultAction {
    /// A failure with its Status.
    pub fn status(code: u16) -> Self {
        Self::Status { code, retry_after: None, body: None }
    }
}

// === impl Script ===

impl Script {
    pub(super) fn add(&mut self, rule: FaultRule) {
        let seed = if let FaultAction::CutRandom { seed, .. } = rule.action { seed } else { 0 };
        self.rules.push((rule, seed));
    }

    pub(super) fn welcome(&mut self, times: usize, welcome: Welcome) {
        self.welcomes.push((times, welcome));
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn next_welcome(&mut self) -> Option<Welcome> {
        self.welcomes.retain(|(times, _)| *times > 0);
        let (times, welcome) = self.welcomes.first_mut()?;
        *times -= 1;
        Some(*welcome)
    }

    /// Takes the fault for a request. Rules without a kind apply to requests for API objects only.
    pub(super) fn next(&mut self, kind: Option<Kind>, form: RequestForm) -> Option<FaultAction> {
        self.rules.retain(|(rule, _)| rule.times > 0);
        let fits = |rule: &FaultRule| match rule.kind {
            Some(of) => Some(of) == kind && (rule.form == RequestForm::Any || rule.form == form),
            None => {
                rule.form == form
                    || (rule.form == RequestForm::Any && !matches!(form, RequestForm::Event | RequestForm::Other))
            }
        };
        let (rule, random) = self.rules.iter_mut().find(|(rule, _)| fits(rule))?;
        if rule.times != usize::MAX {
            rule.times -= 1;
        }
        Some(match rule.action {
            FaultAction::CutRandom { below, .. } => FaultAction::CutAfter { bytes: next_random(random, below) },
            ref action => action.clone(),
        })
    }
}

/// splitmix64
fn next_random(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let value = value ^ (value >> 31);
    usize::try_from(value % below.max(1) as u64).unwrap_or(0)
}
