//! The metrics server: `/metrics`, `/proxyMode`, and a `/healthz` that only shows that the process runs.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use hyper::StatusCode;

use super::http::{Answer, Routes};
use crate::health::Freshness;
use crate::metrics::{Metrics, process};
use crate::report::SharedInbox;

/// State of the metrics server.
#[derive(Debug)]
pub struct Status {
    /// the mode, for `/proxyMode`
    pub mode: &'static str,
    /// staleness of objects; `None` with manifests
    pub freshness: Option<Arc<Freshness>>,
    /// metrics of the page
    pub metrics: Arc<Metrics>,
    /// reports that aren't in the metrics yet
    pub inbox: SharedInbox,
}

// === impl Status ===

impl Routes for Status {
    fn answer(&self, path: &str) -> Answer {
        match path {
            "/metrics" => Answer {
                status: StatusCode::OK,
                headers: vec![
                    ("content-type", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores".to_owned()),
                    ("process-start-time-unix", process::start_time().to_string()),
                ],
                body: self.page(),
            },
            "/proxyMode" => Answer::text(self.mode),
            "/healthz" | "/healthz/ping" => Answer::text("ok"),
            _ => Answer::not_found(),
        }
    }
}

impl Status {
    fn page(&self) -> String {
        self.inbox.borrow_mut().catch_up();
        if let Some(freshness) = &self.freshness {
            self.metrics.source.note(freshness, Instant::now(), SystemTime::now());
        }
        self.metrics.encode()
    }
}
