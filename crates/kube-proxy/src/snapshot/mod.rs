//! Keeps the last objects of the API server in a file, and serves from it at a start without the server: after a restart of the
//! machine Services are reachable before the API server is.
//!
//! One thread does both, and nothing waits for it: `restore` reads the file once at the start, `writer` replaces it after
//! changes. `file` reads and replaces it as a whole, `refusal` decides which snapshots are used. The format is
//! [`ferry_api::snapshot`]'s. `hand_over` uses it between two runs, too.

mod file;
mod hand_over;
mod refusal;
mod restore;
#[cfg(test)]
mod tests;
mod writer;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime};

use ferry_api::config::FerryConfiguration;
use ferry_api::object::ObjectName;
use ferry_api::snapshot::{SnapshotEncoder, SnapshotHeader};

use self::file::SnapshotFile;
pub use self::hand_over::{LastObjects, ObjectHandOver};
use self::refusal::Acceptance;
use crate::core::{Desk, ObjectPage};
use crate::events::Recorder;
use crate::health::Freshness;
use crate::input::Input;
use crate::metrics::Metrics;
use crate::origin::CurrentCluster;
use crate::threads::{STACK_BYTES, Threads};

/// The snapshot of a configuration, before its thread starts.
#[derive(Debug)]
pub struct SnapshotSetup {
    file: SnapshotFile,
    acceptance: Acceptance,
    freshness: Arc<Freshness>,
    changed: SyncSender<()>,
    changes: Receiver<()>,
    timing: SnapshotTiming,
}

/// Connections of a snapshot to the rest of the program.
#[derive(Debug)]
pub struct SnapshotPeers {
    /// has the objects
    pub desk: Desk,
    /// the channel of the core's thread
    pub inputs: SyncSender<Input>,
    /// counts writes and refusals
    pub metrics: Arc<Metrics>,
    /// writes an Event after a use
    pub recorder: Recorder,
}

/// Times of a snapshot. [`SnapshotTiming::default`] is for production.
#[derive(Clone, Copy, Debug)]
struct SnapshotTiming {
    /// the lists of the API server have this time before the file is read
    first: Duration,
    /// an unfinished list that has brought nothing for so long has failed
    silence: Duration,
    /// the longest wait for lists that the API server is sending
    longest: Duration,
    /// from a change to the write, in which more of them may come
    quiet: Duration,
    /// the least time between two writes
    pause: Duration,
    /// without changes the file is written again after this time, so that its age tells how long the API server is away
    refresh: Duration,
}

/// Encodes all objects of a run, in a snapshot whose header names no cluster; `None` before the first hand-over.
///
/// # Errors
/// Those of the encoder; writing to memory doesn't fail.
pub fn encode_objects(desk: &Desk, node: &str) -> io::Result<Option<Vec<u8>>> {
    let Some(first) = desk.page(None) else { return Ok(None) };
    let (none, confirmed) = (Box::<str>::default(), refusal::timestamp(SystemTime::now()));
    let header = SnapshotHeader { server: none.clone(), authorities: none, node: node.into(), confirmed };
    let mut encoder = SnapshotEncoder::new(Vec::new(), &header)?;
    push_pages(&mut encoder, first, |last| desk.page(Some(last)))?;
    encoder.finish().map(Some)
}

/// Encodes the objects of this page and of those behind it; `page` copies the one behind a Service.
fn push_pages<W: Write>(
    encoder: &mut SnapshotEncoder<W>,
    first: ObjectPage,
    page: impl Fn(&ObjectName) -> Option<ObjectPage>,
) -> io::Result<()> {
    let mut next = Some(first);
    while let Some(current) = next {
        current.objects.iter().try_for_each(|object| encoder.push(object))?;
        next = current.last.and_then(|last| page(&last));
    }
    Ok(())
}

// === impl SnapshotTiming ===

impl Default for SnapshotTiming {
    /// Lists of a small cluster take some 50 ms. The other times are a trade: what a crash loses, against writes to a disk
    /// that may be a memory card.
    fn default() -> Self {
        Self {
            first: Duration::from_millis(300),
            silence: Duration::from_millis(500),
            longest: Duration::from_secs(5),
            quiet: Duration::from_secs(2),
            pause: Duration::from_secs(30),
            refresh: Duration::from_secs(10 * 60),
        }
    }
}

// === impl SnapshotSetup ===

impl SnapshotSetup {
    /// The snapshot that a configuration asks for, of a node's proxy; `None` without one. Manifests are files already: with them a
    /// snapshot has no use.
    pub fn new(
        config: &FerryConfiguration,
        node: &str,
        cluster: Option<CurrentCluster>,
        freshness: Option<Arc<Freshness>>,
    ) -> Option<Self> {
        if config.snapshot.is_empty() {
            return None;
        }
        let (Some(cluster), Some(freshness)) = (cluster, freshness) else {
            let file = &*config.snapshot;
            tracing::warn!(
                file,
                "Ignoring FerryConfiguration.snapshot: objects come from manifests, not from an API server"
            );
            return None;
        };
        let max_age = Some(config.snapshot_max_age.to_std()).filter(|age| !age.is_zero());
        let acceptance = Acceptance { cluster, node: node.to_owned(), max_age };
        let (changed, changes) = sync_channel(1);
        let file = SnapshotFile::new(&config.snapshot);
        Some(Self { file, acceptance, freshness, changed, changes, timing: SnapshotTiming::default() })
    }

    /// The channel by which the core signals changes.
    pub fn changed(&self) -> SyncSender<()> {
        self.changed.clone()
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn start(self, peers: SnapshotPeers, threads: &Threads) -> anyhow::Result<()> {
        threads.spawn("snapshot", STACK_BYTES, move || self.run(&peers))
    }

    /// Runs as long as the program.
    fn run(self, peers: &SnapshotPeers) {
        let Self { file, acceptance, freshness, changes, timing, .. } = self;
        let start = restore::Start { file: &file, acceptance: &acceptance, freshness: &freshness, timing };
        let served = start.run(peers);
        writer::SnapshotWriter::new(&file, &acceptance, &freshness, timing).run(&changes, served, peers);
    }
}
