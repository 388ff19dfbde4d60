//! Percent-encoding of names and values in the query of a URL.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Encodes a name or value: all bytes but the unreserved characters of RFC 3986.
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

/// Decodes a name or value: a plus is a space, `%41` an A; what isn't valid stays as it is.
pub fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains(['+', '%']) {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match (byte, tail) {
            (b'%', [high, low, tail @ ..]) if let Some(coded) = hexadecimal(*high, *low) => {
                bytes.push(coded);
                rest = tail;
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

fn hexadecimal(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_texts_are_decoded_again() {
        for text in ["svc shop/web", "10.0.0.1 -> 10.96.0.1:53/UDP", "100%+\u{e4}&=", "-._~"] {
            assert_eq!(decoded(&encoded(text)), text);
        }
        assert_eq!(encoded("a b/-._~"), "a%20b%2F-._~");
    }
}
