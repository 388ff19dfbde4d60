//! Exponential backoff with jitter, so that a thousand nodes don't return at the same moment.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Exponential backoff.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    doublings: u32,
}

/// Random numbers for jitter: the generator splitmix64, since nothing here has to be secret.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

// === impl Backoff ===

impl Backoff {
    /// A backoff that begins with this wait.
    pub fn new(first: Duration) -> Self {
        Self { first, doublings: 0 }
    }

    /// The next wait: the doubled one, at most `limit`, times a random factor from 1 to 2.
    pub fn next(&mut self, limit: Duration, jitter: &mut Jitter) -> Duration {
        let base = self.first.saturating_mul(2_u32.saturating_pow(self.doublings)).min(limit);
        // 2¹⁶ times the first wait is beyond any limit, and doesn't overflow.
        self.doublings = (self.doublings + 1).min(16);
        base.mul_f64(1.0 + jitter.fraction())
    }

    /// Begins again with the first wait.
    pub fn reset(&mut self) {
        self.doublings = 0;
    }
}

// === impl Jitter ===

impl Jitter {
    /// A generator seeded differently in each process.
    pub fn random() -> Self {
        // The keys of a hasher are the only source of randomness in the standard library.
        Self(RandomState::new().hash_one(0))
    }

    /// A reproducible generator.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number from 0 to 1, exclusive.
    pub fn fraction(&mut self) -> f64 {
        f64::from((self.roll() >> 32) as u32) / (f64::from(u32::MAX) + 1.0)
    }

    /// A number of the range; its start if it is empty.
    pub fn among(&mut self, range: &std::ops::Range<u64>) -> u64 {
        let width = range.end.saturating_sub(range.start).max(1);
        range.start + self.roll() % width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn doubles_up_to_the_limit_with_jitter() {
        let (mut backoff, mut jitter) = (Backoff::new(100 * MS), Jitter::seeded(7));
        for base in [100, 200, 400, 800, 1000, 1000, 1000] {
            let wait = backoff.next(1000 * MS, &mut jitter);
            assert!(wait >= base * MS && wait < 2 * base * MS, "{base}: {wait:?}");
        }
        assert!(backoff.next(8000 * MS, &mut jitter) >= 8000 * MS, "the limit is of each wait");
        backoff.reset();
        assert!(backoff.next(1000 * MS, &mut jitter) < 200 * MS);
    }

    #[test]
    fn never_overflows() {
        let mut backoff = Backoff::new(Duration::MAX / 4);
        for _ in 0..100 {
            assert!(backoff.next(1000 * MS, &mut Jitter::seeded(1)) <= 2000 * MS);
        }
    }

    #[test]
    fn jitter_spreads() {
        let mut jitter = Jitter::random();
        let rolls: Vec<u64> = (0..1000).map(|_| jitter.among(&(300..600))).collect();
        assert!(rolls.iter().all(|roll| (300..600).contains(roll)));
        assert!(rolls.iter().any(|roll| *roll < 400) && rolls.iter().any(|roll| *roll >= 500));
        assert_eq!(jitter.among(&(5..5)), 5);
        let mean = (0..1000).map(|_| jitter.fraction()).sum::<f64>() / 1000.0;
        assert!((0.4..0.6).contains(&mean), "{mean}");
    }
}
