//! What goes wrong, and when: rules for requests and for connections.

use std::time::Duration;

use ferry_api::object::Kind;

/// A fault of the next requests that it fits. Rules are tried in the order they were given; the first one that fits is
/// used up by one.
#[derive(Clone, Debug)]
pub struct Rule {
    /// of this kind only
    pub kind: Option<Kind>,
    /// of this form only
    pub form: Form,
    /// how many requests get it; `usize::MAX` for all
    pub times: usize,
    /// what they get
    pub action: Action,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
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
    /// one object, the version, or a path that there isn't
    Other,
}

/// What happens to an answer. Bytes of a body are counted as they are on the wire below TLS: with the lines that frame the
/// chunks, after compression. With HTTP/2 nothing is framed, and what ends or resets a connection resets the stream.
#[derive(Clone, Debug)]
pub enum Action {
    /// A failure, with a Status in the encoding asked for, or this text instead. `retry_after` is both the header and
    /// details.retryAfterSeconds.
    Status {
        /// HTTP status
        code: u16,
        /// seconds
        retry_after: Option<u32>,
        /// what to say instead of a Status, as text/plain
        body: Option<String>,
    },
    /// 429 that says in how many seconds to come again only here or there
    Throttle {
        /// in the header Retry-After
        header: Option<u32>,
        /// in the Status' details.retryAfterSeconds
        details: Option<u32>,
    },
    /// Watches: after this many events of the answer an ERROR event, and the end. Lists: the same as a status.
    ErrorEvent {
        /// code of the Status in it
        code: u16,
        /// events before it
        after: usize,
    },
    /// The connection ends (FIN, without TLS' farewell) after this many bytes of the body
    CutAfter {
        /// bytes
        bytes: usize,
    },
    /// The same with RST
    ResetAfter {
        /// bytes
        bytes: usize,
    },
    /// [`Action::CutAfter`] a random number of bytes below `below`, another one each time
    CutRandom {
        /// the same seed gives the same numbers
        seed: u64,
        /// exclusive
        below: usize,
    },
    /// The connection ends after this many bytes of the head; what the request wanted to be done is done
    CutHead {
        /// bytes
        bytes: usize,
    },
    /// The body ends cleanly after this many bytes of content, wherever in an object that is
    EndAfter {
        /// bytes before compression, without the framing of chunks
        bytes: usize,
    },
    /// A head, then nothing; the connection stays open
    Silence,
    /// Not even a head; the connection stays open
    NoAnswer,
    /// HTTP/2: REFUSED_STREAM. With HTTP/1.1 the connection ends
    RefuseStream,
    /// This many bytes of the body, then nothing; the connection stays open
    StallAfter {
        /// bytes
        bytes: usize,
    },
    /// The body in pieces, with a pause after each
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
    /// The same with a member of its own for each event, or item
    GzipMembers,
    /// Gzip that unpacks to this many zeros
    GzipBomb {
        /// bytes
        bytes: usize,
    },
    /// Another content type, with the body as if nothing were wrong
    ContentType(String),
    /// Items (or ADDED events) without end: of one object under ever new names
    Endless,
    /// Pages without end, each with this many items and a continue token. Needs `times` as high as pages are wanted.
    EndlessPages {
        /// of each page; may be 0
        items: usize,
    },
    /// One object (item, or event) that never ends
    EndlessObject,
    /// These bytes as the body, as if they were of the content type asked for
    Raw(Vec<u8>),
    /// The first object of the answer is damaged inside its frame: its metadata can be read, the rest can't
    BrokenObject,
    /// The same, but its metadata can't be read either
    BrokenName,
    /// After this many objects of the answer, bytes that are no frame
    BrokenFrame {
        /// objects before it
        after: usize,
    },
}

/// What becomes of a connection that has just been accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Welcome {
    /// closed at once
    Close,
    /// reset at once
    Reset,
    /// bytes that are neither TLS nor HTTP, then closed
    Garbage,
    /// open, and nothing is read or said
    Silence,
}

/// The rules that are in force.
#[derive(Default)]
pub(super) struct Script {
    rules: Vec<(Rule, u64)>,
    welcomes: Vec<(usize, Welcome)>,
}

// === impl Rule ===

impl Rule {
    /// An action for requests of any kind and form.
    pub fn new(times: usize, action: Action) -> Self {
        Self { kind: None, form: Form::Any, times, action }
    }

    /// For this kind only.
    pub fn kind(self, kind: Kind) -> Self {
        Self { kind: Some(kind), ..self }
    }

    /// For this form only.
    pub fn form(self, form: Form) -> Self {
        Self { form, ..self }
    }
}

// === impl Action ===

impl Action {
    /// A failure with its Status.
    pub fn status(code: u16) -> Self {
        Self::Status { code, retry_after: None, body: None }
    }
}

// === impl Script ===

impl Script {
    pub(super) fn add(&mut self, rule: Rule) {
        let seed = if let Action::CutRandom { seed, .. } = rule.action { seed } else { 0 };
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

    /// The action for a request; those of the API's objects only are subject to rules without a kind.
    pub(super) fn next(&mut self, kind: Option<Kind>, form: Form) -> Option<Action> {
        self.rules.retain(|(rule, _)| rule.times > 0);
        let fits = |rule: &Rule| match rule.kind {
            Some(of) => Some(of) == kind && (rule.form == Form::Any || rule.form == form),
            None => rule.form == form || (rule.form == Form::Any && !matches!(form, Form::Event | Form::Other)),
        };
        let (rule, random) = self.rules.iter_mut().find(|(rule, _)| fits(rule))?;
        if rule.times != usize::MAX {
            rule.times -= 1;
        }
        Some(match rule.action {
            Action::CutRandom { below, .. } => Action::CutAfter { bytes: next_random(random, below) },
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
