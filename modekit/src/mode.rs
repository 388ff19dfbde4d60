//! What the tests have to be told of a mode.

use std::collections::BTreeMap;

use ferry_api::object::Family;
use ferry_model::{Packet, Verdict};
use ferry_plane::memory::Refers;
use ferry_plane::{Compile, Object};

/// What a mode puts into the kernel.
pub type ObjectOf<M> = <<M as Mode>::Compiler as Compile>::Object;

/// What makes it the same object when its content changes.
pub type KeyOf<M> = <ObjectOf<M> as Object>::Key;

/// A mode as its tests see it: what can't be asked of its compiler. An empty type of the tests stands for the mode.
pub trait Mode {
    /// The pure half of the mode.
    type Compiler: Compile<Object: Refers<Key: Send> + Send> + Send;
    /// What a configuration calls the mode, and the section about it.
    const NAME: &'static str;
    /// The file of a case folder that holds what [`Mode::text`] says.
    const GOLDEN: &'static str;

    /// The compiler of a machine that can everything, where node ports are served on loopback or not.
    fn compiler(family: Family, localhost: bool) -> Self::Compiler;

    /// What these objects, all of one family, do with packets: prepared once, asked many times.
    fn tracer(family: Family, objects: &[ObjectOf<Self>]) -> impl Fn(&Packet) -> Verdict;

    /// The objects of one family to be read by people. What is the same in every case may be left out.
    fn text(family: Family, objects: &[ObjectOf<Self>]) -> String;

    /// Whether nothing ever refers to such an object: the kernel in memory, unlike a real one, lets somebody remove any other,
    /// and then complains of who needs it.
    fn is_leaf(key: &KeyOf<Self>) -> bool;

    /// These objects, sorted, without that in which two histories with the same end may differ (nftables: which endpoint
    /// stands in which slot).
    fn comparable(objects: Vec<ObjectOf<Self>>) -> Vec<ObjectOf<Self>> {
        objects
    }

    /// The configuration of a random cluster, with what only this mode has varied from seed to seed.
    fn varied(config: String, seed: u64) -> String {
        let _ = seed;
        config
    }

    /// What holds for the compiled objects of any state.
    fn well_made(objects: &[ObjectOf<Self>], name: &str) {
        well_made(objects, name);
    }
}

/// What stands several times is the same each time, and what objects refer to is there, and of lower rank.
fn well_made<O: Refers>(objects: &[O], name: &str) {
    let mut known: BTreeMap<O::Key, &O> = BTreeMap::new();
    for object in objects {
        let other = known.insert(object.key(), object);
        assert!(other.is_none_or(|other| other == object), "{name}: {object} is another one elsewhere");
    }
    for object in objects {
        for key in object.refers_to() {
            let target =
                known.get(&key).unwrap_or_else(|| panic!("{name}: {object} refers to {key}, which is not there"));
            assert!(target.rank() < object.rank(), "{name}: {object} refers to {target}");
        }
    }
}
