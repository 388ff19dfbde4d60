//! Staleness of the known objects per kind, shared between the source and the threads that answer probes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferry_api::object::Kind;

/// Freshness of every kind that a source follows. Moments before `epoch` count as `epoch`.
#[derive(Debug)]
pub struct Freshness {
    epoch: Instant,
    kinds: Vec<(Kind, Cell)>,
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
        Self { epoch, kinds: kinds.iter().map(|kind| (*kind, Cell::default())).collect() }
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
}
