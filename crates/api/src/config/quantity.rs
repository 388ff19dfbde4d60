//! Parses and normalises Kubernetes' quantities (`512`, `1Ki`, `1.5M`), as far as the size of the log buffer needs them.

/// The powers of a thousand, from -3 on.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// The powers of 1024, from the first on.
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// The power of ten of the smallest suffix.
const NANO: i32 = -9;

/// True if the text is a quantity: a signed decimal number, then a binary, decimal or exponent suffix or none.
pub(super) fn is_valid(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let Some((number, suffix)) = unsigned.split_at_checked(end) else { return false };
    let is_number = number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
    is_number && is_suffix(suffix)
}

/// True if the quantity is zero; a malformed one is not.
pub(super) fn is_zero(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+']);
    is_valid(text)
        && digits
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
            .all(|byte| matches!(byte, b'0' | b'.'))
}

/// A quantity in the form that upstream writes it in; nothing if the text isn't one.
pub fn canonical_quantity(text: &str) -> Option<String> {
    is_valid(text).then(|| canonical(text))
}

/// The form that upstream writes a quantity in: one that needs no shorter number stays as it is; any other loses its
/// fraction and gets the largest suffix that keeps it a whole number. A binary one that is less than 1Ki, or no whole number
/// of bytes, gets a decimal suffix; the largest is 2^63-1. What is too large for 127 bits stays, too.
pub(super) fn canonical(text: &str) -> String {
    reduced(text).unwrap_or_else(|| text.to_owned())
}

/// `None` where the text stays.
fn reduced(text: &str) -> Option<String> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let sign = if text.starts_with('-') { "-" } else { "" };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at_checked(end)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let whole = Some(whole.trim_start_matches('0')).filter(|whole| !whole.is_empty()).unwrap_or("0");
    let digits = format!("{whole}{part}");
    let value: i128 = digits.parse().ok()?;
    let places = i32::try_from(part.len()).ok()?;
    let positive = if value == 0 {
        "0".to_owned()
    } else if let Some(at) = BINARY.iter().position(|known| *known == suffix) {
        // Upstream keeps what it reads without a large number: up to 14 digits, three less for each power.
        if places == 0 && value % 8 != 0 && digits.len() + 3 * at <= 11 {
            return None;
        }
        binary(value, places, u32::try_from(at + 1).ok()?)?
    } else {
        let scale = match DECIMAL.iter().position(|known| *known == suffix) {
            Some(at) => 3 * (i32::try_from(at).ok()? - 3),
            None => suffix.get(1..)?.parse().ok()?,
        };
        let scale = scale.checked_sub(places)?;
        let is_small = digits.len() <= 18 && scale >= NANO;
        if is_small && scale % 3 == 0 && value % 1000 != 0 && !digits.starts_with('0') {
            return None;
        }
        decimal(value, scale, suffix.starts_with(['e', 'E']))?
    };
    Some(if positive == "0" { positive } else { format!("{sign}{positive}") })
}

/// A number with `places` digits behind the point, times 1024 to the power; 2^63-1 if it is larger.
fn binary(value: i128, places: i32, power: u32) -> Option<String> {
    const LARGEST: i128 = i64::MAX as i128;
    let (bytes, scale) = rounded(value.checked_mul(1024i128.checked_pow(power)?)?, -places);
    let unit = 10i128.checked_pow(scale.unsigned_abs())?;
    let bytes = bytes.min(LARGEST.checked_mul(unit)?);
    // No binary suffix fits.
    if bytes < 1024 * unit || bytes % unit != 0 {
        return decimal(bytes, scale, false);
    }
    let mut number = bytes / unit;
    let mut power = 0usize;
    while number % 1024 == 0 {
        number /= 1024;
        power += 1;
    }
    let suffix = power.checked_sub(1).and_then(|at| BINARY.get(at)).copied().unwrap_or_default();
    Some(format!("{number}{suffix}"))
}

/// A number times ten to the power of `scale`, rounded up to the smallest suffix there is.
fn rounded(mut value: i128, mut scale: i32) -> (i128, i32) {
    while scale < NANO && value > 1 {
        value = value / 10 + i128::from(value % 10 != 0);
        scale += 1;
    }
    (value, scale.max(NANO))
}

/// A number times ten to the power of `scale`, which becomes a multiple of three.
fn decimal(value: i128, scale: i32, is_exponent: bool) -> Option<String> {
    let (mut value, mut scale) = rounded(value, scale);
    while value % 10 == 0 {
        value /= 10;
        scale = scale.checked_add(1)?;
    }
    while scale % 3 != 0 {
        value = value.checked_mul(10)?;
        scale = scale.checked_sub(1)?;
    }
    if is_exponent {
        let exponent = if scale == 0 { String::new() } else { format!("e{scale}") };
        return Some(format!("{value}{exponent}"));
    }
    let suffix = DECIMAL.get(usize::try_from(scale / 3 + 3).ok()?)?;
    Some(format!("{value}{suffix}"))
}

fn is_suffix(suffix: &str) -> bool {
    DECIMAL.contains(&suffix)
        || BINARY.contains(&suffix)
        || suffix.strip_prefix(['e', 'E']).is_some_and(|power| power.parse::<i32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        for (text, valid, zero) in [
            ("0", true, true),
            ("0Ki", true, true),
            ("+0.00", true, true),
            ("512", true, false),
            ("1Ki", true, false),
            ("1.5M", true, false),
            (".5", true, false),
            ("1e3", true, false),
            ("0E10", true, true),
            ("", false, false),
            ("Ki", false, false),
            ("1KB", false, false),
            ("1 Ki", false, false),
            ("1.2.3", false, false),
            ("abc", false, false),
        ] {
            assert_eq!((is_valid(text), is_zero(text)), (valid, zero), "{text:?}");
        }
    }

    #[test]
    fn canonical_forms() {
        for (text, wanted) in [
            ("0", "0"),
            ("-0.0Ki", "0"),
            ("512", "512"),
            ("1024", "1024"),
            ("1000", "1k"),
            ("1000000", "1M"),
            ("1500k", "1500k"),
            ("1.5M", "1500k"),
            ("0.5", "500m"),
            ("0.500", "500m"),
            ("1.500", "1.500"),
            ("1.5000", "1500m"),
            ("5.0", "5"),
            ("-2.50", "-2500m"),
            ("0.0000000001", "1n"),
            ("0.0000000020", "2n"),
            ("-0.0000000021", "-3n"),
            ("15e-10", "2e-9"),
            ("1.000000001", "1.000000001"),
            ("1.000000000015", "1000000001n"),
            ("+123456789012345678", "+123456789012345678"),
            ("+1234567890123456789", "1234567890123456789"),
            ("1Ki", "1Ki"),
            ("1025Ki", "1025Ki"),
            ("1024Ki", "1Mi"),
            ("8Ki", "8Ki"),
            ("1.5Ki", "1536"),
            ("0.5Ki", "512"),
            ("2.5Mi", "2560Ki"),
            ("1.0Ki", "1Ki"),
            ("0.9765625Ki", "1k"),
            ("0.3Ki", "307200m"),
            ("1.3Ki", "1331200m"),
            ("0.12Gi", "128849018880m"),
            ("1.99999999999999Ki", "2Ki"),
            ("8.0000000000000001Ki", "8192000000001n"),
            ("0.00000000000001Ki", "1n"),
            ("+99999999999Ki", "+99999999999Ki"),
            ("+123456789012Ki", "123456789012Ki"),
            ("+12345678Mi", "+12345678Mi"),
            ("+123456789Mi", "123456789Mi"),
            ("+7Ei", "7Ei"),
            ("166153499473114484112975882535.043071Ki", "9223372036854775807"),
            ("8Ei", "9223372036854775807"),
            ("-1024Ei", "-9223372036854775807"),
            ("1e3", "1e3"),
            ("1E4", "10e3"),
            ("10e2", "1e3"),
            ("1000e0", "1e3"),
            ("99999999999999999999999999999999999999999", "99999999999999999999999999999999999999999"),
        ] {
            assert_eq!(canonical(text), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_has_no_form() {
        assert_eq!(canonical_quantity("1.5M"), Some("1500k".to_owned()));
        assert_eq!(canonical_quantity("1.5Ki"), Some("1536".to_owned()));
        for text in ["", "Ki", "1KB", "1.2.3"] {
            assert_eq!(canonical_quantity(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_no_number_holds_stays() {
        for text in ["166153499473114484112975882535043072Ki", "10e2147483647", "1e2147483648"] {
            assert_eq!(canonical(text), text);
        }
        assert_eq!(canonical("1e-2147483648"), "1e-9");
    }
}
