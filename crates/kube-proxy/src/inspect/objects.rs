//! Reads all objects of a source once.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferry_api::object::{Kind, KubeObject, Node};
use ferry_model::Settings;
use ferry_model::store::Event;

use crate::core::{NodeFacts, NodeWait};
use crate::input::Input;
use crate::metrics::Metrics;
use crate::origin::{Opened, Origin};
use crate::source::{STACK_BYTES, Sink, dump};
use crate::threads::Threads;

/// The complete lists of a source.
#[derive(Debug)]
pub struct ListedObjects {
    events: Vec<Event>,
    node: NodeFacts,
}

/// Batches that may wait for this thread before the source has to.
const INPUTS: usize = 64;
/// Longest time until the lists are complete.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for ServiceCIDRs after all other lists: older API servers have none.
const GRACE: Duration = Duration::from_secs(1);
/// Kinds without which nothing can be resolved.
const REQUIRED: [Kind; 3] = [Kind::Node, Kind::Service, Kind::EndpointSlice];

// === impl ListedObjects ===

impl ListedObjects {
    /// Reads a file that `kubectl get services,endpointslices,nodes -A -o yaml`, or `-o json`, has written. Its Nodes are those of a
    /// cluster: this node's must be among them.
    ///
    /// # Errors
    /// If the file can't be read, or one of its objects is malformed.
    pub fn of_dump(file: &Path, settings: &Settings) -> anyhow::Result<Self> {
        let node = NodeFacts::Cluster(NodeWait::new(&settings.detect_local));
        Ok(Self { events: dump::read(file)?, node })
    }

    /// Reads the source of a run.
    ///
    /// # Errors
    /// If the source can't be opened, an object can't be read, or the lists are not complete within a minute.
    pub fn of_origin(origin: Origin, settings: &Settings) -> anyhow::Result<Self> {
        let Opened { source, node, .. } = origin.open(settings, &Metrics::new()?)?;
        let (threads, _ends) = Threads::new();
        let (sender, inputs) = mpsc::sync_channel(INPUTS);
        let sink = Sink::new(sender);
        // The thread ends at its next delivery after the receiver is dropped, or with the process.
        threads.spawn("source", STACK_BYTES, move || source.run(&sink))?;
        Ok(Self { events: complete_lists(&inputs)?, node })
    }

    /// The objects of a running proxy, of an API server unless `manifests` is true. They are served, so that there is no wait for the Node.
    pub fn of_running(objects: Vec<KubeObject>, manifests: bool) -> Self {
        let node = if manifests { NodeFacts::Local } else { NodeFacts::Cluster(NodeWait::OVER) };
        Self { events: dump::complete(objects), node }
    }

    /// The facts about this node, and everything that was read.
    pub(super) fn into_parts(self) -> (NodeFacts, Vec<Event>) {
        (self.node, self.events)
    }

    /// The Node of this name.
    pub(super) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes().find(|node| node.name.name() == name)
    }

    /// The names of all Nodes.
    pub(super) fn node_names(&self) -> Vec<&str> {
        self.nodes().map(|node| node.name.name()).collect()
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.events.iter().filter_map(|event| {
            let Event::Upsert(KubeObject::Node(node)) = event else { return None };
            Some(node)
        })
    }
}

/// Everything up to the end of the last list.
fn complete_lists(inputs: &mpsc::Receiver<Input>) -> anyhow::Result<Vec<Event>> {
    let (mut events, mut end) = (Vec::new(), Instant::now() + LIMIT);
    let is_complete = |events: &[Event], kind| events.contains(&Event::Synced(kind));
    loop {
        match inputs.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Input::Events(batch)) => {
                let news = batch.iter().any(|event| matches!(event, Event::Synced(_)));
                events.extend(batch);
                if news && REQUIRED.into_iter().all(|kind| is_complete(&events, kind)) {
                    if is_complete(&events, Kind::ServiceCidr) {
                        return Ok(events);
                    }
                    end = end.min(Instant::now() + GRACE);
                }
            }
            Ok(Input::Unreadable(0)) => {}
            Ok(Input::Unreadable(files)) => {
                bail!("malformed manifests in {files} files, see the lines above: correct them")
            }
            Ok(other) => bail!("the source has sent an input of another sender: {other:?}"),
            Err(RecvTimeoutError::Timeout) if REQUIRED.into_iter().all(|kind| is_complete(&events, kind)) => {
                return Ok(events);
            }
            Err(RecvTimeoutError::Timeout) => {
                bail!("the lists of objects are not complete after {} s, see the lines above", LIMIT.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(RecvTimeoutError::Disconnected).context("reading objects");
            }
        }
    }
}
