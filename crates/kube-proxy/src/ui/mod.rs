//! Status page at `/ui` of the metrics address: health, freshness, recent changes, Services, and explanations.
//!
//! `access` restricts the clients. `overview` shows the state of the process, `services` lists Services page by page, and `question` is
//! `kube-proxy explain`. `layout` is the frame of all pages, `plot` draws. For programs alone are `status`, the overview, and `trace`, which is
//! `kube-proxy trace`; `json` has their form. Pages are complete without scripts, load nothing from elsewhere, and
//! change nothing. Pages that need the core's lock are made on another thread, since the main one answers probes.

mod access;
mod json;
mod layout;
mod overview;
mod plot;
mod question;
mod services;
mod status;
mod trace;

use hyper::{Method, StatusCode};

pub use self::access::Access;
use self::json::JsonForm;
pub use self::json::VERSION;
use self::overview::Overview;
pub use self::services::Counts;
pub use self::status::{FamilyStatus, KindStatus, NodeStatus, ObjectProblem, PassStatus, TestStatus};
pub use self::trace::TraceAnswer;
use crate::control::Quarantined;
use crate::core::Desk;
use crate::report::SharedInbox;
use crate::serve::healthz::Health;
use crate::serve::http::{BlockingAnswers, Deferred, DeferredAnswer, HttpRequest, HttpResponse};

/// The state that the pages show.
#[derive(Debug)]
pub struct StatusPage {
    /// the core
    pub desk: Desk,
    /// reports of the engines
    pub inbox: SharedInbox,
    /// the state of health probes
    pub health: Health,
    /// facts that don't change while the process runs
    pub setup: PageSetup,
    /// makes the pages that need the core's lock
    pub blocking: BlockingAnswers,
    /// makes traces, which take seconds, with pauses
    pub traces: BlockingAnswers,
}

/// Facts about the process that the pages show.
#[derive(Clone, Debug)]
pub struct PageSetup {
    /// the node's name
    pub node: String,
    /// the effective mode
    pub mode: String,
    /// the clients that are served
    pub access: Access,
    /// the path of the control socket; empty for none
    pub control_socket: String,
}

/// The path of the pages.
const ROOT: &str = "/ui";

// === impl StatusPage ===

impl StatusPage {
    /// The answer to a request for a page; `None` for other paths.
    pub fn answer(&self, received: &HttpRequest) -> Option<Deferred> {
        let path = received.path.strip_prefix(ROOT)?;
        if !path.is_empty() && !path.starts_with('/') {
            return None;
        }
        Some(match self.setup.access.refusal(received) {
            Some(refusal) => at_once(refusal),
            None if !matches!(received.method, Method::GET | Method::HEAD) => at_once(read_only()),
            None => self.page(path, received),
        })
    }

    fn page(&self, path: &str, received: &HttpRequest) -> Deferred {
        let parameter = |name| received.parameters(name).next().map(|value| value.into_owned()).unwrap_or_default();
        let (desk, setup) = (self.desk.clone(), self.setup.clone());
        let (in_turn, form, format) = (&self.blocking, JsonForm::of(received), parameter("format"));
        match path {
            "" | "/" if format == "json" => {
                let overview = self.overview();
                in_turn.answer(move || form.object(&NodeStatus::of(&setup, overview, &desk)))
            }
            "" | "/" => {
                let overview = self.overview();
                in_turn.answer(move || layout::page(&setup, "Overview", &overview.markup(&desk)))
            }
            "/style.css" => at_once(layout::style()),
            "/services" => {
                let (after, find) = (parameter("after"), parameter("find"));
                let quarantined = self.quarantined();
                in_turn.answer(move || {
                    let list = services::ServicesPage::of(&desk, &after, &find);
                    layout::page(&setup, "Services", &list.markup(&quarantined))
                })
            }
            "/explain" => {
                let (asked, form) = (parameter("q"), (format == "json").then_some(form));
                let quarantined = self.quarantined();
                in_turn.answer(move || question::answer(&desk, &setup, (&asked, form), &quarantined))
            }
            "/trace" => {
                let asked = parameter("q");
                self.traces.answer(move || trace::answer(&setup, &asked, format == "text", form))
            }
            _ => at_once(HttpResponse::not_found()),
        }
    }

    fn overview(&self) -> Overview {
        Overview::of(&mut self.inbox.borrow_mut(), &self.health)
    }

    fn quarantined(&self) -> Vec<Quarantined> {
        let mut inbox = self.inbox.borrow_mut();
        inbox.catch_up();
        inbox.quarantined().map(Quarantined::of).collect()
    }
}

/// An answer that needs no other thread.
fn at_once(answer: HttpResponse) -> Deferred {
    Box::pin(async { DeferredAnswer::Answer(answer) })
}

fn read_only() -> HttpResponse {
    HttpResponse::text("These pages are read by GET: nothing can be changed here.\n")
        .with_status(StatusCode::METHOD_NOT_ALLOWED)
}
