//! A response.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpResponse {
    /// its status
    pub status: StatusCode,
    /// its headers, names in lower case
    pub headers: Vec<(&'static str, String)>,
    /// its body
    pub body: String,
    /// true if the body is sent compressed
    pub gzip: bool,
}

/// A response with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// the name that a browser saves it by
    pub name: &'static str,
    /// its content
    pub content: Vec<u8>,
}

/// An answer that was made after the request, by a [`Deferred`](super::Deferred).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeferredAnswer {
    /// a file
    File(File),
    /// any other answer
    Answer(HttpResponse),
}

// === impl HttpResponse ===

impl HttpResponse {
    /// Status 200 with a text.
    pub fn text(body: impl Into<String>) -> Self {
        Self::of("text/plain; charset=utf-8", body)
    }

    /// Status 200 with a body of this type.
    pub fn of(content_type: &str, body: impl Into<String>) -> Self {
        let headers = vec![("content-type", content_type.to_owned()), ("x-content-type-options", "nosniff".to_owned())];
        Self { headers, body: body.into(), ..Self::default() }
    }

    /// The same with another status.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Status 404 with the text of Go's library.
    pub fn not_found() -> Self {
        Self::text("404 page not found\n").with_status(StatusCode::NOT_FOUND)
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let compressed = if self.gzip { gzip(self.body.as_bytes()).ok() } else { None };
        let is_compressed = compressed.is_some();
        let mut response = Response::new(Full::new(Bytes::from(compressed.unwrap_or_else(|| self.body.into()))));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        if is_compressed {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

// === impl DeferredAnswer ===

impl DeferredAnswer {
    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        match self {
            Self::File(file) => file.into_response(),
            Self::Answer(answer) => answer.into_response(),
        }
    }
}

impl From<HttpResponse> for DeferredAnswer {
    fn from(answer: HttpResponse) -> Self {
        Self::Answer(answer)
    }
}

impl From<Result<File, HttpResponse>> for DeferredAnswer {
    fn from(made: Result<File, HttpResponse>) -> Self {
        made.map_or_else(Self::Answer, Self::File)
    }
}

// === impl File ===

impl File {
    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.content)));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Ok(disposition) = HeaderValue::try_from(format!("attachment; filename=\"{}\"", self.name)) {
            headers.insert(CONTENT_DISPOSITION, disposition);
        }
        response
    }
}

/// Fast compression: a scrape is read on the local network, and the main thread answers probes, too.
fn gzip(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body)?;
    encoder.finish()
}
