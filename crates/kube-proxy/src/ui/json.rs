//! The status page's answers as JSON, for programs.

use hyper::StatusCode;
use serde::Serialize;
use serde_json::json;

use crate::serve::http::{HttpRequest, HttpResponse};

/// The version of the JSON schemas of docs/cli.md.
pub const VERSION: u32 = 1;

/// The form of answers for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JsonForm {
    /// an error has status 200, too: `kubectl get --raw` doesn't show the bodies of others
    errors_are_ok: bool,
}

// === impl JsonForm ===

impl JsonForm {
    /// The form that a request asks for: `errors=200`, or errors with statuses of their own.
    pub(super) fn of(received: &HttpRequest) -> Self {
        Self { errors_are_ok: received.parameters("errors").next().is_some_and(|value| value == "200") }
    }

    /// An error, with its status.
    pub(super) fn failure(self, status: StatusCode, why: &str) -> HttpResponse {
        let status = if self.errors_are_ok { StatusCode::OK } else { status };
        text(format!("{}\n", json!({"version": VERSION, "error": why}))).with_status(status)
    }

    /// An object of one of the schemas.
    pub(super) fn object(self, object: &impl Serialize) -> HttpResponse {
        match serde_json::to_string_pretty(object) {
            Ok(json) => text(json + "\n"),
            Err(error) => self.failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

/// A JSON text.
pub(super) fn text(json: String) -> HttpResponse {
    let mut answer = HttpResponse::of("application/json", json);
    answer.headers.push(("cache-control", "no-store".to_owned()));
    answer
}
