//! Serves from the snapshot at a start whose API server doesn't answer.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::file::SnapshotFile;
use super::refusal::{Acceptance, SnapshotRefusal, system_time};
use super::{SnapshotPeers, SnapshotTiming};
use crate::core::{Applied, Restored};
use crate::health::Freshness;
use crate::input::Input;

/// The start of a proxy.
pub(super) struct Start<'a> {
    pub(super) file: &'a SnapshotFile,
    pub(super) acceptance: &'a Acceptance,
    pub(super) freshness: &'a Freshness,
    pub(super) timing: SnapshotTiming,
}

/// The use of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotUse {
    /// since when
    pub(super) since: Instant,
    /// when the API server confirmed its objects
    pub(super) confirmed: SystemTime,
}

/// Interval of the checks of what the API server has sent.
const STEP: Duration = Duration::from_millis(20);

// === impl Start ===

impl Start<'_> {
    /// Hands the snapshot's objects to the core if the API server's don't come; returns if they serve.
    pub(super) fn run(&self, peers: &SnapshotPeers) -> Option<SnapshotUse> {
        if self.lists_arrive() {
            return None;
        }
        if self.freshness.snapshot_in_use().is_some() {
            // Those of the run before serve, and are newer than the file.
            return None;
        }
        let file = self.file.path().display();
        match self.serve(peers) {
            Ok(served) => served,
            Err(refusal) => {
                peers.metrics.snapshot.refused(refusal.reason());
                tracing::warn!(%file, err = %refusal, "Not using the snapshot, nothing is served until the API server answers");
                None
            }
        }
    }

    /// Waits for the lists; false if they don't come. An API server that is sending them gets more time, since they are newer, and
    /// the rules would be written twice.
    fn lists_arrive(&self) -> bool {
        let start = Instant::now();
        loop {
            if self.freshness.is_complete() {
                return true;
            }
            let (now, waited) = (Instant::now(), start.elapsed());
            let is_listing = waited < self.timing.longest && self.freshness.is_listing(now, self.timing.silence);
            if waited >= self.timing.first && !is_listing {
                return false;
            }
            thread::sleep(STEP);
        }
    }

    fn serve(&self, peers: &SnapshotPeers) -> Result<Option<SnapshotUse>, SnapshotRefusal> {
        let file = self.file.path().display();
        let Some(snapshot) = self.file.read()? else {
            tracing::info!(%file, "No snapshot yet, nothing is served until the API server answers");
            return Ok(None);
        };
        let age = self.acceptance.check(&snapshot.header, SystemTime::now())?;
        let age = age.map_or_else(|| "unknown: newer than the clock".to_owned(), |age| format!("{} s", age.as_secs()));
        let objects = snapshot.objects.len();
        let confirmed = system_time(snapshot.header.confirmed);
        let (restored, applied) = peers.desk.restore(snapshot.objects);
        match restored {
            Restored::Done => {}
            Restored::Late => return Ok(None),
            Restored::RulesInUse => {
                tracing::info!(%file, age, "Not using the snapshot, rules of an earlier run serve and may be newer");
                return Ok(None);
            }
        }
        self.freshness.restored(confirmed);
        peers.metrics.snapshot.confirmed(confirmed);
        if applied == Applied::Undecided {
            // The core's thread decides when more is known; it has ended if it can't be reached.
            let _ = peers.inputs.send(Input::Undecided);
        }
        tracing::warn!(%file, objects, age, "API server doesn't answer, serving from the snapshot until it does");
        Ok(Some(SnapshotUse { since: Instant::now(), confirmed }))
    }
}
