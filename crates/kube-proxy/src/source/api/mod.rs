//! The API server as a source: lists each kind, then watches from that version, through all failures of server and network. The
//! last known state stays in force meanwhile.
//!
//! Each kind has a task, all on one thread. Its `RequestPlan` decides on the next request and its time; its `Reflector` sends it,
//! passes the objects to its `Outlet`, and advances the known version only after that.

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
use self::plan::RequestPlan;
use self::reflector::Reflector;
use self::report::Report;
use self::resource::Resource;
pub use self::timing::SourceTiming;
use self::turns::Turns;
use super::{Closed, Sink};
use crate::events::EventWriter;
use crate::health::Freshness;
use ferry_client::Client;
use ferry_client::backoff::Jitter;

/// All kinds that are followed. The Node comes first, since no Service can be resolved without it.
pub const KINDS: [Kind; 4] = [Kind::Node, Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr];

/// Settings of a source.
#[derive(Debug)]
pub struct ApiSetup {
    /// client of the API server
    pub client: Client,
    /// the server's URL, for logs
    pub server: String,
    /// name of this node's Node object
    pub node_name: String,
    /// receives the freshness of each kind
    pub freshness: Arc<Freshness>,
    /// times and bounds
    pub timing: SourceTiming,
}

/// Follows the objects of a cluster, and writes Events on the same thread and connections.
#[derive(Debug)]
pub struct ApiSource {
    setup: ApiSetup,
    events: EventWriter,
    runtime: Runtime,
}

impl ApiSource {
    /// Prepares the source without sending a request.
    ///
    /// # Errors
    /// If the runtime can't be created: the system's error.
    pub fn new(setup: ApiSetup, events: EventWriter) -> io::Result<Self> {
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

// === impl ApiSetup ===

impl ApiSetup {
    /// Lists and watches all kinds until the core has ended, in a runtime with I/O and time. Dropping it ends all.
    pub async fn follow(&self, sink: &Sink) -> Closed {
        let mut tasks = JoinSet::new();
        let turns = Arc::new(Turns::default());
        for kind in KINDS {
            tasks.spawn(self.reflector(kind, sink.clone(), Arc::clone(&turns)).run());
        }
        // The first task that finds the core gone ends all.
        tasks.join_next().await.and_then(Result::ok).unwrap_or(Closed)
    }

    fn reflector(&self, kind: Kind, sink: Sink, turns: Arc<Turns>) -> Reflector {
        let resource = Resource::new(kind, &self.node_name);
        Reflector {
            client: self.client.clone(),
            timing: self.timing.clone(),
            freshness: Arc::clone(&self.freshness),
            plan: RequestPlan::new(self.timing.clone(), Jitter::random()),
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
