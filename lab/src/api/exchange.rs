//! One request and its response: content negotiation, scripted faults, failures.

use std::io;
use std::time::{Duration, Instant};

use super::body::{ChunkedBody, is_zipped};
use super::connection::{Connection, Wake};
use super::entry::Draft;
use super::fault::{FaultAction, RequestForm};
use super::request::{RecordedRequest, RequestHead, Route, group, plural};
use super::{ServerState, locked};
use crate::wire::ApiStatus;

pub(super) const JSON: &str = "application/json";

/// The encoding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

/// A request and the connection that its response is written to. An error ends the connection; otherwise the next request
/// follows.
pub(super) struct Exchange<'a> {
    pub(super) server: &'a ServerState,
    pub(super) connection: &'a mut Connection,
    pub(super) seen: &'a RecordedRequest,
    pub(super) encoding: Encoding,
    pub(super) action: Option<FaultAction>,
}

/// Handles one request.
pub(super) fn exchange(
    shared: &ServerState,
    connection: &mut Connection,
    head: RequestHead,
    body: &[u8],
    number: u64,
) -> io::Result<()> {
    let route = head.route(&shared.options.prefix);
    let seen = head.seen(&route, number);
    let action = locked(&shared.script).next(seen.kind, seen.form);
    locked(&shared.requests).push(seen.clone());
    let encoding = Encoding::accepted(seen.header("accept"), shared.options.protobuf);
    let mut exchange =
        Exchange { server: shared, connection, seen: &seen, encoding: encoding.unwrap_or(Encoding::Json), action };
    if encoding.is_none() { exchange.fail(&failure(406, &seen, "")) } else { exchange.answer(route, body) }
}

/// The Status of a failure, with upstream's wording.
pub(super) fn failure(code: u16, seen: &RecordedRequest, user: &str) -> ApiStatus {
    let verb = match (seen.form, seen.method.as_str()) {
        (RequestForm::List, _) => "list",
        (RequestForm::Event, "PATCH") => "patch",
        (RequestForm::Event, _) => "create",
        _ => "watch",
    };
    let nothing = if seen.form == RequestForm::Event { ("events", "events.k8s.io") } else { ("", "") };
    let (plural, group) = seen.kind.map_or(nothing, |kind| (plural(kind), group(kind)));
    let forbidden = format!(
        "{plural} is forbidden: User \"{user}\" cannot {verb} resource \"{plural}\" in API group \"{group}\" at the cluster scope"
    );
    let (reason, message) = match code {
        400 => ("BadRequest", "the request is bad"),
        401 => ("Unauthorized", "Unauthorized"),
        403 => ("Forbidden", forbidden.as_str()),
        404 => ("NotFound", "the server could not find the requested resource"),
        406 => (
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/vnd.kubernetes.protobuf",
        ),
        410 => ("Expired", "too old resource version: 1 (2)"),
        422 => ("Invalid", "the request is invalid"),
        429 => ("TooManyRequests", "Too many requests, please try again later."),
        500 => ("InternalError", "an error on the server has prevented the request from succeeding"),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => ("Timeout", "the request did not complete within the allotted time"),
        _ => ("", "an unknown failure"),
    };
    ApiStatus { code, reason: reason.to_owned(), message: message.to_owned(), retry_after_seconds: None }
}

// === impl Encoding ===

impl Encoding {
    /// The supported encoding that an Accept header prefers.
    pub(super) fn accepted(accept: Option<&str>, protobuf: bool) -> Option<Self> {
        accept.unwrap_or("*/*").split(',').find_map(|range| match range.split(';').next().unwrap_or_default().trim() {
            "application/vnd.kubernetes.protobuf" => protobuf.then_some(Self::Protobuf),
            "application/json" | "application/*" | "*/*" => Some(Self::Json),
            _ => None,
        })
    }

    fn content_type(self, stream: bool) -> &'static str {
        match (self, stream) {
            (Self::Json, _) => JSON,
            (Self::Protobuf, false) => "application/vnd.kubernetes.protobuf",
            (Self::Protobuf, true) => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }
}

// === impl Exchange ===

impl Exchange<'_> {
    pub(super) fn answer(&mut self, route: Route, body: &[u8]) -> io::Result<()> {
        if !self.server.admits(self.connection, self.seen) {
            return self.fail(&failure(401, self.seen, ""));
        }
        match self.action.clone() {
            Some(FaultAction::NoAnswer) => return self.connection.silence(),
            Some(FaultAction::RefuseStream) => return self.connection.refuse_stream(),
            Some(FaultAction::Delay(time)) => self.pause(time)?,
            Some(FaultAction::Status { code, retry_after, body: None }) => {
                let status = ApiStatus { retry_after_seconds: retry_after, ..failure(code, self.seen, "lab") };
                return self.refuse(&status, retry_after);
            }
            Some(FaultAction::Status { code, retry_after, body: Some(text) }) => {
                return self.short(code, "text/plain; charset=utf-8", text.as_bytes(), retry_after);
            }
            Some(FaultAction::Throttle { header, details }) => {
                let status = ApiStatus { retry_after_seconds: details, ..failure(429, self.seen, "lab") };
                return self.refuse(&status, header);
            }
            Some(FaultAction::ErrorEvent { code, .. }) if self.seen.form == RequestForm::List => {
                return self.fail(&failure(code, self.seen, "lab"));
            }
            _ => {}
        }
        match (self.seen.method.as_str(), route) {
            ("GET", Route::List(kind, _)) if self.seen.form == RequestForm::List => self.list(kind),
            ("GET", Route::List(kind, _)) => self.watch(kind),
            ("GET", Route::Object(kind, key)) => {
                let found = self.server.store().find(kind, &key);
                match found {
                    Some(entry) => {
                        let bytes = self.whole(&entry);
                        self.short(200, self.encoding.content_type(false), &bytes, None)
                    }
                    None => self.fail(&failure(404, self.seen, "")),
                }
            }
            ("PUT", Route::Object(..)) => {
                for draft in Draft::all(&String::from_utf8_lossy(body)) {
                    self.server.put(draft, None);
                }
                self.short(200, JSON, body, None)
            }
            ("DELETE", Route::Object(kind, key)) => match self.server.delete(kind, &key) {
                Some(_) => self.short(200, JSON, b"{}", None),
                None => self.fail(&failure(404, self.seen, "")),
            },
            ("POST" | "PATCH", Route::Events { namespace, name }) => self.event(&namespace, name.as_deref(), body),
            ("GET", Route::Version) => {
                let version = br#"{"major":"1","minor":"36","gitVersion":"v1.36.2","platform":"linux/amd64"}"#;
                self.short(200, JSON, version, None)
            }
            _ => self.fail(&failure(404, self.seen, "")),
        }
    }

    /// Responds with a failure, in the requested encoding.
    pub(super) fn fail(&mut self, status: &ApiStatus) -> io::Result<()> {
        self.refuse(status, None)
    }

    fn refuse(&mut self, status: &ApiStatus, retry_after: Option<u32>) -> io::Result<()> {
        let bytes = match self.encoding {
            Encoding::Json => status.to_json(),
            Encoding::Protobuf => status.to_protobuf(),
        };
        self.short(status.code, self.encoding.content_type(false), &bytes, retry_after)
    }

    /// Responds with a body of known length.
    pub(super) fn short(
        &mut self,
        code: u16,
        content_type: &str,
        bytes: &[u8],
        retry_after: Option<u32>,
    ) -> io::Result<()> {
        let retry_after = retry_after.map(|seconds| seconds.to_string());
        let mut fields = vec![("Cache-Control", "no-cache, private"), ("Content-Type", content_type)];
        fields.extend(retry_after.as_deref().map(|seconds| ("Retry-After", seconds)));
        self.connection.head(code, &fields, Some(bytes.len()), usize::MAX)?;
        self.connection.write(bytes)
    }

    /// Writes the head of a response of unknown length; `None` if the scripted fault has replaced the whole response.
    pub(super) fn begin(&mut self, stream: bool) -> io::Result<Option<ChunkedBody<'_>>> {
        let content_type = match &self.action {
            Some(FaultAction::ContentType(other)) => other,
            _ => self.encoding.content_type(stream),
        };
        let mut fields = vec![("Cache-Control", "no-cache, private"), ("Content-Type", content_type)];
        fields.extend(is_zipped(self.action.as_ref()).then_some(("Content-Encoding", "gzip")));
        if let Some(FaultAction::CutHead { bytes }) = self.action {
            // HTTP/2 can't express a truncated head.
            if self.connection.has_chunks() {
                self.connection.head(200, &fields, None, bytes)?;
            }
            self.connection.cut(false)?;
        }
        self.connection.head(200, &fields, None, usize::MAX)?;
        let mut body = ChunkedBody::new(self.connection, self.action.as_ref())?;
        match &self.action {
            Some(FaultAction::Raw(bytes)) => body.content(bytes)?,
            Some(FaultAction::GzipBomb { bytes }) => {
                let zeros = vec![0; 1 << 20];
                for at in (0..*bytes).step_by(zeros.len()) {
                    body.content(zeros.get(..*bytes - at).unwrap_or(&zeros))?;
                }
            }
            _ => return Ok(Some(body)),
        }
        body.end()?;
        Ok(None)
    }

    fn pause(&mut self, time: Duration) -> io::Result<()> {
        match self.connection.wait(None, Some(Instant::now() + time))? {
            Wake::Closed => Err(io::ErrorKind::BrokenPipe.into()),
            Wake::Time | Wake::Woken => Ok(()),
        }
    }
}
