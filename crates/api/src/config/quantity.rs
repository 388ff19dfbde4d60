//! Kubernetes' quantities (`512`, `1Ki`, `1.5M`), as far as a buffer size needs them.

/// Whether a text is a quantity: a signed decimal number, then a binary, decimal or exponent suffix or none.
pub(super) fn is_valid(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let Some((number, suffix)) = unsigned.split_at_checked(end) else { return false };
    let is_number = number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
    is_number && is_suffix(suffix)
}

/// Whether a quantity is none at all; what is no quantity is not zero.
pub(super) fn is_zero(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+']);
    is_valid(text)
        && digits
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
            .all(|byte| matches!(byte, b'0' | b'.'))
}

fn is_suffix(suffix: &str) -> bool {
    let known = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    known.contains(&suffix) || suffix.strip_prefix(['e', 'E']).is_some_and(|power| power.parse::<i32>().is_ok())
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
}
