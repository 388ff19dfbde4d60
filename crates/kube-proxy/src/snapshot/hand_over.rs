//! Passes the objects from a run to the one that replaces it after a change of the configuration, in a snapshot's format: so the
//! new run serves, and answers probes, also while the API server is away.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant, SystemTime};

use ferry_api::snapshot::{SnapshotEncoder, decode_snapshot};

use super::push_pages;
use super::refusal::{Acceptance, SnapshotRefusal, system_time};
use crate::core::{Applied, Desk, Frozen, Restored};
use crate::health::Freshness;
use crate::input::Input;
use crate::metrics::Metrics;
use crate::origin::CurrentCluster;
use crate::platform;

/// Both ends of the hand-over: a run takes objects at its start, and gives its own at its end.
#[derive(Debug)]
pub struct ObjectHandOver {
    desk: Desk,
    acceptance: Acceptance,
    freshness: Arc<Freshness>,
}

/// The objects of a run that ends. Nothing changes them, nor the rules by them, until this is dropped.
#[derive(Debug)]
pub struct LastObjects<'a> {
    core: Frozen<'a>,
    of: &'a ObjectHandOver,
}

// === impl ObjectHandOver ===

impl ObjectHandOver {
    /// The hand-over of a node's proxy; `None` with manifests, which are files already.
    pub fn new(
        desk: Desk,
        node: &str,
        cluster: Option<CurrentCluster>,
        freshness: Option<Arc<Freshness>>,
    ) -> Option<Self> {
        let (cluster, freshness) = (cluster?, freshness?);
        let acceptance = Acceptance { cluster, node: node.to_owned(), max_age: None };
        Some(Self { desk, acceptance, freshness })
    }

    /// Takes the objects of the former run. To be called before the source begins.
    pub fn take(&self, memory: File, inputs: &SyncSender<Input>, metrics: &Metrics) {
        let taken = self.try_take(memory, inputs);
        self.freshness.snapshot_in_use().into_iter().for_each(|confirmed| metrics.snapshot.confirmed(confirmed));
        match taken {
            Ok(objects) => tracing::debug!(objects, "Took over the objects of the run before"),
            Err(refusal) => {
                tracing::info!(reason = %refusal, "Not taking over the objects of the run before, waiting for the API server's");
            }
        }
    }

    fn try_take(&self, memory: File, inputs: &SyncSender<Input>) -> Result<usize, SnapshotRefusal> {
        let snapshot = decode_snapshot(BufReader::new(memory))?;
        self.acceptance.check(&snapshot.header, SystemTime::now())?;
        let number = snapshot.objects.len();
        let (restored, applied) = self.desk.take_over(snapshot.objects);
        if restored == Restored::Done {
            self.freshness.restored(system_time(snapshot.header.confirmed));
        }
        if applied == Applied::Undecided {
            // The core's thread decides when more is known.
            let _ = inputs.send(Input::Undecided);
        }
        Ok(number)
    }

    /// Stops all changes, for the last moment of this run; `None` if the core is busy for longer than `limit`, as at a start that
    /// waits for a tool.
    pub fn freeze(&self, limit: Duration) -> Option<LastObjects<'_>> {
        Some(LastObjects { core: self.desk.freeze(limit)?, of: self })
    }
}

// === impl LastObjects ===

impl LastObjects<'_> {
    /// All objects, in memory that the next run inherits; `None` if this run serves none yet.
    ///
    /// # Errors
    /// The system's, as where memory is short.
    pub fn encode(&self) -> io::Result<Option<File>> {
        let Some(first) = self.core.page(None) else { return Ok(None) };
        let memory = platform::hand_over_memory()?;
        let mut writer = BufWriter::new(&memory);
        let mut encoder = SnapshotEncoder::new(&mut writer, &self.of.acceptance.header(self.confirmed()))?;
        push_pages(&mut encoder, first, |last| self.core.page(Some(last)))?;
        encoder.finish()?;
        writer.flush()?;
        drop(writer);
        Ok(Some(memory))
    }

    /// When the API server confirmed the objects; where they were taken over, it did so for an earlier run.
    fn confirmed(&self) -> SystemTime {
        let freshness = &self.of.freshness;
        let ago = |age| SystemTime::now().checked_sub(age);
        let confirmed = freshness.confirmed(Instant::now()).and_then(ago).or_else(|| freshness.snapshot_in_use());
        confirmed.unwrap_or(SystemTime::UNIX_EPOCH)
    }
}
