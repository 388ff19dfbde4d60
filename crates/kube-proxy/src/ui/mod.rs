//! The status page at `/ui` of the metrics address: what the proxy serves, how it is, and why, for a person with a browser.
//!
//! `access` decides who may look. `overview` shows the state of the process, `services` lists Services page by page, and `question` is
//! `kube-proxy explain`. `layout` is the frame of all pages, `plot` draws. Pages are complete without scripts, load nothing from elsewhere, and
//! change nothing. What takes the core's lock runs on a thread of its own, since the main one answers probes.

mod access;
mod layout;
mod overview;
mod plot;
mod question;
mod services;

use std::sync::Arc;

use hyper::{Method, StatusCode};
use tokio::task::spawn_blocking;

pub use self::access::Access;
use self::overview::Overview;
use crate::control::Quarantined;
use crate::core::Desk;
use crate::health::{Freshness, Pulses};
use crate::report::SharedInbox;
use crate::serve::http::{Answer, Late, Later, Received, Routes};

/// The state that the pages show.
#[derive(Debug)]
pub struct StatusPage {
    /// the core
    pub desk: Desk,
    /// reports of the engines
    pub inbox: SharedInbox,
    /// health of the families
    pub pulses: Pulses,
    /// staleness of objects; `None` with manifests
    pub freshness: Option<Arc<Freshness>>,
    /// what is fixed at the start
    pub setup: PageSetup,
}

/// Facts about the process that the pages show.
#[derive(Clone, Debug)]
pub struct PageSetup {
    /// the node's name
    pub node: String,
    /// the effective mode
    pub mode: String,
    /// who may look
    pub access: Access,
}

/// The path of the pages.
const ROOT: &str = "/ui";

// === impl StatusPage ===

impl Routes for StatusPage {
    fn answer(&self, _received: &Received) -> Answer {
        Answer::not_found()
    }

    fn later(&self, received: &Received) -> Option<Later> {
        let path = received.path.strip_prefix(ROOT)?;
        if !path.is_empty() && !path.starts_with('/') {
            return None;
        }
        Some(match self.setup.access.refusal(received) {
            Some(refusal) => Box::pin(async { Late::Answer(refusal) }),
            None if !matches!(received.method, Method::GET | Method::HEAD) => {
                Box::pin(async { Late::Answer(read_only()) })
            }
            None => self.page(path, received),
        })
    }
}

impl StatusPage {
    fn page(&self, path: &str, received: &Received) -> Later {
        let parameter = |name| received.parameters(name).next().map(|value| value.into_owned()).unwrap_or_default();
        let (desk, setup) = (self.desk.clone(), self.setup.clone());
        match path {
            "" | "/" => {
                let overview = self.overview();
                later(move || layout::page(&setup, "Overview", &overview.markup(&desk)))
            }
            "/style.css" => Box::pin(async { Late::Answer(layout::style()) }),
            "/services" => {
                let (after, find) = (parameter("after"), parameter("find"));
                let quarantined = self.quarantined();
                later(move || {
                    let list = services::List::of(&desk, &after, &find);
                    layout::page(&setup, "Services", &list.markup(&quarantined))
                })
            }
            "/explain" => {
                let (asked, json) = (parameter("q"), parameter("format") == "json");
                let quarantined = self.quarantined();
                later(move || question::answer(&desk, &setup, (&asked, json), &quarantined))
            }
            _ => Box::pin(async { Late::Answer(Answer::not_found()) }),
        }
    }

    fn overview(&self) -> Overview {
        Overview::of(&mut self.inbox.borrow_mut(), &self.pulses, self.freshness.as_deref())
    }

    fn quarantined(&self) -> Vec<Quarantined> {
        let mut inbox = self.inbox.borrow_mut();
        inbox.catch_up();
        inbox.quarantined().map(Quarantined::of).collect()
    }
}

/// A page that is made on another thread.
fn later(make: impl FnOnce() -> Answer + Send + 'static) -> Later {
    Box::pin(async {
        Late::Answer(
            spawn_blocking(make).await.unwrap_or_else(|error| {
                Answer::text(format!("{error}\n")).with_status(StatusCode::INTERNAL_SERVER_ERROR)
            }),
        )
    })
}

fn read_only() -> Answer {
    Answer::text("These pages are read by GET: nothing can be changed here.\n")
        .with_status(StatusCode::METHOD_NOT_ALLOWED)
}
