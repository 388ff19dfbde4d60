//! Waits for conditions, with limits scaled to the machine.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Waits until a condition holds, and returns the time it took.
///
/// # Panics
/// If it doesn't hold within the limit.
pub fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < slowly(limit), "{what}: not after {:?}", start.elapsed());
    }
    start.elapsed()
}

/// True if a condition holds within the limit.
pub fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > slowly(limit) {
            return false;
        }
    }
    true
}

/// Scales a time limit to this machine: `FERRY_SLOWNESS` is its slowdown factor, for virtual machines.
pub fn slowly(limit: Duration) -> Duration {
    static SLOWNESS: OnceLock<u32> = OnceLock::new();
    let slowness = SLOWNESS.get_or_init(|| match std::env::var("FERRY_SLOWNESS") {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("FERRY_SLOWNESS={text}: {error}")),
        Err(_) => 1,
    });
    limit * *slowness
}
