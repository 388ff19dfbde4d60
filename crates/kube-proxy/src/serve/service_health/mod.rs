//! Serves `healthCheckNodePort`: the number of a Service's ready endpoints on this node, for load balancers.
//!
//! Follows the acknowledged state, so that a port opens, and a count rises, only once connections reach the endpoints. IPv4 and
//! IPv6 have listeners and counts of their own. Any path and any method is answered.

mod answer;
mod book;
mod events;
mod listeners;

use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use ferry_api::object::{Family, ObjectName};

use self::answer::answer;
use self::book::{Book, ListenerPlan};
use self::listeners::{BindFailure, Listeners};
use super::http::{HttpRequest, HttpResponse, RETRY, Routes};
use crate::health::{DataPath, Pulses};
use crate::report::SyncPass;

pub use self::events::{HealthCheckReports, HealthEvents};

/// The health check servers of all Services. To be used on a `LocalSet`.
pub struct ServiceHealth {
    node_name: String,
    events: Rc<dyn HealthEvents>,
    book: Rc<RefCell<Book>>,
    data_path: Option<Arc<DataPath>>,
    pulses: Rc<Pulses>,
    plan: ListenerPlan,
    listeners: Listeners,
    /// time of the next retry
    again: Option<tokio::time::Instant>,
}

/// The routes of one Service in one family.
struct Probed {
    family: Family,
    service: ObjectName,
    book: Rc<RefCell<Book>>,
    data_path: Option<Arc<DataPath>>,
    pulses: Rc<Pulses>,
}

// === impl ServiceHealth ===

impl ServiceHealth {
    /// A set of servers, initially empty.
    pub fn new(
        node_name: &str,
        (pulses, data_path): (Pulses, Option<Arc<DataPath>>),
        events: Rc<dyn HealthEvents>,
    ) -> Self {
        Self {
            node_name: node_name.to_owned(),
            events,
            book: Rc::default(),
            data_path,
            pulses: Rc::new(pulses),
            plan: ListenerPlan::default(),
            listeners: Listeners::default(),
            again: None,
        }
    }

    /// Updates the servers after a sync pass.
    pub async fn sync_pass(&mut self, pass: &SyncPass) {
        let changed = self.book.borrow_mut().acknowledged(pass.family, &pass.outcome.acked);
        if changed {
            let plan = self.book.borrow().plan();
            self.tell_contested(&plan);
            self.plan = plan;
            self.listen(false).await;
        }
    }

    /// Waits until [`ServiceHealth::retry`] is due; for ever without a failure.
    pub async fn due(&self) {
        match self.again {
            Some(moment) => tokio::time::sleep_until(moment).await,
            None => std::future::pending().await,
        }
    }

    /// Retries failed listeners.
    pub async fn retry(&mut self) {
        self.listen(true).await;
    }

    async fn listen(&mut self, again: bool) {
        // First, since a new listener may need the port of a closed one.
        let closed = self.listeners.close_all_but(&self.plan.listeners).await;
        let again = again || closed;
        let routes = |address: SocketAddr, service: &ObjectName| -> Rc<dyn Routes> {
            Rc::new(Probed {
                family: Family::of(address.ip()),
                service: service.clone(),
                book: Rc::clone(&self.book),
                data_path: self.data_path.clone(),
                pulses: Rc::clone(&self.pulses),
            })
        };
        let failures = self.listeners.open(&self.plan.listeners, again, routes);
        for BindFailure { service, address, reason } in failures {
            tracing::error!(
                %service,
                %address,
                err = reason,
                "Service health checks can't be served, retrying every 5 s"
            );
            self.tell(&service, address.port(), &reason);
        }
        if !self.listeners.is_incomplete() {
            self.again = None;
        } else if again || self.again.is_none() {
            self.again = Some(tokio::time::Instant::now() + RETRY);
        }
    }

    /// Reports each new conflict about a port once.
    fn tell_contested(&self, plan: &ListenerPlan) {
        for (claim, owner) in &plan.contested {
            if self.plan.contested.get(claim) == Some(owner) {
                continue;
            }
            let (family, port, service) = (claim.family, claim.port, &claim.service);
            tracing::error!(
                %family,
                %service,
                port,
                %owner,
                "Service health checks can't be served, another service owns the port"
            );
            self.tell(service, port, &format!("the port is owned by {owner}"));
        }
    }

    fn tell(&self, service: &ObjectName, port: u16, reason: &str) {
        let node = &self.node_name;
        let note = format!("node {node} failed to start healthcheck \"{service}\" on port {port}: {reason}");
        self.events.failed_to_start(service, note);
    }
}

impl fmt::Debug for ServiceHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceHealth").field("plan", &self.plan).field("listeners", &self.listeners).finish()
    }
}

// === impl Probed ===

impl Routes for Probed {
    fn answer(&self, _: &HttpRequest) -> HttpResponse {
        let local_endpoints = self.book.borrow().local_endpoints(self.family, &self.service);
        let gets_through = DataPath::is_healthy(self.data_path.as_deref());
        answer(&self.service, local_endpoints, gets_through && self.pulses.are_healthy(Instant::now()))
    }
}

#[cfg(test)]
mod tests;
