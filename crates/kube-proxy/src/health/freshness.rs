//! Staleness of the known objects per kind, shared between the source and the threads that answer probes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use ferry_api::object::Kind;

/// Freshness of every kind that a source follows. Moments before `epoch` count as `epoch`.
#[derive(Debug)]
pub struct Freshness {
    epoch: Instant,
    kinds: Vec<(Kind, Cell)>,
    /// when the API server confirmed the objects of the snapshot that this run has begun with
    restored: OnceLock<SystemTime>,
}

/// Freshness of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// its initial list has been complete
    pub synced: bool,
    /// a list or watch is open
    pub connected: bool,
    /// time since the server last sent anything about it, bookmarks included; `None` for never
    pub contact: Option<Duration>,
}

/// Moments are nanoseconds since the epoch, 0 for never.
#[derive(Debug, Default)]
struct Cell {
    synced: AtomicBool,
    connected: AtomicBool,
    contact: AtomicU64,
}

// === impl Freshness ===

impl Freshness {
    /// The freshness of these kinds before any list.
    pub fn new(epoch: Instant, kinds: &[Kind]) -> Self {
        Self { epoch, kinds: kinds.iter().map(|kind| (*kind, Cell::default())).collect(), restored: OnceLock::new() }
    }

    /// Notes the response head of a list or watch of this kind.
    pub fn connected(&self, kind: Kind, now: Instant) {
        self.with(kind, |cell| cell.connected.store(true, Ordering::Relaxed));
        self.contact(kind, now);
    }

    /// Notes data of the server about this kind.
    pub fn contact(&self, kind: Kind, now: Instant) {
        let nanoseconds = now.saturating_duration_since(self.epoch).as_nanos();
        let moment = u64::try_from(nanoseconds).unwrap_or(u64::MAX).max(1);
        self.with(kind, |cell| cell.contact.store(moment, Ordering::Relaxed));
    }

    /// Notes that no list or watch of this kind is open.
    pub fn disconnected(&self, kind: Kind) {
        self.with(kind, |cell| cell.connected.store(false, Ordering::Relaxed));
    }

    /// Notes the complete initial list of this kind.
    pub fn synced(&self, kind: Kind) {
        self.with(kind, |cell| cell.synced.store(true, Ordering::Relaxed));
    }

    /// The freshness of each kind, in the order given to [`Self::new`].
    pub fn now(&self, now: Instant) -> impl Iterator<Item = (Kind, Fresh)> {
        self.kinds.iter().map(move |(kind, cell)| (*kind, cell.fresh(now.saturating_duration_since(self.epoch))))
    }

    /// Notes that the objects of a snapshot serve, which the API server confirmed at this time.
    pub fn restored(&self, confirmed: SystemTime) {
        // A run begins with one snapshot at most.
        let _ = self.restored.set(confirmed);
    }

    /// The time at which the API server confirmed the objects of the snapshot that serves; `None` if none serves: the run began
    /// without one, or all required lists have been complete since.
    pub fn snapshot_in_use(&self) -> Option<SystemTime> {
        self.restored.get().copied().filter(|_| !self.is_complete())
    }

    /// True once the lists of all kinds were complete without which nothing is served.
    pub fn is_complete(&self) -> bool {
        self.required().all(|cell| cell.synced.load(Ordering::Relaxed))
    }

    /// True if the API server is sending a list: of a required kind whose list isn't complete, data came within this time.
    pub fn is_listing(&self, now: Instant, within: Duration) -> bool {
        let now = now.saturating_duration_since(self.epoch);
        let fresh = self.required().map(|cell| cell.fresh(now)).filter(|fresh| !fresh.synced && fresh.connected);
        fresh.filter_map(|fresh| fresh.contact).any(|age| age <= within)
    }

    /// Time since the API server has confirmed the objects of all required kinds; `None` until their lists were complete.
    pub fn confirmed(&self, now: Instant) -> Option<Duration> {
        let now = now.saturating_duration_since(self.epoch);
        let ages: Option<Vec<Duration>> =
            self.required().map(|cell| cell.fresh(now)).map(|fresh| fresh.contact.filter(|_| fresh.synced)).collect();
        ages?.into_iter().max()
    }

    /// The kinds without which nothing is served. ServiceCIDRs may be missing in a cluster.
    fn required(&self) -> impl Iterator<Item = &Cell> {
        self.kinds.iter().filter(|(kind, _)| *kind != Kind::ServiceCidr).map(|(_, cell)| cell)
    }

    fn with(&self, kind: Kind, change: impl FnOnce(&Cell)) {
        if let Some((_, cell)) = self.kinds.iter().find(|(known, _)| *known == kind) {
            change(cell);
        }
    }
}

// === impl Cell ===

impl Cell {
    fn fresh(&self, now: Duration) -> Fresh {
        let contact = match self.contact.load(Ordering::Relaxed) {
            0 => None,
            moment => Some(now.saturating_sub(Duration::from_nanos(moment))),
        };
        Fresh {
            synced: self.synced.load(Ordering::Relaxed),
            connected: self.connected.load(Ordering::Relaxed),
            contact,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_kind_ages_by_itself() {
        let start = Instant::now();
        let freshness = Freshness::new(start, &[Kind::Service, Kind::Node]);
        let of = |at: Instant| freshness.now(at).collect::<Vec<_>>();
        let never = Fresh { synced: false, connected: false, contact: None };
        assert_eq!(of(start), [(Kind::Service, never), (Kind::Node, never)]);
        freshness.connected(Kind::Service, start);
        freshness.synced(Kind::Service);
        freshness.contact(Kind::Service, start + 2 * SECOND);
        freshness.disconnected(Kind::Service);
        freshness.connected(Kind::Node, start + 3 * SECOND);
        // a kind that isn't followed
        freshness.connected(Kind::ServiceCidr, start);
        let [(_, service), (_, node)] = of(start + 5 * SECOND)[..] else { panic!("two kinds") };
        assert_eq!(service, Fresh { synced: true, connected: false, contact: Some(3 * SECOND) });
        assert_eq!(node, Fresh { synced: false, connected: true, contact: Some(2 * SECOND) });
    }

    #[test]
    fn a_snapshot_is_in_use_until_the_required_lists_are_complete() {
        let start = Instant::now();
        let freshness = Freshness::new(start, &[Kind::Service, Kind::Node, Kind::ServiceCidr]);
        let time = SystemTime::UNIX_EPOCH + SECOND;
        assert_eq!(freshness.snapshot_in_use(), None);
        freshness.restored(time);
        assert_eq!(freshness.snapshot_in_use(), Some(time));
        freshness.connected(Kind::Service, start + SECOND);
        assert!(freshness.is_listing(start + 2 * SECOND, SECOND), "its list is on the way");
        assert!(!freshness.is_listing(start + 3 * SECOND, SECOND), "it is stuck");
        freshness.synced(Kind::Service);
        assert!(!freshness.is_listing(start + SECOND, SECOND), "it is complete");
        assert_eq!((freshness.snapshot_in_use(), freshness.confirmed(start + SECOND)), (Some(time), None));
        freshness.connected(Kind::Node, start + 3 * SECOND);
        freshness.synced(Kind::Node);
        assert_eq!(freshness.snapshot_in_use(), None, "ServiceCIDRs aren't waited for");
        assert_eq!(
            freshness.confirmed(start + 5 * SECOND),
            Some(4 * SECOND),
            "the kind that was confirmed longest ago"
        );
    }
}
