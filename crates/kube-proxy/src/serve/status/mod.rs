//! The metrics server: `/metrics` and `/proxyMode`, the state of the process (`ping`, `zpages`), and what profiling adds
//! (`debug`, `profile`).

mod accept;
mod debug;
mod ping;
mod pprof;
mod profile;
mod zpages;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ferry_api::config::{COMPONENT_FLAGZ, COMPONENT_STATUSZ, KubeProxyConfiguration};
use hyper::Method;

use super::http::{Deferred, HttpRequest, HttpResponse, Routes};
use crate::health::Freshness;
use crate::metrics::{Metrics, process};
use crate::report::SharedInbox;

use ping::Ping;

/// Answers requests for the status page; `None` for other paths.
pub type Pages = Box<dyn Fn(&HttpRequest) -> Option<Deferred>>;

/// State of the metrics server.
pub struct MetricsServer {
    /// staleness of objects; `None` with manifests
    pub freshness: Option<Arc<Freshness>>,
    /// metrics of the page
    pub metrics: Arc<Metrics>,
    /// reports that aren't in the metrics yet
    pub inbox: SharedInbox,
    /// what is fixed at the start
    pub setup: Setup,
    /// the health of this server
    pub ping: Ping,
    /// the status page
    pub page: Pages,
}

/// Facts about the process that the pages show.
#[derive(Clone, Debug)]
pub struct Setup {
    mode: String,
    configz: String,
    flags: Vec<(String, String)>,
    statusz: bool,
    flagz: bool,
    profiling: bool,
}

/// Content type of metrics.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

// === impl Setup ===

impl Setup {
    /// Of a process with this configuration, whose mode is the effective one, and these flags, sorted by name.
    pub fn new(config: &KubeProxyConfiguration, flags: Vec<(String, String)>) -> Self {
        Self {
            mode: config.mode.clone(),
            configz: config.to_configz(),
            flags,
            statusz: config.has_feature(COMPONENT_STATUSZ),
            flagz: config.has_feature(COMPONENT_FLAGZ),
            profiling: config.enable_profiling,
        }
    }

    /// The paths that `/statusz` lists.
    fn paths(&self) -> Vec<&'static str> {
        let flagz = self.flagz.then_some("/flagz");
        ["/configz"].into_iter().chain(flagz).chain(["/healthz", "/metrics", "/proxyMode"]).collect()
    }
}

// === impl MetricsServer ===

impl Routes for MetricsServer {
    fn answer(&self, received: &HttpRequest) -> HttpResponse {
        match received.path.as_str() {
            "/metrics" => HttpResponse { gzip: received.accepts_gzip, ..metrics(self.metrics_page()) },
            "/metrics/slis" if received.method == Method::DELETE => self.ping.reset(),
            "/metrics/slis" => HttpResponse { gzip: received.accepts_gzip, ..metrics(self.ping.slis()) },
            "/proxyMode" => HttpResponse::text(self.setup.mode.as_str()),
            "/configz" => HttpResponse::of("application/json", self.setup.configz.as_str()),
            "/healthz" => self.ping.healthz(received),
            "/healthz/ping" => HttpResponse::text("ok"),
            "/statusz" if self.setup.statusz => zpages::statusz(&received.accept, &self.setup.paths()),
            "/flagz" if self.setup.flagz => zpages::flagz(&received.accept, &self.setup.flags),
            path if self.setup.profiling && debug::serves(path) => debug::answer(received),
            _ => HttpResponse::not_found(),
        }
    }

    fn deferred(&self, received: &HttpRequest) -> Option<Deferred> {
        (self.page)(received).or_else(|| if self.setup.profiling { debug::deferred(received) } else { None })
    }

    fn reads_body(&self, path: &str) -> bool {
        self.setup.profiling && path == debug::VERBOSITY
    }
}

impl MetricsServer {
    fn metrics_page(&self) -> String {
        self.inbox.borrow_mut().catch_up();
        if let Some(freshness) = &self.freshness {
            self.metrics.source.note(freshness, Instant::now(), SystemTime::now());
            self.metrics.snapshot.note(freshness);
        }
        self.metrics.encode()
    }
}

fn metrics(body: String) -> HttpResponse {
    let started = process::start_time() as u64;
    let headers = vec![("content-type", METRICS_TYPE.to_owned()), ("process-start-time-unix", started.to_string())];
    HttpResponse { headers, body, ..HttpResponse::default() }
}
