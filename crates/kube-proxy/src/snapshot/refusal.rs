//! Decides if a snapshot is used: one of this cluster and node that isn't too old.

use std::time::{Duration, SystemTime};

use ferry_api::object::Timestamp;
use ferry_api::snapshot::{SnapshotError, SnapshotHeader};

use crate::origin::{ClusterIdentity, CurrentCluster};

/// The snapshots that are used.
#[derive(Clone, Debug)]
pub(super) struct Acceptance {
    pub(super) cluster: CurrentCluster,
    /// name of this node
    pub(super) node: String,
    /// `None` for no limit
    pub(super) max_age: Option<Duration>,
}

/// The reason why a snapshot isn't used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotRefusal {
    #[error("{0}")]
    Content(#[from] SnapshotError),
    #[error("it has {bytes} bytes, more than the limit of {limit} bytes")]
    Size { bytes: u64, limit: u64 },
    #[error("it isn't a regular file")]
    NoFile,
    #[error("it is of another cluster: the API server of {0}, here it is {1}")]
    Server(Box<str>, String),
    #[error("it is of another cluster: the API server {0} had other certificate authorities")]
    Authorities(Box<str>),
    #[error("it is of another node: {0:?}, this is {1:?}")]
    Node(Box<str>, String),
    #[error("it is too old: the API server confirmed it {} s ago, snapshotMaxAge allows {} s", .age.as_secs(), .limit.as_secs())]
    Age { age: Duration, limit: Duration },
}

// === impl Acceptance ===

impl Acceptance {
    /// The header of a snapshot of this node's objects, which the API server confirmed at this time.
    pub(super) fn header(&self, confirmed: SystemTime) -> SnapshotHeader {
        // The next start reads the authorities' file as it is then.
        let ClusterIdentity { server, authorities } = self.cluster.identity();
        SnapshotHeader {
            server: server.into(),
            authorities: authorities.into(),
            node: (*self.node).into(),
            confirmed: timestamp(confirmed),
        }
    }

    /// Checks origin and time of a snapshot; returns its age, or `None` if it is newer than the clock: that went back, as on a
    /// machine that has no clock of its own before it has reached a time server.
    pub(super) fn check(&self, header: &SnapshotHeader, now: SystemTime) -> Result<Option<Duration>, SnapshotRefusal> {
        let SnapshotHeader { server, authorities, node, confirmed } = header;
        let cluster = self.cluster.identity();
        if **server != *cluster.server {
            return Err(SnapshotRefusal::Server(server.clone(), cluster.server));
        }
        if **authorities != *cluster.authorities {
            return Err(SnapshotRefusal::Authorities(server.clone()));
        }
        if **node != *self.node {
            return Err(SnapshotRefusal::Node(node.clone(), self.node.clone()));
        }
        let age = now.duration_since(system_time(*confirmed)).ok();
        match (age, self.max_age) {
            (Some(age), Some(limit)) if age > limit => Err(SnapshotRefusal::Age { age, limit }),
            _ => Ok(age),
        }
    }
}

// === impl SnapshotRefusal ===

impl SnapshotRefusal {
    /// The reason in one word, for a metric.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Content(SnapshotError::Read(_)) | Self::NoFile => "unreadable",
            Self::Content(SnapshotError::Version(_)) => "version",
            Self::Content(SnapshotError::Damaged(_)) => "damaged",
            Self::Size { .. } => "size",
            Self::Server(..) | Self::Authorities(_) => "cluster",
            Self::Node(..) => "node",
            Self::Age { .. } => "age",
        }
    }
}

/// A timestamp as the system's time; one that the system can't express counts as 1970.
pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let seconds = u64::try_from(time.seconds).unwrap_or_default();
    let since = Duration::new(seconds, time.nanoseconds);
    SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The system's time as a timestamp; one before 1970 counts as 1970.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or_default(), nanoseconds: since.subsec_nanos() }
}
