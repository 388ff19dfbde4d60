//! A mode's own table: its objects, their transactions, and the kernel half that commits, reads and watches them. The names, elements
//! and rules are the mode's ([`Vocabulary`]).
//!
//! - `name` parses and prints the names of sets and chains, constant ones and those of source ranges; `object` has the objects, their
//!   keys and ranks.
//! - `encode` writes the table's part of a batch as transactions, `read` reads it back, `probe` tests once whether the kernel supports
//!   the table.
//! - [`InTable`] (`membership.rs`) separates the table's objects from others of the mode.
//! - [`TableLayer`] (`layer.rs`) is the layer that does all this for a mode whose other objects live elsewhere.
//! - `draw` prints the table, for people and golden files; `refer` lists references, for tests.

mod draw;
mod encode;
mod layer;
mod membership;
mod name;
mod object;
mod probe;
mod read;
mod refer;

use std::fmt::{Debug, Display};
use std::hash::Hash;

use ferry_api::object::Family;
use ferry_kernel::nft::{BaseHook, ElementData, OwnedData};
use ferry_plane::Served;

use crate::Rules;
use crate::fields::Bytes;
use crate::layout::Layout;
use crate::names::Name;
use crate::sources::SourcesId;

pub use draw::draw;
pub use layer::{TableCommitLock, TableLayer, Watched};
pub use membership::InTable;
pub use name::{ChainName, SetName};
pub use object::{TableKey, TableObject};
pub use refer::refers_to;

/// The rank of a table's elements, above its chains; objects outside of the table that need elements have higher ranks.
pub const ELEMENT_RANK: u8 = 6;

/// The constant names of one mode's table, and what its elements are.
pub trait Vocabulary: Copy + Debug + Ord + Hash + Send + Sync + 'static {
    /// The constant sets and maps.
    type Set: Name;
    /// The constant chains.
    type Chain: Name;
    /// The identity of an element: its set or map, and its key there.
    type Element: Clone + Debug + Display + Ord + Hash + Send;
    /// The value of an element; of a set's element, one that stands for none. `Display` prints what follows the key.
    type Value: Clone + Debug + Display + Ord + Send;
    /// The facts that encode elements beside the elements themselves, known while the program runs: for example the ports that
    /// listeners were given.
    type World: Debug + Send;

    /// The name of the table, in either family.
    const TABLE: &'static str;
    /// The comment of the table: its maker and the layout of its contents. A table with another comment is replaced.
    const COMMENT: &'static str;
    /// The kernel's modules that a table of this mode needs, as an enumeration in a sentence.
    const MODULES: &'static str;

    /// The set or map of an element.
    fn set_of(element: &Self::Element) -> Self::Set;
    /// The key fields, value type and kind of a set or map.
    fn layout(set: Self::Set) -> Layout;
    /// The hook and priority of a base chain; `None` for others.
    fn hook(chain: Self::Chain) -> Option<BaseHook>;
    /// The rank of a chain, 2 to 5: a chain refers to chains of lower ranks. Those that check source ranges have 3.
    fn rank(chain: Self::Chain) -> u8;
    /// The rules of a chain that checks these source ranges.
    fn restricted(family: Family, id: SourcesId) -> Rules;
    /// Chains that contain every kind of rule that this mode writes, to probe the kernel with. One may come more than once, with
    /// other rules each time.
    fn probes(family: Family) -> Vec<(Self::Chain, Rules)>;
    /// The bytes of an element's key; `None` if they are not known (any more).
    fn key_bytes(world: &Self::World, element: &Self::Element) -> Option<Bytes>;
    /// Decodes a key; `None` if it is none that this mode writes. Without a world also where that is needed.
    fn key(world: Option<&Self::World>, set: Self::Set, family: Family, bytes: &[u8]) -> Option<Self::Element>;
    /// Calls `use_it` with the kernel's form of a value; returns false instead if it is not known (any more).
    fn with_data(world: &Self::World, value: &Self::Value, use_it: &mut dyn FnMut(ElementData<'_>)) -> bool;
    /// Decodes a value. One that this mode never writes is a value of its own, which nothing wants.
    fn value(world: &Self::World, set: Self::Set, family: Family, data: &OwnedData) -> Self::Value;
    /// The sets and maps whose elements [serve](Self::served_elsewhere) in tables of other modes and makers, which have the same names
    /// and keys.
    const SERVING: &'static [Self::Set];

    /// The frontend that packets find by this element, or the address that serves node ports by it.
    fn served(element: &Self::Element) -> Option<Served>;
    /// The same if the element is in a table of another mode or maker.
    fn served_elsewhere(element: &Self::Element) -> Option<Served> {
        Self::served(element)
    }
    /// The chain that a value leads to.
    fn leads_to(value: &Self::Value) -> Option<ChainName<Self>>;
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro of names is for items of other crates")]
mod tests;
