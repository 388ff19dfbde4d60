//! The interface of a mode to the conformance tests.

use std::collections::BTreeMap;

use ferry_api::object::Family;
use ferry_plane::memory::Refers;
use ferry_plane::{Compile, Object, Trace};

/// A mode's kernel objects.
pub type ObjectOf<M> = <<M as Mode>::Compiler as Compile>::Object;

/// The identity of a mode's kernel objects, independent of their content.
pub type KeyOf<M> = <ObjectOf<M> as Object>::Key;

/// The facts about a mode that its compiler doesn't provide, implemented by an empty type in the mode's tests.
pub trait Mode {
    /// The pure half of the mode.
    type Compiler: Trace<Object: Refers<Key: Send> + Send> + Send;
    /// The name of the mode and of its section in the configuration.
    const NAME: &'static str;
    /// The file of a case folder with the expected [`Mode::text`].
    const GOLDEN: &'static str;

    /// The number of packets of the case folders that have each verdict, at least.
    const LEAST: usize = 400;

    /// A compiler for a machine with every capability; `localhost` serves node ports on loopback.
    fn compiler(family: Family, localhost: bool) -> Self::Compiler;

    /// The objects of one family as readable text. Objects that are the same in every case may be left out.
    fn text(family: Family, objects: &[ObjectOf<Self>]) -> String;

    /// True if no object ever refers to this one. Only such objects may be lost in a test: the kernel in memory, unlike a real
    /// one, lets another program delete a referenced object, and then records dangling references as violations.
    fn is_leaf(key: &KeyOf<Self>) -> bool;

    /// Objects that another program writes in place of some of these, at least one with another content, for tests of repairs: a
    /// choice by this index.
    fn spoiled(objects: &[ObjectOf<Self>], index: usize) -> Vec<ObjectOf<Self>>;

    /// These objects, sorted, without the differences that two histories with the same end may have (nftables: the order of
    /// endpoints in slots).
    fn comparable(objects: Vec<ObjectOf<Self>>) -> Vec<ObjectOf<Self>> {
        objects
    }

    /// Varies this mode's own settings in the configuration of a random cluster by the seed.
    fn varied(config: String, seed: u64) -> String {
        let _ = seed;
        config
    }

    /// Checks invariants of the compiled objects of any state.
    fn well_made(objects: &[ObjectOf<Self>], name: &str) {
        well_made(objects, name);
    }
}

/// One of these, by an index, and the next one behind it whose content differs; `None` if all have the same.
pub fn neighbours<K, C: PartialEq>(all: &[(K, C)], index: usize) -> Option<[&(K, C); 2]> {
    let at = index.checked_rem(all.len())?;
    let (before, rest) = all.split_at(at);
    let one = rest.first()?;
    let other = rest.iter().chain(before).find(|other| other.1 != one.1)?;
    Some([one, other])
}

/// Checks that duplicates are equal, and that references point to existing objects of lower rank.
fn well_made<O: Refers>(objects: &[O], name: &str) {
    let mut known: BTreeMap<O::Key, &O> = BTreeMap::new();
    for object in objects {
        let other = known.insert(object.key(), object);
        assert!(other.is_none_or(|other| other == object), "{name}: {object} differs between units");
    }
    for object in objects {
        for key in object.refers_to() {
            let target =
                known.get(&key).unwrap_or_else(|| panic!("{name}: {object} refers to {key}, which does not exist"));
            assert!(target.rank() < object.rank(), "{name}: {object} refers to {target}");
        }
    }
}
