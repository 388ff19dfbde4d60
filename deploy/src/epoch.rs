//! The time that a release's files bear.

use anyhow::{Context, Result};

/// The variable with seconds since 1970, by which builds are reproducible.
pub const VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// A time in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(pub i64);

// === impl Epoch ===

impl Epoch {
    /// The value of `SOURCE_DATE_EPOCH`.
    ///
    /// # Errors
    /// If the variable is absent, or no time.
    pub fn of_environment() -> Result<Self> {
        let text = std::env::var(VARIABLE).with_context(|| format!("reading {VARIABLE}"))?;
        let seconds = text.parse().with_context(|| format!("{VARIABLE}={text:?} is not a number of seconds"))?;
        Self(seconds).timestamp().map(|_| Self(seconds))
    }

    /// The date, as `2026-01-31`; empty if the number is no time.
    pub fn date(self) -> String {
        self.timestamp().map(|time| time.strftime("%Y-%m-%d").to_string()).unwrap_or_default()
    }

    /// The time, as `2026-01-31T12:00:00Z`; empty if the number is no time.
    pub fn time(self) -> String {
        self.timestamp().map(|time| time.to_string()).unwrap_or_default()
    }

    fn timestamp(self) -> Result<jiff::Timestamp> {
        jiff::Timestamp::from_second(self.0).with_context(|| format!("{VARIABLE}={}", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(Epoch(1_700_000_000).date(), "2023-11-14");
        assert_eq!(Epoch(1_700_000_000).time(), "2023-11-14T22:13:20Z");
        assert_eq!(Epoch(i64::MAX).date(), "");
    }
}
