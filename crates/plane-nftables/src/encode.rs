//! Encodes a batch of objects as one nf_tables transaction.
//!
//! Deleted elements come first; then created objects, from the table down to elements; then the other deletions. A changed
//! element is deleted and added again: packets see the old one or the new one.

use std::collections::HashSet;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, NftBatch};
use ferry_plane::{Batch, Op};
use ferry_ruleset::encode::{fill_chain, fill_set};
use ferry_ruleset::fields::endpoint_bytes;
use ferry_ruleset::marks::Marks;
use ferry_ruleset::read::TableOwner;

use crate::ahead::Ahead;
use crate::layout;
use crate::names::{SetName, TABLE, TABLE_COMMENT};
use crate::object::{ElementKey, NftObject, Value};
use crate::wire::key_bytes;

/// The transaction, with the position of each operation.
pub(crate) struct Encoded {
    pub(crate) batch: NftBatch,
    marks: Marks,
}

/// Time of a chain's deletion. Before Linux 6.2 a chain stays busy (EBUSY) in the transaction that deletes the last element
/// which refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainRelease {
    Now,
    Later,
}

// === impl Encoded ===

impl Encoded {
    pub(crate) fn new(family: Family, objects: &Batch<NftObject>, release: ChainRelease, ahead: &Ahead) -> Self {
        let batch = NftBatch::new(family, TABLE);
        let mut encoded = Self { batch, marks: Marks::with_capacity(objects.len()) };
        let table_goes = |objects: &[NftObject]| objects.iter().any(|object| matches!(object, NftObject::Table(_)));
        if table_goes(&objects.delete) {
            // The table's contents are deleted with it.
            encoded.each(Op::Delete, &objects.delete, |batch, object| {
                if matches!(object, NftObject::Table(_)) {
                    batch.delete_table();
                }
            });
            return encoded;
        }
        if table_goes(&objects.replace) {
            encoded.batch.delete_table();
        } else {
            // A set's elements are deleted with the set, and stay visible to packets until then.
            let going: HashSet<SetName> = objects.delete.iter().filter_map(set_of).collect();
            let gone =
                |key: &ElementKey| ahead.deleted.contains(key) || (!going.is_empty() && going.contains(&key.set()));
            encoded.each(Op::Delete, &objects.delete, |batch, object| match object {
                NftObject::Element(key, _) if gone(key) => {}
                NftObject::Element(..)
                | NftObject::Table(_)
                | NftObject::Set(_)
                | NftObject::Ranges(..)
                | NftObject::Chain(..) => delete_element(batch, object),
            });
            encoded.each(Op::Replace, &objects.replace, delete_element);
        }
        encoded.create(family, objects, ahead);
        encoded.each(Op::Delete, &objects.delete, |batch, object| {
            if let NftObject::Chain(name, _) = object {
                batch.flush_chain(&name.to_string());
            }
        });
        encoded.each(Op::Delete, &objects.delete, |batch, object| match object {
            NftObject::Chain(name, _) if release == ChainRelease::Now => batch.delete_chain(&name.to_string()),
            NftObject::Set(name) => batch.delete_set(&name.to_string()),
            // Retired sets of source ranges are deleted by a transaction of their own, see `Retired`.
            NftObject::Ranges(..) | NftObject::Chain(..) | NftObject::Table(_) | NftObject::Element(..) => {}
        });
        for (map, key) in &ahead.stale_affinity {
            encoded.batch.delete_element(&map.to_string(), key.as_slice(), None);
        }
        encoded
    }

    fn create(&mut self, family: Family, objects: &Batch<NftObject>, ahead: &Ahead) {
        // A replaced table comes before the objects that are created in it.
        let lists = [(Op::Replace, &objects.replace), (Op::Create, &objects.create)];
        for (op, list) in lists {
            self.each(op, list, |batch, object| match object {
                NftObject::Table(TableOwner::Ours) => batch.add_table(Some(TABLE_COMMENT)),
                NftObject::Set(name) => batch.add_set(&layout::shape(*name, family)),
                NftObject::Ranges(id, _) if ahead.made.contains(id) => {}
                NftObject::Ranges(id, ranges) => {
                    fill_set(batch, &layout::shape(SetName::Sources(*id), family), ranges);
                }
                NftObject::Chain(name, _) if op == Op::Create => batch.add_chain(&name.chain()),
                NftObject::Chain(..) | NftObject::Element(..) | NftObject::Table(TableOwner::Foreign) => {}
            });
        }
        // After all chains exist, since rules refer to other chains.
        for (op, list) in lists {
            self.each(op, list, |batch, object| {
                if let NftObject::Chain(name, rules) = object {
                    fill_chain(batch, &name.to_string(), rules);
                }
            });
        }
        for (op, list) in lists {
            self.each(op, list, add_element);
        }
    }

    fn each(&mut self, op: Op, objects: &[NftObject], write: impl Fn(&mut NftBatch, &NftObject)) {
        self.marks.write(&mut self.batch, op, objects, write);
    }

    /// Splits off the positions, which outlive the sent transaction.
    pub(crate) fn into_parts(self) -> (NftBatch, Marks) {
        (self.batch, self.marks)
    }
}

fn set_of(object: &NftObject) -> Option<SetName> {
    match object {
        NftObject::Set(name) => Some(*name),
        NftObject::Table(_) | NftObject::Ranges(..) | NftObject::Chain(..) | NftObject::Element(..) => None,
    }
}

fn delete_element(batch: &mut NftBatch, object: &NftObject) {
    if let NftObject::Element(key, _) = object {
        with_name(key, |set| batch.delete_element(set, key_bytes(key).as_slice(), None));
    }
}

fn add_element(batch: &mut NftBatch, object: &NftObject) {
    let NftObject::Element(key, value) = object else { return };
    let bytes = key_bytes(key);
    let mut add = |set: &str, data: nft::ElementData<'_>| batch.add_element(set, bytes.as_slice(), None, data);
    with_name(key, |set| match value {
        Value::None => add(set, nft::ElementData::None),
        Value::Endpoint(endpoint) => add(set, nft::ElementData::Value(endpoint_bytes(*endpoint).as_slice())),
        Value::Drop => add(set, nft::ElementData::Verdict(nft::VerdictRef::Drop)),
        Value::Goto(chain) => add(set, nft::ElementData::Verdict(nft::VerdictRef::Goto(&chain.to_string()))),
        Value::Foreign => debug_assert!(false, "{key} is not ours to write"),
    });
}

/// Calls `use_it` with the name of an element's set; without an allocation for a fixed set.
fn with_name(key: &ElementKey, use_it: impl FnOnce(&str)) {
    match key.set() {
        SetName::Fixed(fixed) => use_it(fixed.name()),
        other => use_it(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::{ObjectName, Protocol};
    use ferry_model::{Endpoint, Scope};
    use ferry_ruleset::sources::Ranges;
    use ferry_ruleset::{Rules, TableRule};

    use super::*;
    use crate::names::{ChainName, Pick, PortId};

    fn endpoint(last: u8) -> Endpoint {
        Endpoint { address: [10, 244, 0, last].into(), port: 80 }
    }

    fn pool_id() -> PortId {
        PortId::new(&ObjectName::new("demo", "web"), Protocol::Tcp, "http")
    }

    fn pool() -> NftObject {
        NftObject::Set(SetName::Pool(pool_id()))
    }

    fn slot_key(slot: u32) -> ElementKey {
        ElementKey::PoolSlot { id: pool_id(), slot }
    }

    fn slot(slot: u32) -> NftObject {
        NftObject::Element(slot_key(slot), Value::Endpoint(endpoint(1)))
    }

    fn chain(count: u32) -> NftObject {
        let rule = TableRule { exprs: Vec::new(), text: String::new() };
        NftObject::Chain(ChainName::Pick(Pick::External, count), Rules([rule].into()))
    }

    fn ranges() -> (NftObject, Ranges) {
        let ranges = Ranges::new(&["10.0.0.0/8".parse().unwrap()]);
        (NftObject::Ranges(ranges.id(), ranges.clone()), ranges)
    }

    fn encoded(objects: &Batch<NftObject>, release: ChainRelease, ahead: &Ahead) -> Encoded {
        Encoded::new(Family::V4, objects, release, ahead)
    }

    /// The operations in the order of the transaction, and the number of its messages.
    fn order(objects: &Batch<NftObject>, release: ChainRelease, ahead: &Ahead) -> (Vec<(Op, usize)>, usize) {
        let encoded = encoded(objects, release, ahead);
        (encoded.marks.as_slice().iter().map(|mark| (mark.op, mark.index)).collect(), encoded.batch.messages())
    }

    #[test]
    fn referents_are_written_before_and_deleted_after_what_refers_to_them() {
        let objects = Batch {
            create: vec![pool(), chain(2), slot(1)],
            replace: vec![chain(3), slot(2)],
            delete: vec![slot(3), chain(4), NftObject::Set(SetName::Affinity(pool_id(), Scope::Cluster))],
        };
        let wanted = [
            (Op::Delete, 0),
            (Op::Replace, 1),
            // shapes
            (Op::Create, 0),
            (Op::Create, 1),
            // rules
            (Op::Replace, 0),
            (Op::Create, 1),
            // elements
            (Op::Replace, 1),
            (Op::Create, 2),
            // flushed, and then deleted, with the set
            (Op::Delete, 1),
            (Op::Delete, 1),
            (Op::Delete, 2),
        ];
        let (marks, messages) = order(&objects, ChainRelease::Now, &Ahead::default());
        assert_eq!(marks, wanted);
        // Adjacent elements of one set share a message; rules are flushed and written.
        assert_eq!(messages, 1 + 2 + 4 + 1 + 3);
        let (later, _) = order(&objects, ChainRelease::Later, &Ahead::default());
        assert_eq!(later, [&wanted[..9], &wanted[10..]].concat(), "the chain is only emptied");
    }

    #[test]
    fn what_was_done_ahead_is_left_out() {
        let (set, ranges) = ranges();
        let objects = Batch { create: vec![set, pool()], replace: Vec::new(), delete: vec![slot(1), slot(2)] };
        let ahead = Ahead {
            made: [ranges.id()].into(),
            deleted: [slot_key(1)].into(),
            stale_affinity: vec![(
                SetName::Affinity(pool_id(), Scope::Cluster),
                nft::Octets::new(&[10, 0, 0, 1]).unwrap(),
            )],
        };
        let (marks, messages) = order(&objects, ChainRelease::Now, &ahead);
        assert_eq!(marks, [(Op::Delete, 1), (Op::Create, 1)]);
        assert_eq!(messages, 3, "the element, the set, and the client that is forgotten");
        let (marks, messages) = order(&objects, ChainRelease::Now, &Ahead::default());
        assert_eq!(marks, [(Op::Delete, 0), (Op::Delete, 1), (Op::Create, 0), (Op::Create, 1)]);
        assert_eq!(messages, 1 + 3 + 1, "a set of ranges is made, emptied and filled");
    }

    #[test]
    fn elements_go_with_their_set() {
        let other = NftObject::Element(ElementKey::SameOctet(7), Value::None);
        let objects = Batch { delete: vec![slot(1), other, pool()], ..Batch::default() };
        let (marks, messages) = order(&objects, ChainRelease::Now, &Ahead::default());
        assert_eq!((marks, messages), (vec![(Op::Delete, 1), (Op::Delete, 2)], 2));
    }

    #[test]
    fn retired_sets_are_deleted_by_another_transaction() {
        let objects = Batch { delete: vec![ranges().0], ..Batch::default() };
        assert!(encoded(&objects, ChainRelease::Now, &Ahead::default()).batch.is_empty());
    }

    #[test]
    fn a_table_takes_everything_with_it() {
        let table = || NftObject::Table(TableOwner::Ours);
        let objects = Batch { delete: vec![slot(1), chain(2), pool(), table()], ..Batch::default() };
        assert_eq!(order(&objects, ChainRelease::Now, &Ahead::default()), (vec![(Op::Delete, 3)], 1));
        let objects = Batch { create: vec![pool()], replace: vec![table()], delete: vec![] };
        let (marks, messages) = order(&objects, ChainRelease::Now, &Ahead::default());
        assert_eq!((marks, messages), (vec![(Op::Replace, 0), (Op::Create, 0)], 3), "deleted and made");
    }
}
