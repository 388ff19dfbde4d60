//! How an IP family is doing, shared between the threads that know and the one that answers probes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferry_api::object::Family;

/// The pulse of one IP family. Each moment is kept as nanoseconds since the process's epoch, 0 for never.
#[derive(Debug)]
pub struct Pulse {
    epoch: Instant,
    /// the oldest change that no engine has taken yet
    queued: AtomicU64,
    /// the oldest change that an engine has taken and not made, or the first turn that failed
    taken: AtomicU64,
    /// when everything was last as it should be
    updated: AtomicU64,
}

/// The pulses of all families that run, and the judgement on them.
#[derive(Clone, Debug)]
pub struct Pulses {
    /// each family's
    pub families: Vec<(Family, Arc<Pulse>)>,
    /// a family whose oldest change waits so long is unhealthy: twice the sync period
    pub limit: Duration,
}

// === impl Pulses ===

impl Pulses {
    /// Whether the family of this pulse is healthy: no change has been waiting too long.
    pub fn is_healthy(&self, pulse: &Pulse, now: Instant) -> bool {
        pulse.waiting(now).is_none_or(|waiting| waiting < self.limit)
    }

    /// Whether all families are healthy, whatever load balancers are told of the node.
    pub fn are_healthy(&self, now: Instant) -> bool {
        self.families.iter().all(|(_, pulse)| self.is_healthy(pulse, now))
    }
}

// === impl Pulse ===

impl Pulse {
    /// A pulse that never beat. Moments before `epoch` count as `epoch`.
    pub fn new(epoch: Instant) -> Self {
        Self { epoch, queued: AtomicU64::new(0), taken: AtomicU64::new(0), updated: AtomicU64::new(0) }
    }

    /// A change is about to be handed to the engine. To be called before it is, so that the engine's taking of it
    /// can't come first and leave a change that waits for ever.
    pub fn queue(&self, now: Instant) {
        let _already_waiting = self.queued.compare_exchange(0, self.moment(now), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The engine has taken everything that was queued, or can't tell that what is in force is right.
    pub fn take(&self, now: Instant) {
        let queued = match self.queued.swap(0, Ordering::AcqRel) {
            0 => self.moment(now),
            queued => queued,
        };
        let _older_one_waits = self.taken.compare_exchange(0, queued, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The engine has made everything it had taken, or begins its work.
    pub fn update(&self, now: Instant) {
        self.taken.store(0, Ordering::Release);
        self.updated.store(self.moment(now), Ordering::Release);
    }

    /// How long the oldest change has been waiting.
    pub fn waiting(&self, now: Instant) -> Option<Duration> {
        let moments = [self.queued.load(Ordering::Acquire), self.taken.load(Ordering::Acquire)];
        let oldest = moments.into_iter().filter(|moment| *moment > 0).min()?;
        Some(Duration::from_nanos(self.moment(now).saturating_sub(oldest)))
    }

    /// How long ago everything was last as it should be.
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
