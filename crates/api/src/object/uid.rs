//! metadata.uid of an object, a UUID, in sixteen bytes.

use std::fmt;
use std::num::NonZeroU64;

/// metadata.uid of an object: the UUID that an API server assigns. An `Option` of it takes no more memory, since every Service
/// has one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid {
    /// the first half; it holds the version of the UUID, which is never 0
    high: NonZeroU64,
    low: u64,
}

/// Positions of the hyphens.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

impl Uid {
    /// Parses a UUID in the API server's format: lower case, with hyphens. `None` for anything else, so that printing restores
    /// the text.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 36 {
            return None;
        }
        let mut value = 0_u128;
        for (at, byte) in text.bytes().enumerate() {
            let digit = match byte {
                b'-' if HYPHENS.contains(&at) => continue,
                _ if HYPHENS.contains(&at) => return None,
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                _ => return None,
            };
            value = value << 4 | u128::from(digit);
        }
        let high = NonZeroU64::new((value >> 64) as u64)?;
        Some(Self { high, low: value as u64 })
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (high, low) = (self.high.get(), self.low);
        let (first, second, third) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
        write!(f, "{first:08x}-{second:04x}-{third:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const _: () = assert!(size_of::<Option<Uid>>() == 16);

    #[test]
    fn what_is_read_is_written() {
        for text in [
            "01234567-89ab-4def-8123-456789abcdef",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "00000000-0000-1000-0000-000000000000",
            "c0ffee00-0001-4002-8003-000000000004",
        ] {
            let written = Uid::parse(text).map(|uid| [uid.to_string(), format!("{uid:?}")]);
            assert_eq!(written, Some([text.to_owned(), text.to_owned()]));
        }
    }

    #[test]
    fn what_is_no_uuid() {
        for text in [
            "",
            "web",
            "00000000-0000-0000-0000-000000000000",
            "01234567-89AB-4def-8123-456789abcdef",
            "0123456789ab4def8123456789abcdef",
            "01234567-89ab-4def-8123-456789abcde",
            "01234567-89ab-4def-8123-456789abcdef0",
            "0123456-789ab-4def-8123-456789abcdef",
            "0123456789abc-4def-8123-456789abcdef",
            "01234567-89ab-4def-812304567-9abcdef",
            "012345678901234567890123456789012345",
            "01234567-89ab-4def-8123-4567-9abcdef",
            "01234567-89ab-4def-8123-456789abcdeg",
            "01234567-89ab-4def-8123-456789abcdé",
        ] {
            assert_eq!(Uid::parse(text), None, "{text}");
        }
    }
}
