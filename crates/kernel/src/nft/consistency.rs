//! Decides whether an nf_tables dump is consistent despite concurrent commits.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::time::Duration;

use super::decode;
use super::wire::{self, msg};
use crate::netlink::{AnswerObjects, nfnetlink};

/// Increment of the wait between attempts while the kernel resizes a set.
const REHASH_PAUSE: Duration = Duration::from_millis(2);

/// The attempts at one dump.
///
/// A dump is consistent if it was not interrupted, or if two in a row are identical: commits of other programs change the
/// generation, but not the dumped table. And no element may occur twice: the kernel continues a dump by skipping as many
/// elements as it has sent, so that elements are missed, and as many are duplicated, while a hash set that has just grown is
/// rehashed into a larger table.
#[derive(Debug, Default)]
pub(super) struct DumpAttempts {
    attempts: u32,
    previous: Option<u64>,
}

// === impl DumpAttempts ===

impl DumpAttempts {
    /// True if this attempt is consistent. Waits a moment after an attempt with a duplicated element.
    pub(super) fn is_consistent(&mut self, objects: &AnswerObjects) -> io::Result<bool> {
        let attempt = self.attempts;
        self.attempts += 1;
        if has_duplicates(objects)? {
            std::thread::sleep(REHASH_PAUSE.saturating_mul(attempt));
            return Ok(false);
        }
        if !objects.interrupted {
            return Ok(true);
        }
        let digest = digest(objects);
        Ok(self.previous.replace(digest) == Some(digest))
    }
}

fn has_duplicates(objects: &AnswerObjects) -> io::Result<bool> {
    let mut keys = Vec::new();
    for message in objects.of(wire::kind(msg::NEW_ELEMENT)) {
        decode::element_identities(message, &mut |identity| {
            let mut hasher = DefaultHasher::new();
            hasher.write(identity);
            keys.push(hasher.finish());
        })?;
    }
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    Ok(keys.len() < count)
}

/// A hash of the content without the headers, which have generation numbers.
fn digest(objects: &AnswerObjects) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (_, payload) in objects.iter() {
        hasher.write(payload.get(nfnetlink::HEADER_LEN..).unwrap_or_default());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::super::{ElementData, encode};
    use super::*;
    use crate::netlink::MessageWriter;

    /// A dump of elements with these keys, in one message of this generation.
    fn elements(generation: u8, interrupted: bool, keys: &[u8]) -> AnswerObjects {
        let mut writer = MessageWriter::new();
        writer.raw(&[2, 0, 0, generation]);
        let list = writer.nest(wire::element::LIST);
        keys.iter().for_each(|key| encode::element(&mut writer, &[*key; 4], None, ElementData::None));
        writer.end_nest(list);
        let mut objects = AnswerObjects::default();
        objects.push(wire::kind(msg::NEW_ELEMENT), writer.bytes());
        objects.interrupted = interrupted;
        objects
    }

    #[test]
    fn an_uninterrupted_dump_is_consistent() {
        assert!(DumpAttempts::default().is_consistent(&elements(1, false, &[1, 2])).unwrap());
        assert!(DumpAttempts::default().is_consistent(&AnswerObjects::default()).unwrap());
    }

    #[test]
    fn an_interrupted_dump_is_consistent_if_identical_twice_in_a_row() {
        let mut attempts = DumpAttempts::default();
        for (generation, keys, whole) in
            [(1, &[1, 2][..], false), (2, &[1, 2, 3], false), (3, &[1, 2], false), (4, &[1, 2], true)]
        {
            assert_eq!(attempts.is_consistent(&elements(generation, true, keys)).unwrap(), whole, "{generation}");
        }
    }

    #[test]
    fn a_dump_with_a_duplicated_element_is_inconsistent() {
        let mut attempts = DumpAttempts::default();
        for interrupted in [false, true, true] {
            assert!(!attempts.is_consistent(&elements(1, interrupted, &[1, 2, 1])).unwrap());
        }
        assert!(attempts.is_consistent(&elements(1, false, &[1, 2])).unwrap());
    }
}
