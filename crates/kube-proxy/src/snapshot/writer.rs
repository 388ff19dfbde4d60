//! Replaces the snapshot after changes: soon after the first one, seldom under many, and every ten minutes while the API server
//! confirms that nothing changed.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

use super::file::{SnapshotFile, WriteError};
use super::refusal::Acceptance;
use super::restore::SnapshotUse;
use super::{SnapshotPeers, SnapshotTiming, push_pages};
use crate::core::{Desk, ObjectPage};
use crate::events::KubeEvent;
use crate::health::Freshness;

/// Writes the snapshots of a run.
pub(super) struct SnapshotWriter<'a> {
    file: &'a SnapshotFile,
    acceptance: &'a Acceptance,
    freshness: &'a Freshness,
    timing: SnapshotTiming,
    /// objects changed since the last snapshot, or there is none of this run
    changed: bool,
    /// when the API server confirmed the last snapshot
    confirmed: Option<SystemTime>,
    /// the next write comes at this time at the earliest
    earliest: Instant,
    /// sort of the last error, until a write succeeds
    failed: Option<(&'static str, io::ErrorKind)>,
}

/// Bytes a second that are written in the long run, at most: 11 GB a day, of a disk that may be a memory card.
const BYTES_PER_SECOND: u64 = 128 << 10;
/// The pause after a write, in durations of that write: a fiftieth of a processor at most.
const PAUSES: u32 = 50;
/// A write without changes is worth its cost only if it makes the snapshot younger by this time.
const GAIN: Duration = Duration::from_secs(60);

// === impl SnapshotWriter ===

impl<'a> SnapshotWriter<'a> {
    pub(super) fn new(
        file: &'a SnapshotFile,
        acceptance: &'a Acceptance,
        freshness: &'a Freshness,
        timing: SnapshotTiming,
    ) -> Self {
        let earliest = Instant::now();
        Self { file, acceptance, freshness, timing, changed: true, confirmed: None, earliest, failed: None }
    }

    /// Writes snapshots until the senders of `changes` are gone; in the program there is always one.
    pub(super) fn run(mut self, changes: &Receiver<()>, mut served: Option<SnapshotUse>, peers: &SnapshotPeers) {
        loop {
            // An unwritten change waits for the disk, or for an address of the Node, which sends no signal.
            let wait = if self.changed { self.timing.pause } else { self.timing.refresh };
            match changes.recv_timeout(wait) {
                Ok(()) => {
                    self.changed = true;
                    thread::sleep(self.timing.quiet);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // Before that, the file has more than the core may have.
            if !self.freshness.is_complete() {
                continue;
            }
            if let Some(served) = served.take() {
                self.end_use(served, peers);
            }
            thread::sleep(self.earliest.saturating_duration_since(Instant::now()));
            self.write(changes, peers);
        }
    }

    /// Reports that the API server's objects have replaced those of the snapshot.
    fn end_use(&self, served: SnapshotUse, peers: &SnapshotPeers) {
        let (seconds, node) = (served.since.elapsed().as_secs(), &self.acceptance.node);
        let confirmed = Timestamp::try_from(served.confirmed).map(|time| time.to_string()).unwrap_or_default();
        tracing::info!(seconds, confirmed, "API server answers, its objects have replaced those of the snapshot");
        peers.recorder.record(KubeEvent::served_from_snapshot(node, &confirmed, seconds));
    }

    fn write(&mut self, changes: &Receiver<()>, peers: &SnapshotPeers) {
        // A change after this moment is followed by a further write.
        self.changed |= changes.try_recv().is_ok();
        let Some(age) = self.freshness.confirmed(Instant::now()) else { return };
        let confirmed = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        // Backwards too: a clock that was set has made the last time wrong.
        let moved = self.confirmed.map(|last| confirmed.duration_since(last).unwrap_or_else(|error| error.duration()));
        if !self.changed && moved.is_some_and(|moved| moved < GAIN) {
            return;
        }
        // Lists may be complete before the Node has an address.
        let Some(first) = peers.desk.page(None) else { return };
        let begin = Instant::now();
        let written = self.replace(confirmed, first, &peers.desk);
        self.earliest = Instant::now() + self.pause(begin.elapsed(), written.as_ref().map_or(0, |bytes| *bytes));
        match written {
            Ok(bytes) => self.succeed(bytes, confirmed, begin.elapsed(), peers),
            Err(error) => self.fail(&error, peers),
        }
    }

    fn replace(&self, confirmed: SystemTime, first: ObjectPage, desk: &Desk) -> Result<u64, WriteError> {
        let header = self.acceptance.header(confirmed);
        self.file.replace(&header, |encoder| push_pages(encoder, first, |last| desk.page(Some(last))))
    }

    /// The time after a write in which none follows.
    fn pause(&self, took: Duration, bytes: u64) -> Duration {
        self.timing.pause.max(took * PAUSES).max(Duration::from_secs(bytes / BYTES_PER_SECOND))
    }

    fn succeed(&mut self, bytes: u64, confirmed: SystemTime, took: Duration, peers: &SnapshotPeers) {
        self.changed = false;
        self.confirmed = Some(confirmed);
        peers.metrics.snapshot.written(bytes);
        peers.metrics.snapshot.confirmed(confirmed);
        let file = self.file.path().display();
        if self.failed.take().is_some() {
            tracing::info!(%file, bytes, "Snapshot is written again");
        } else {
            let milliseconds = took.as_millis();
            tracing::debug!(%file, bytes, milliseconds, "Snapshot written");
        }
    }

    fn fail(&mut self, error: &WriteError, peers: &SnapshotPeers) {
        self.changed = true;
        peers.metrics.snapshot.failed();
        if self.failed.replace(error.sort()) == Some(error.sort()) {
            return;
        }
        let file = self.file.path().display();
        tracing::error!(%file, err = %error, "Writing the snapshot failed, retrying; the last one stays, and Services are not affected");
    }
}
