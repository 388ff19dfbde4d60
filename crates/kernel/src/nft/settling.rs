//! Decides when a list of nf_tables is whole although others commit.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::time::Duration;

use super::decode;
use super::wire::{self, msg};
use crate::netlink::{Objects, nfnetlink};

/// Growth of the wait from attempt to attempt, while the kernel moves a set.
const MOVING_PAUSE: Duration = Duration::from_millis(2);

/// The attempts at one list.
///
/// One attempt must be undisturbed, or two in a row come out the same: a busy neighbour changes the generation, but not
/// the list. And no element may come twice: the kernel continues a list by skipping as many as it gave before, so that elements are
/// missed, and as many come twice, while a hash set that has just grown is moved to a larger table.
#[derive(Debug, Default)]
pub(super) struct Settling {
    attempts: u32,
    before: Option<u64>,
}

// === impl Settling ===

impl Settling {
    /// True if this attempt is whole. Waits a moment after one with an element that came twice.
    pub(super) fn is_whole(&mut self, objects: &Objects) -> io::Result<bool> {
        let attempt = self.attempts;
        self.attempts += 1;
        if has_duplicates(objects)? {
            std::thread::sleep(MOVING_PAUSE.saturating_mul(attempt));
            return Ok(false);
        }
        if !objects.interrupted {
            return Ok(true);
        }
        let digest = digest(objects);
        Ok(self.before.replace(digest) == Some(digest))
    }
}

fn has_duplicates(objects: &Objects) -> io::Result<bool> {
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

/// Of the content: without the headers, which carry generation numbers.
fn digest(objects: &Objects) -> u64 {
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
    use crate::netlink::Writer;

    /// A list of elements with these keys, in one message, as of a generation.
    fn elements(generation: u8, interrupted: bool, keys: &[u8]) -> Objects {
        let mut writer = Writer::new();
        writer.raw(&[2, 0, 0, generation]);
        let list = writer.nest(wire::element::LIST);
        keys.iter().for_each(|key| encode::element(&mut writer, &[*key; 4], None, ElementData::None));
        writer.end_nest(list);
        let mut objects = Objects::default();
        objects.push(wire::kind(msg::NEW_ELEMENT), writer.bytes());
        objects.interrupted = interrupted;
        objects
    }

    #[test]
    fn an_undisturbed_list_is_whole() {
        assert!(Settling::default().is_whole(&elements(1, false, &[1, 2])).unwrap());
        assert!(Settling::default().is_whole(&Objects::default()).unwrap());
    }

    #[test]
    fn a_disturbed_list_is_whole_when_it_comes_out_the_same_twice_in_a_row() {
        let mut settling = Settling::default();
        for (generation, keys, whole) in
            [(1, &[1, 2][..], false), (2, &[1, 2, 3], false), (3, &[1, 2], false), (4, &[1, 2], true)]
        {
            assert_eq!(settling.is_whole(&elements(generation, true, keys)).unwrap(), whole, "{generation}");
        }
    }

    #[test]
    fn an_element_that_comes_twice_spoils_a_list() {
        let mut settling = Settling::default();
        for interrupted in [false, true, true] {
            assert!(!settling.is_whole(&elements(1, interrupted, &[1, 2, 1])).unwrap());
        }
        assert!(settling.is_whole(&elements(1, false, &[1, 2])).unwrap());
    }
}
