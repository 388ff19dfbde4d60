//! Parses and prints durations in Go's format, which configuration files and flags use: `1h30m`, `1.5s`, `0s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// The largest magnitude of a negative duration; a positive one is one less.
const LIMIT: u64 = 1 << 63;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A signed span of time in nanoseconds, read and printed by Go's rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// A text that is no duration; the wording is Go's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DurationError {
    /// not of the form, or out of range (about 292 years)
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// a number without a unit
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// a unit that isn't one of ns, us, µs, ms, s, m, h
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// the unit
        unit: String,
        /// the whole text
        text: String,
    },
}

// === impl GoDuration ===

impl GoDuration {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// A number of nanoseconds.
    pub const fn from_nanos(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// A number of milliseconds; what is too much for the type becomes its limit.
    pub const fn from_millis(milliseconds: i64) -> Self {
        Self(milliseconds.saturating_mul(MILLISECOND as i64))
    }

    /// A number of seconds; what is too much for the type becomes its limit.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(SECOND as i64))
    }

    /// Nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// True for zero, which many fields read as "not set".
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Whole seconds, for kernel parameters; a part of a second counts as one, and a negative duration as zero.
    pub fn whole_seconds(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0).div_ceil(SECOND)
    }

    /// The same for Rust's functions; a negative one becomes zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let invalid = || DurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.strip_prefix(['-', '+']) {
            Some(rest) => (text.starts_with('-'), rest),
            None => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total = 0u64;
        while !rest.is_empty() {
            let (part, after) = term(rest, text)?;
            total = total.checked_add(part).filter(|&sum| sum <= LIMIT).ok_or_else(invalid)?;
            rest = after;
        }
        if negative {
            return Ok(Self(0i64.wrapping_sub_unsigned(total)));
        }
        i64::try_from(total).map(Self).map_err(|_| invalid())
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        let small = |unit: u64, name: &str| format!("{sign}{}{name}", decimal(nanoseconds, unit));
        match nanoseconds {
            1..MICROSECOND => write!(f, "{sign}{nanoseconds}ns"),
            MICROSECOND..MILLISECOND => f.write_str(&small(MICROSECOND, "µs")),
            MILLISECOND..SECOND => f.write_str(&small(MILLISECOND, "ms")),
            // Zero, too, is a number of seconds.
            _ => {
                let (hours, minutes) = (nanoseconds / HOUR, nanoseconds % HOUR / MINUTE);
                f.write_str(sign)?;
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                write!(f, "{}s", decimal(nanoseconds % MINUTE, SECOND))
            }
        }
    }
}

/// Reads one number with its unit from the front of `rest`: its nanoseconds, and what follows.
fn term<'a>(rest: &'a str, text: &str) -> Result<(u64, &'a str), DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let (whole, after_whole) = digits(rest);
    let (fraction, after) = match after_whole.strip_prefix('.') {
        Some(after_point) => digits(after_point),
        None => ("", after_whole),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
    let (name, after) = after.split_at_checked(end).unwrap_or((after, ""));
    if name.is_empty() {
        return Err(DurationError::MissingUnit(text.to_owned()));
    }
    let unit = unit(name).ok_or_else(|| DurationError::UnknownUnit { unit: name.to_owned(), text: text.to_owned() })?;
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| invalid())? };
    let value = whole.checked_mul(unit).filter(|&value| value <= LIMIT).ok_or_else(invalid)?;
    let value = value.checked_add(fraction_of(fraction, unit)).filter(|&sum| sum <= LIMIT).ok_or_else(invalid)?;
    Ok((value, after))
}

/// The decimal digits at the front, and what follows.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// The value of the digits behind the point in nanoseconds. Computed in floating point like Go, so that the last nanosecond
/// is the same; digits that an i64 can't hold are left out.
fn fraction_of(digits: &str, unit: u64) -> u64 {
    let mut value = 0u64;
    let mut scale = 1f64;
    for digit in digits.bytes().map(|byte| u64::from(byte - b'0')) {
        match value.checked_mul(10).and_then(|value| value.checked_add(digit)).filter(|value| *value <= LIMIT) {
            Some(longer) => value = longer,
            None => break,
        }
        scale *= 10.0;
    }
    (value as f64 * (unit as f64 / scale)) as u64
}

fn unit(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => 1,
        // The two letters are U+00B5 (micro sign) and U+03BC (Greek mu).
        "us" | "µs" | "μs" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    })
}

/// `nanoseconds` in `unit`, with as many digits behind the point as are needed.
fn decimal(nanoseconds: u64, unit: u64) -> String {
    let (whole, part) = (nanoseconds / unit, nanoseconds % unit);
    if part == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    format!("{whole}.{}", format!("{part:0width$}").trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("+0", 0),
            ("-0", 0),
            ("0s", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("-5s", -5_000_000_000),
            ("5.0s", 5_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("-.5s", -500_000_000),
            ("10ns", 10),
            ("11us", 11_000),
            ("12µs", 12_000),
            ("12μs", 12_000),
            ("13ms", 13_000_000),
            ("15m", 900_000_000_000),
            ("24h0m0s", 86_400_000_000_000),
            ("1h15m30.918273645s", 4_530_918_273_645),
            ("1m1m", 120_000_000_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("9007199254.740993s", 9_007_199_254_740_993_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("9223372036854775806ns1ns", i64::MAX),
            ("-9223372036854775807ns1ns", i64::MIN),
            ("0.100000000000000000000h", 360_000_000_000),
            ("0.830103483285477580700h", 2_988_372_539_827),
        ] {
            assert_eq!(text.parse(), Ok(GoDuration::from_nanos(nanoseconds)), "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for (text, message) in [
            ("", r#"time: invalid duration """#),
            ("3", r#"time: missing unit in duration "3""#),
            ("30", r#"time: missing unit in duration "30""#),
            ("-", r#"time: invalid duration "-""#),
            ("s", r#"time: invalid duration "s""#),
            (".", r#"time: invalid duration ".""#),
            ("-.", r#"time: invalid duration "-.""#),
            (".s", r#"time: invalid duration ".s""#),
            ("+.s", r#"time: invalid duration "+.s""#),
            ("1d", r#"time: unknown unit "d" in duration "1d""#),
            ("30x", r#"time: unknown unit "x" in duration "30x""#),
            ("1h 2m", r#"time: unknown unit "h " in duration "1h 2m""#),
            ("--1s", r#"time: invalid duration "--1s""#),
            ("9223372036854775808ns", r#"time: invalid duration "9223372036854775808ns""#),
            ("3000000h", r#"time: invalid duration "3000000h""#),
            ("-9223372036854775809ns", r#"time: invalid duration "-9223372036854775809ns""#),
            ("99999999999999999999s", r#"time: invalid duration "99999999999999999999s""#),
            ("9223372036854775807ns1ns", r#"time: invalid duration "9223372036854775807ns1ns""#),
            ("-9223372036854775808ns1ns", r#"time: invalid duration "-9223372036854775808ns1ns""#),
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap_err().to_string(), message);
        }
    }

    /// Two terms of 2^63 add up to 0 in 64 bits, for which Go takes them.
    #[test]
    fn a_sum_that_wraps_is_refused() {
        let text = "-9223372036854775808ns9223372036854775808ns";
        assert_eq!(text.parse::<GoDuration>(), Err(DurationError::Invalid(text.to_owned())));
    }

    #[test]
    fn prints_what_go_prints() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (100_000_000, "100ms"),
            (1_500_000_000, "1.5s"),
            (30_000_000_000, "30s"),
            (900_000_000_000, "15m0s"),
            (86_400_000_000_000, "24h0m0s"),
            (3_723_000_000_000, "1h2m3s"),
            (60_001_000_000, "1m0.001s"),
            (-1_000_000_000, "-1s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(GoDuration::from_nanos(nanoseconds).to_string(), text);
        }
    }

    #[test]
    fn a_part_of_a_second_counts_as_a_whole_one() {
        for (nanoseconds, seconds) in [
            (0, 0),
            (1, 1),
            (999_999_999, 1),
            (1_000_000_000, 1),
            (1_000_000_001, 2),
            (90_000_000_000, 90),
            (-1, 0),
            (-5_000_000_000, 0),
            (i64::MAX, 9_223_372_037),
        ] {
            assert_eq!(GoDuration::from_nanos(nanoseconds).whole_seconds(), seconds, "{nanoseconds}");
        }
    }

    #[test]
    fn negative_is_no_time_for_rust() {
        assert_eq!(GoDuration::from_secs(-1).to_std(), Duration::ZERO);
        assert_eq!(GoDuration::from_millis(1500).to_std(), Duration::from_millis(1500));
    }
}
