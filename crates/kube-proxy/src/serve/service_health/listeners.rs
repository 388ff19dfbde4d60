//! Opens and closes the health check listeners, and keeps their failures.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use ferry_api::object::ObjectName;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::platform;
use crate::serve::http::{self, Routes, Share};

/// The open listeners and the failed ones.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    open: BTreeMap<SocketAddr, HealthListener>,
    failing: BTreeMap<SocketAddr, Failing>,
}

/// A failed bind of a Service's health check port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BindFailure {
    pub(super) service: ObjectName,
    pub(super) address: SocketAddr,
    pub(super) reason: String,
}

#[derive(Debug)]
struct HealthListener {
    service: ObjectName,
    task: JoinHandle<Infallible>,
}

#[derive(Debug)]
struct Failing {
    failure: BindFailure,
    reported: bool,
}

/// Share of one listener: load balancers use a handful of addresses. Services must not exhaust the process's files.
const SHARE: Share = Share { connections: 32, spared_reserves: 1 };
/// Reserves that listeners leave, so that the open ones can still accept connections.
const SPARED_BY_LISTENERS: u64 = SHARE.spared_reserves + 1;

// === impl Listeners ===

impl Listeners {
    /// Closes listeners, with their connections, that aren't wanted or are of another Service; true if there were any.
    pub(super) async fn close_all_but(&mut self, wanted: &BTreeMap<SocketAddr, ObjectName>) -> bool {
        let is_wanted = |address: &SocketAddr, service: &ObjectName| wanted.get(address) == Some(service);
        self.failing.retain(|address, failing| is_wanted(address, &failing.failure.service));
        let closing = self.open.extract_if(.., |address, listener| !is_wanted(address, &listener.service));
        let closing: Vec<HealthListener> = closing.map(|(_, listener)| listener).collect();
        closing.iter().for_each(|listener| listener.task.abort());
        let closed = !closing.is_empty();
        for HealthListener { task, .. } in closing {
            // The error is the requested cancellation.
            let _ = task.await;
        }
        closed
    }

    /// Opens the missing listeners; `again` includes those that failed before. Returns new or changed failures.
    pub(super) fn open(
        &mut self,
        wanted: &BTreeMap<SocketAddr, ObjectName>,
        again: bool,
        routes: impl Fn(SocketAddr, &ObjectName) -> Rc<dyn Routes>,
    ) -> Vec<BindFailure> {
        let mut news = Vec::new();
        for (&address, service) in wanted {
            if self.open.contains_key(&address) || (self.failing.contains_key(&address) && !again) {
                continue;
            }
            match listen(address) {
                Ok(listener) => {
                    if self.failing.remove(&address).is_some_and(|failing| failing.reported) {
                        tracing::info!(%service, %address, "Service health checks are served");
                    }
                    let task = tokio::task::spawn_local(http::answer(listener, SHARE, routes(address, service)));
                    self.open.insert(address, HealthListener { service: service.clone(), task });
                }
                Err(error) => news.extend(self.fail(address, service, &error)),
            }
        }
        news
    }

    /// True if some listener failed.
    pub(super) fn is_incomplete(&self) -> bool {
        !self.failing.is_empty()
    }

    fn fail(&mut self, address: SocketAddr, service: &ObjectName, error: &io::Error) -> Option<BindFailure> {
        let failure =
            BindFailure { service: service.clone(), address, reason: format!("listen on {address}: {error}") };
        let known = self.failing.get(&address);
        let was_reported = known.is_some_and(|known| known.reported && known.failure == failure);
        // A new address is unusable until duplicate address detection ends: report it only at the next failure.
        let passing = known.is_none() && error.kind() == io::ErrorKind::AddrNotAvailable;
        self.failing.insert(address, Failing { failure: failure.clone(), reported: !passing });
        (!was_reported && !passing).then_some(failure)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = http::listen_on(address, true)?;
    platform::spare_files(&listener, SPARED_BY_LISTENERS)?;
    Ok(listener)
}
