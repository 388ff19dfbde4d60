//! Results of periodic tests of the data path.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferry_api::object::Family;

/// The last tests of each family.
#[derive(Debug, Default)]
pub struct DataPath(Mutex<BTreeMap<Family, TestState>>);

/// The last tests of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestState {
    /// the moment of the last one
    pub at: Instant,
    /// its duration, or why it failed
    pub result: Result<Duration, String>,
    /// the number of failures in a row
    pub failures: u32,
}

/// Failures in a row that make a family unhealthy: one may be caused by another program that is replacing its rules.
const FAILURES: u32 = 3;

// === impl DataPath ===

impl DataPath {
    /// Takes the result of a test; returns why the family is unhealthy, if it is.
    pub fn note(&self, family: Family, result: Result<Duration, String>, at: Instant) -> Option<String> {
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = families.get(&family).map_or(0, |state| state.failures);
        let failures = if result.is_ok() { 0 } else { before.saturating_add(1) };
        let state = TestState { at, result, failures };
        let why = state.result.clone().err().filter(|_| state.is_failing());
        families.insert(family, state);
        why
    }

    /// The states of all families that were tested.
    pub fn states(&self) -> BTreeMap<Family, TestState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True unless a family fails; true without periodic tests.
    pub fn is_healthy(tests: Option<&Self>) -> bool {
        tests.is_none_or(|tests| {
            !tests.0.lock().unwrap_or_else(PoisonError::into_inner).values().any(TestState::is_failing)
        })
    }
}

// === impl TestState ===

impl TestState {
    /// True if so many tests in a row have failed that it is no moment's fault.
    pub fn is_failing(&self) -> bool {
        self.failures >= FAILURES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_are_unhealthy_until_a_success() {
        let (path, now) = (DataPath::default(), Instant::now());
        let fail = |family| path.note(family, Err("dropped".to_owned()), now);
        assert!(DataPath::is_healthy(Some(&path)));
        assert_eq!((fail(Family::V4), fail(Family::V6), fail(Family::V4)), (None, None, None));
        assert!(DataPath::is_healthy(Some(&path)));
        assert_eq!(fail(Family::V4), Some("dropped".to_owned()));
        assert!(!DataPath::is_healthy(Some(&path)));
        assert_eq!(path.note(Family::V4, Ok(Duration::ZERO), now), None);
        assert!(DataPath::is_healthy(Some(&path)));
        assert_eq!((fail(Family::V6), fail(Family::V4)), (None, None));
        assert_eq!(path.states()[&Family::V6].failures, 2);
    }
}
