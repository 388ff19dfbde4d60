//! Ids in the names of chains and sets: the first 16 bytes of a SHA-256. Tenants choose what is hashed, so the id is too long for a
//! collision to be found.

use std::fmt;

use sha2::{Digest, Sha256};

/// The first 16 bytes of a SHA-256, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashId([u8; 16]);

// === impl HashId ===

impl HashId {
    /// The id of this content.
    pub fn of(content: &[u8]) -> Self {
        Self::of_digest(&Sha256::digest(content))
    }

    /// The id of the content with this SHA-256.
    pub fn of_digest(digest: &[u8]) -> Self {
        let mut half = [0; 16];
        for (to, from) in half.iter_mut().zip(digest) {
            *to = *from;
        }
        Self(half)
    }

    /// Reads the 32 hexadecimal digits; `None` for any other text, capital letters included.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u128::from_str_radix(text, 16).ok().filter(|_| plain).map(|id| Self(id.to_be_bytes()))
    }
}

impl fmt::Display for HashId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_and_other_texts_are_none() {
        // printf %s demo/web/tcp/http | sha256sum | cut -c1-32
        let text = "05d5e123421d5532bb46df639921dcaf";
        let id = HashId::of(b"demo/web/tcp/http");
        assert_eq!((id.to_string().as_str(), HashId::parse(text)), (text, Some(id)));
        let plus = format!("+{}", &text[1..]);
        for other in ["", &text[1..], &text.to_uppercase(), &format!("{text}0"), &plus] {
            assert_eq!(HashId::parse(other), None, "{other}");
        }
    }
}
