//! The cluster's API server as a source: a list of each kind, then a watch that goes on from it, whatever the server
//! and the network do. What is known stays in force meanwhile.
//!
//! Every kind has a task of its own on one thread. Its `Plan` decides what to ask for and when; its `Reflector` asks,
//! hands what comes to its `Outlet`, and counts a version as known only after that.

mod attempt;
mod failure;
mod history;
mod list;
mod outlet;
mod plan;
mod reflector;
mod report;
mod resource;
mod step;
#[cfg(test)]
mod testing;
mod timing;
mod turns;
mod watch;

use std::io;
use std::sync::Arc;

use ferry_api::object::Kind;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use self::outlet::Outlet;
use self::plan::Plan;
use self::reflector::Reflector;
use self::report::Report;
use self::resource::Resource;
pub use self::timing::Timing;
use self::turns::Turns;
use super::{Closed, Sink};
use crate::events::Writer;
use crate::health::Freshness;
use ferry_client::Client;
use ferry_client::backoff::Dice;

/// Every kind that is asked for. The Node comes first, since nothing can be decided without it.
pub const KINDS: [Kind; 4] = [Kind::Node, Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr];

/// What a source is made with.
#[derive(Debug)]
pub struct Setup {
    /// asks the server
    pub client: Client,
    /// the server's URL, for logs
    pub server: String,
    /// the one Node that counts
    pub node_name: String,
    /// is told how each kind is doing
    pub freshness: Arc<Freshness>,
    /// how long things may take
    pub timing: Timing,
}

/// The objects of a cluster; and on the same thread, over the same connections, what is told to the cluster.
#[derive(Debug)]
pub struct ApiSource {
    setup: Setup,
    events: Writer,
    runtime: Runtime,
}

impl ApiSource {
    /// Makes everything ready and asks nothing yet. Fails if the system has no room for another runtime.
    pub fn new(setup: Setup, events: Writer) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { setup, events, runtime })
    }

    /// Lists and watches all kinds, and writes events, until the core has ended.
    pub fn run(self, sink: &Sink) -> Closed {
        self.runtime.block_on(async {
            let events = tokio::spawn(self.events.run());
            let closed = self.setup.follow(sink).await;
            events.abort();
            closed
        })
    }
}

// === impl Setup ===

impl Setup {
    /// Lists and watches all kinds until the core has ended, in a runtime with I/O and time. Dropping it ends all.
    pub async fn follow(&self, sink: &Sink) -> Closed {
        let mut tasks = JoinSet::new();
        let turns = Arc::new(Turns::default());
        for kind in KINDS {
            tasks.spawn(self.reflector(kind, sink.clone(), Arc::clone(&turns)).run());
        }
        // The first that finds the core gone is enough.
        tasks.join_next().await.and_then(Result::ok).unwrap_or(Closed)
    }

    fn reflector(&self, kind: Kind, sink: Sink, turns: Arc<Turns>) -> Reflector {
        let resource = Resource::new(kind, &self.node_name);
        Reflector {
            client: self.client.clone(),
            timing: self.timing.clone(),
            freshness: Arc::clone(&self.freshness),
            plan: Plan::new(self.timing.clone(), Dice::random()),
            outlet: Outlet::new(kind, &self.node_name, sink),
            report: Report::new(resource.name, self.server.as_str().into()),
            failures: 0,
            turns,
            turn: None,
            returns: 0,
            absences: 0,
            absence: None,
            resource,
        }
    }
}
