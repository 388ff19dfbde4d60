//! Parses RFC 3339 timestamps, the format of metadata.creationTimestamp.

use crate::object::Timestamp;

const DAY_SECONDS: i64 = 86_400;

/// Reads an RFC 3339 timestamp (`2024-05-01T12:00:00.5+02:00`); `None` if it is none. Digits behind the ninth of a
/// second are cut off; a leap second counts as the second behind it.
pub fn parse_timestamp(text: &str) -> Option<Timestamp> {
    let mut rest = text.as_bytes();
    let year = number(&mut rest, 4)?;
    literal(&mut rest, b"-")?;
    let month = number(&mut rest, 2)?;
    literal(&mut rest, b"-")?;
    let day = number(&mut rest, 2)?;
    literal(&mut rest, b"Tt")?;
    let hour = number(&mut rest, 2)?;
    literal(&mut rest, b":")?;
    let minute = number(&mut rest, 2)?;
    literal(&mut rest, b":")?;
    let second = number(&mut rest, 2)?;
    let nanoseconds = fraction(&mut rest)?;
    let offset = offset_seconds(&mut rest)?;
    let valid = (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60
        && rest.is_empty();
    let time_of_day = hour * 3600 + minute * 60 + second;
    valid.then(|| Timestamp {
        seconds: days_since_1970(year, month, day) * DAY_SECONDS + time_of_day - offset,
        nanoseconds,
    })
}

/// The RFC 3339 text of a timestamp, which [`parse_timestamp`] reads; `None` outside the years 0 to 9999, which have no text.
pub(crate) fn format_timestamp(timestamp: Timestamp) -> Option<String> {
    let (days, second) = (timestamp.seconds.div_euclid(DAY_SECONDS), timestamp.seconds.rem_euclid(DAY_SECONDS));
    let (year, month, day) = date(days);
    let fraction = match timestamp.nanoseconds {
        0 => String::new(),
        nanoseconds => format!(".{nanoseconds:09}"),
    };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    (0..10_000)
        .contains(&year)
        .then(|| format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z"))
}

/// The date of a day in the Gregorian calendar: year, month and day of the month; the inverse of [`days_since_1970`].
fn date(days: i64) -> (i64, i64, i64) {
    // Years begin in March here, so that the leap day is a year's last.
    let since_0000_03_01 = days.saturating_add(719_468);
    let (era, day) = (since_0000_03_01.div_euclid(146_097), since_0000_03_01.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day_of_month)
}

/// The point in time this number of seconds after 1970; `None` outside the years 1 to 9999, as in texts.
pub(super) fn timestamp_of(seconds: i64) -> Option<Timestamp> {
    let years_1_to_9999 = days_since_1970(1, 1, 1) * DAY_SECONDS..days_since_1970(10_000, 1, 1) * DAY_SECONDS;
    years_1_to_9999.contains(&seconds).then_some(Timestamp { seconds, nanoseconds: 0 })
}

/// Takes exactly this number of digits.
fn number(rest: &mut &[u8], digits: usize) -> Option<i64> {
    let (head, tail) = rest.split_at_checked(digits)?;
    let value =
        head.iter().try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))?;
    *rest = tail;
    Some(value)
}

/// Takes one of these bytes.
fn literal(rest: &mut &[u8], any_of: &[u8]) -> Option<u8> {
    let (first, tail) = rest.split_first()?;
    *rest = tail;
    any_of.contains(first).then_some(*first)
}

/// Takes a point and digits, if there are any; `None` for a point without digits.
fn fraction(rest: &mut &[u8]) -> Option<u32> {
    let Some(tail) = rest.strip_prefix(b".") else { return Some(0) };
    let count = tail.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, tail) = tail.split_at_checked(count)?;
    *rest = tail;
    (count > 0).then(|| {
        digits.iter().chain(std::iter::repeat(&b'0')).take(9).fold(0, |value, byte| value * 10 + u32::from(byte - b'0'))
    })
}

/// Takes `Z` or an offset from UTC.
fn offset_seconds(rest: &mut &[u8]) -> Option<i64> {
    let sign = match literal(rest, b"Zz+-")? {
        b'+' => 1,
        b'-' => -1,
        _ => return Some(0),
    };
    let hours = number(rest, 2)?;
    literal(rest, b":")?;
    let minutes = number(rest, 2)?;
    (hours < 24 && minutes < 60).then(|| sign * (hours * 3600 + minutes * 60))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days of the Gregorian calendar, counted in years that begin in March, so that the leap day is the last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // Months from March on have 31 30 31 30 31, 31 30 31 30 31, 31 … days: 153 in five.
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + leap_days + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps() {
        for (text, seconds, nanoseconds) in [
            ("1970-01-01T00:00:00Z", 0, 0),
            ("1969-12-31T23:59:59Z", -1, 0),
            ("2000-02-29T12:00:00Z", 951_825_600, 0),
            ("2024-02-29T00:00:00Z", 1_709_164_800, 0),
            ("2024-05-01T12:00:00+02:00", 1_714_557_600, 0),
            ("2024-05-01T10:00:00.5Z", 1_714_557_600, 500_000_000),
            ("2024-05-01t10:00:00.123456789123z", 1_714_557_600, 123_456_789),
            ("2024-05-01T04:30:00-05:30", 1_714_557_600, 0),
            ("0001-01-01T00:00:00Z", -62_135_596_800, 0),
            ("9999-12-31T23:59:59Z", 253_402_300_799, 0),
        ] {
            assert_eq!(parse_timestamp(text), Some(Timestamp { seconds, nanoseconds }), "{text}");
        }
    }

    #[test]
    fn seconds_outside_the_calendar() {
        for seconds in [-62_135_596_800, -1, 0, 253_402_300_799] {
            assert_eq!(timestamp_of(seconds), Some(Timestamp { seconds, nanoseconds: 0 }));
        }
        for seconds in [-62_135_596_801, 253_402_300_800, i64::MIN, i64::MAX] {
            assert_eq!(timestamp_of(seconds), None);
        }
    }

    #[test]
    fn not_timestamps() {
        for text in [
            "",
            "2024-05-01",
            "2024-05-01T12:00:00",
            "2024-05-01 12:00:00Z",
            "2024-13-01T12:00:00Z",
            "2023-02-29T12:00:00Z",
            "1900-02-29T12:00:00Z",
            "2024-05-00T12:00:00Z",
            "2024-05-32T12:00:00Z",
            "2024-04-31T12:00:00Z",
            "2024-06-31T12:00:00Z",
            "2024-09-31T12:00:00Z",
            "2024-11-31T12:00:00Z",
            "2024-05-01T24:00:00Z",
            "2024-05-01T12:60:00Z",
            "2024-05-01T12:00:61Z",
            "2024-05-01T12:00:00.Z",
            "2024-05-01T12:00:00Zx",
            "2024-05-01T12:00:00+2:00",
            "2024-05-01T12:00:00+24:00",
            "2024-05-01T12:00:00+02:60",
            "+024-05-01T12:00:00Z",
            "２024-05-01T12:00:00Z",
        ] {
            assert_eq!(parse_timestamp(text), None, "{text}");
        }
    }
}
