//! Age of pending changes per IP family, shared between the engines' threads and the one that answers probes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferry_api::object::Family;

/// Pending changes of one IP family. Each moment is stored as nanoseconds since the process's epoch, 0 for never.
#[derive(Debug)]
pub struct Pulse {
    epoch: Instant,
    /// time of the oldest change that the engine hasn't taken yet
    queued: AtomicU64,
    /// time of the oldest change that the engine has taken and not committed, or of the first failed sync pass
    taken: AtomicU64,
    /// last time without pending changes
    updated: AtomicU64,
}

/// The pulses of all served families, and their health.
#[derive(Clone, Debug)]
pub struct Pulses {
    /// each family's
    pub families: Vec<(Family, Arc<Pulse>)>,
    /// longest wait of a change in a healthy family: twice the sync period
    pub limit: Duration,
}

// === impl Pulses ===

impl Pulses {
    /// True if the family of this pulse is healthy: no change has been pending too long.
    pub fn is_healthy(&self, pulse: &Pulse, now: Instant) -> bool {
        pulse.waiting(now).is_none_or(|waiting| waiting < self.limit)
    }

    /// True if all families are healthy, regardless of the node's eligibility for load balancers.
    pub fn are_healthy(&self, now: Instant) -> bool {
        self.families.iter().all(|(_, pulse)| self.is_healthy(pulse, now))
    }
}

// === impl Pulse ===

impl Pulse {
    /// A pulse without a change. Moments before `epoch` count as `epoch`.
    pub fn new(epoch: Instant) -> Self {
        Self { epoch, queued: AtomicU64::new(0), taken: AtomicU64::new(0), updated: AtomicU64::new(0) }
    }

    /// Notes a change for the engine. To be called before the change is handed over: after it, the engine might have taken it
    /// already, and the change would seem pending for ever.
    pub fn queue(&self, now: Instant) {
        let _already_waiting = self.queued.compare_exchange(0, self.moment(now), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The engine has taken everything that was queued, or can't verify the actual state.
    pub fn take(&self, now: Instant) {
        let queued = match self.queued.swap(0, Ordering::AcqRel) {
            0 => self.moment(now),
            queued => queued,
        };
        let _older_one_waits = self.taken.compare_exchange(0, queued, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The engine has committed everything it had taken, or starts.
    pub fn update(&self, now: Instant) {
        self.taken.store(0, Ordering::Release);
        self.updated.store(self.moment(now), Ordering::Release);
    }

    /// Time that the oldest change has been pending.
    pub fn waiting(&self, now: Instant) -> Option<Duration> {
        let moments = [self.queued.load(Ordering::Acquire), self.taken.load(Ordering::Acquire)];
        let oldest = moments.into_iter().filter(|moment| *moment > 0).min()?;
        Some(Duration::from_nanos(self.moment(now).saturating_sub(oldest)))
    }

    /// Time since there was last no pending change.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        match self.updated.load(Ordering::Acquire) {
            0 => None,
            updated => Some(Duration::from_nanos(self.moment(now).saturating_sub(updated))),
        }
    }

    fn moment(&self, now: Instant) -> u64 {
        let nanoseconds = now.saturating_duration_since(self.epoch).as_nanos();
        u64::try_from(nanoseconds).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_change_waits_until_it_is_made() {
        let start = Instant::now();
        let pulse = Pulse::new(start);
        assert_eq!((pulse.waiting(start), pulse.age(start)), (None, None));
        pulse.queue(start + SECOND);
        pulse.queue(start + 2 * SECOND);
        assert_eq!(pulse.waiting(start + 4 * SECOND), Some(3 * SECOND));
        pulse.take(start + 4 * SECOND);
        assert_eq!(pulse.waiting(start + 5 * SECOND), Some(4 * SECOND));
        pulse.update(start + 6 * SECOND);
        assert_eq!(pulse.waiting(start + 7 * SECOND), None);
        assert_eq!(pulse.age(start + 7 * SECOND), Some(SECOND));
    }

    #[test]
    fn a_change_during_a_sync_waits_on() {
        let start = Instant::now();
        let pulse = Pulse::new(start);
        pulse.queue(start + SECOND);
        pulse.take(start + SECOND);
        pulse.queue(start + 2 * SECOND);
        pulse.update(start + 3 * SECOND);
        assert_eq!(pulse.waiting(start + 4 * SECOND), Some(2 * SECOND));
    }

    #[test]
    fn a_failed_sync_keeps_the_oldest_change() {
        let start = Instant::now();
        let pulse = Pulse::new(start);
        pulse.queue(start + SECOND);
        pulse.take(start + SECOND);
        pulse.queue(start + 5 * SECOND);
        pulse.take(start + 5 * SECOND);
        assert_eq!(pulse.waiting(start + 9 * SECOND), Some(8 * SECOND));
    }
}
