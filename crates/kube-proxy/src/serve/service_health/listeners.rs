//! The open listeners, and the addresses that could not be listened at.

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

/// Makes and ends listeners, so that they become those that are wanted.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    open: BTreeMap<SocketAddr, Listener>,
    failing: BTreeMap<SocketAddr, Failing>,
}

/// That nobody can listen there for a service, as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) service: ObjectName,
    pub(super) address: SocketAddr,
    pub(super) reason: String,
}

#[derive(Debug)]
struct Listener {
    service: ObjectName,
    task: JoinHandle<Infallible>,
}

#[derive(Debug)]
struct Failing {
    failure: Failure,
    told: bool,
}

/// Load balancers ask from a handful of addresses. However many services there are, the proxy has to go on.
const SHARE: Share = Share { connections: 32, spared_reserves: 1 };
/// However many services there are, those that have a listener can be asked.
const SPARED_BY_LISTENERS: u64 = SHARE.spared_reserves + 1;

// === impl Listeners ===

impl Listeners {
    /// Closes what isn't wanted, or not for that service; whether there was any. Then nobody listens there any more, and
    /// its connections answer nothing.
    pub(super) async fn close_all_but(&mut self, wanted: &BTreeMap<SocketAddr, ObjectName>) -> bool {
        let is_wanted = |address: &SocketAddr, service: &ObjectName| wanted.get(address) == Some(service);
        self.failing.retain(|address, failing| is_wanted(address, &failing.failure.service));
        let closing = self.open.extract_if(.., |address, listener| !is_wanted(address, &listener.service));
        let closing: Vec<Listener> = closing.map(|(_, listener)| listener).collect();
        closing.iter().for_each(|listener| listener.task.abort());
        let closed = !closing.is_empty();
        for Listener { task, .. } in closing {
            // That it was ended is what was asked for.
            let _ = task.await;
        }
        closed
    }

    /// Opens what is wanted and isn't open; what failed before only with `again`. Returns what is new about failures.
    pub(super) fn open(
        &mut self,
        wanted: &BTreeMap<SocketAddr, ObjectName>,
        again: bool,
        routes: impl Fn(SocketAddr, &ObjectName) -> Rc<dyn Routes>,
    ) -> Vec<Failure> {
        let mut news = Vec::new();
        for (&address, service) in wanted {
            if self.open.contains_key(&address) || (self.failing.contains_key(&address) && !again) {
                continue;
            }
            match listen(address) {
                Ok(listener) => {
                    if self.failing.remove(&address).is_some_and(|failing| failing.told) {
                        tracing::info!(%service, %address, "Service health checks are answered now");
                    }
                    let task = tokio::task::spawn_local(http::answer(listener, SHARE, routes(address, service)));
                    self.open.insert(address, Listener { service: service.clone(), task });
                }
                Err(error) => news.extend(self.fail(address, service, &error)),
            }
        }
        news
    }

    /// Whether some address could not be listened at.
    pub(super) fn is_incomplete(&self) -> bool {
        !self.failing.is_empty()
    }

    fn fail(&mut self, address: SocketAddr, service: &ObjectName, error: &io::Error) -> Option<Failure> {
        let failure = Failure { service: service.clone(), address, reason: format!("listen on {address}: {error}") };
        let known = self.failing.get(&address);
        let was_told = known.is_some_and(|known| known.told && known.failure == failure);
        // A new address isn't there before the kernel has looked for somebody else who has it: tell it only the next time.
        let passing = known.is_none() && error.kind() == io::ErrorKind::AddrNotAvailable;
        self.failing.insert(address, Failing { failure: failure.clone(), told: !passing });
        (!was_told && !passing).then_some(failure)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = http::listen_on(address, true)?;
    platform::spare_files(&listener, SPARED_BY_LISTENERS)?;
    Ok(listener)
}
