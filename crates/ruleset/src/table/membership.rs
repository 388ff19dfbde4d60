//! The table's objects among all objects of a mode.

use std::collections::HashSet;

use ferry_plane::{Batch, Object};

use super::{TableKey, TableObject, Vocabulary};

/// The objects of a mode, some of which are in its table.
pub trait InTable<V: Vocabulary>: Object<Key: Send> + Send + 'static {
    /// The table's object that this one is, if it is one.
    fn in_table(&self) -> Option<&TableObject<V>>;
    /// The mode's object.
    fn of_table(object: TableObject<V>) -> Self;
    /// The table's key that this one is, if it is one.
    fn key_in_table(key: &Self::Key) -> Option<&TableKey<V>>;
    /// The mode's key.
    fn key_of_table(key: TableKey<V>) -> Self::Key;
    /// The replacements that take away what layers above may still need until their own changes are made ([`waiting`](ferry_plane::layered::Layer::waiting)).
    fn waiting(part: &Batch<Self>) -> HashSet<Self::Key> {
        let _ = part;
        HashSet::new()
    }
}
