//! Client-side rate limit: one token bucket for all requests.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const DEFAULT_QPS: f32 = 5.0;
const DEFAULT_BURST: i32 = 10;

/// Token bucket of `burst` tokens, refilled with `qps` a second. A request waits for its token; requests are served in their
/// order.
#[derive(Debug)]
pub(super) struct RateLimit {
    /// `None` for no limit
    bucket: Option<Mutex<Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    per_second: f64,
    capacity: f64,
    /// negative: reserved by waiting requests
    tokens: f64,
    filled: Instant,
}

// === impl RateLimit ===

impl RateLimit {
    /// A negative `qps` means no limit; `burst` is at least 1. 0 of either means upstream's default.
    pub(super) fn new(qps: f32, burst: i32) -> Self {
        let qps = if qps == 0.0 { DEFAULT_QPS } else { qps };
        let burst = if burst == 0 { DEFAULT_BURST } else { burst };
        let capacity = f64::from(burst.max(1));
        let bucket = Bucket { per_second: f64::from(qps), capacity, tokens: capacity, filled: Instant::now() };
        Self { bucket: (qps > 0.0).then(|| Mutex::new(bucket)) }
    }

    /// A full bucket with the same settings.
    pub(super) fn another(&self) -> Self {
        let bucket = self.bucket.as_ref().map(|bucket| {
            let Bucket { per_second, capacity, .. } = *bucket.lock().unwrap_or_else(PoisonError::into_inner);
            Mutex::new(Bucket { per_second, capacity, tokens: capacity, filled: Instant::now() })
        });
        Self { bucket }
    }

    /// Waits for a token; returns the time waited.
    pub(super) async fn turn(&self) -> Duration {
        let wait = self.bucket.as_ref().map_or(Duration::ZERO, |bucket| {
            bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now())
        });
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        wait
    }
}

// === impl Bucket ===

impl Bucket {
    /// Takes a token; returns the time until it is available.
    fn take(&mut self, now: Instant) -> Duration {
        let grown = now.saturating_duration_since(self.filled).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + grown).min(self.capacity) - 1.0;
        self.filled = now;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        // With a tiny rate the time exceeds the range of Duration.
        Duration::try_from_secs_f64(-self.tokens / self.per_second).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket { per_second: 5.0, capacity: 3.0, tokens: 3.0, filled: start };
        let waits: Vec<u128> = (0..5).map(|_| bucket.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400]);
        // Half a second later two of them have had their turn and half a token is there.
        assert_eq!(bucket.take(start + Duration::from_millis(500)).as_millis(), 100);
        // A long rest doesn't fill it over the burst.
        let later = start + Duration::from_secs(100);
        let waits: Vec<u128> = (0..4).map(|_| bucket.take(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200]);
    }

    #[test]
    fn another_is_full() {
        let limit = RateLimit::new(2.0, 3);
        let take = |limit: &RateLimit| limit.bucket.as_ref().unwrap().lock().unwrap().take(Instant::now());
        (0..3).for_each(|_| assert!(take(&limit).is_zero()));
        assert!(!take(&limit).is_zero());
        let another = limit.another();
        (0..3).for_each(|_| assert!(take(&another).is_zero()));
        assert!(!take(&another).is_zero());
        assert!(RateLimit::new(-1.0, 3).another().bucket.is_none());
    }

    #[test]
    fn no_limit() {
        assert!(RateLimit::new(-1.0, 10).bucket.is_none());
        assert!(RateLimit::new(-0.1, 0).bucket.is_none());
    }

    #[test]
    fn zero_is_the_default() {
        for (qps, burst, wanted) in [
            (0.0, 0, (5.0, 10.0)),
            (-0.0, 3, (5.0, 3.0)),
            (2.5, 0, (2.5, 10.0)),
            (7.0, 1, (7.0, 1.0)),
            (7.0, -4, (7.0, 1.0)),
        ] {
            let bucket = RateLimit::new(qps, burst).bucket.unwrap().into_inner().unwrap();
            assert_eq!((bucket.per_second, bucket.capacity), wanted, "{qps} {burst}");
            assert!(bucket.tokens >= bucket.capacity);
        }
    }

    #[test]
    fn a_tiny_rate_waits_and_doesnt_overflow() {
        let now = Instant::now();
        let mut bucket = Bucket { per_second: 1e-300, capacity: 1.0, tokens: 0.0, filled: now };
        assert_eq!(bucket.take(now), Duration::MAX);
    }
}
