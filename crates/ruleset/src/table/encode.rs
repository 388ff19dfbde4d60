//! Encodes the table's part of a batch as nf_tables transactions.
//!
//! A new set of source ranges and its chain are made ahead, and old ones deleted afterwards, in transactions of their own: a
//! packet sees the rules of the moment in which it entered the hook, and the elements of the moment of its lookup. In between,
//! deleted elements come first; then created objects, from the table down to elements. A changed element is deleted and added
//! again in one transaction: packets see the old one or the new one.

use std::cell::RefCell;
use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::NftBatch;
use ferry_plane::{Batch, CommitError, Op};

use super::membership::InTable;
use super::{ChainName, SetName, TableObject, Vocabulary};
use crate::encode::{fill_chain, fill_set};
use crate::marks::Marks;
use crate::names::Name as _;
use crate::read::TableOwner;

/// A transaction, with the positions of its operations.
pub(super) struct Encoded {
    pub(super) batch: NftBatch,
    pub(super) marks: Marks,
}

/// The transactions of a batch, in their order; those without an operation are left out.
///
/// # Errors
/// If an element can't be encoded: nothing of the batch may be sent then. Those to be created are refused; a missing one that is to
/// be deleted is drift.
pub(super) fn transactions<V: Vocabulary, O: InTable<V>>(
    (family, world): (Family, &V::World),
    objects: &Batch<O>,
) -> Result<Vec<Encoded>, CommitError> {
    let mut encoder = Encoder { family, world, objects, unknown: RefCell::default() };
    let has_table = |objects: &[O]| objects.iter().any(is_table);
    let mut all = if has_table(&objects.delete) {
        vec![encoder.deleted_table()]
    } else if has_table(&objects.create) || has_table(&objects.replace) {
        vec![encoder.table()]
    } else {
        vec![encoder.ahead(), encoder.main(), encoder.behind()]
    };
    encoder.failure()?;
    all.retain(|encoded| !encoded.batch.is_empty());
    Ok(all)
}

struct Encoder<'a, V: Vocabulary, O> {
    family: Family,
    world: &'a V::World,
    objects: &'a Batch<O>,
    /// keys of objects with elements that can't be encoded, as text; true for one that is created
    unknown: RefCell<Vec<(String, bool)>>,
}

// === impl Encoder ===

impl<V: Vocabulary, O: InTable<V>> Encoder<'_, V, O> {
    fn failure(&mut self) -> Result<(), CommitError> {
        let unknown = std::mem::take(self.unknown.get_mut());
        let Some((first, _)) = unknown.first() else { return Ok(()) };
        if !unknown.iter().any(|(_, created)| *created) {
            return Err(CommitError::Drifted { object: first.clone() });
        }
        let is_unknown = |object: &O| unknown.iter().any(|(key, created)| *created && *key == object.key().to_string());
        let refused = |op, objects: &[O]| -> Vec<_> {
            let of = objects.iter().enumerate().filter(|(_, object)| is_unknown(object));
            of.map(|(index, _)| (op, index, io::Error::other("what it leads to is not open"))).collect()
        };
        let mut refusals = refused(Op::Create, &self.objects.create);
        refusals.extend(refused(Op::Replace, &self.objects.replace));
        Err(CommitError::Refused(refusals))
    }

    fn new_encoded(&self) -> Encoded {
        Encoded { batch: NftBatch::new(self.family, V::TABLE), marks: Marks::default() }
    }

    /// The table's contents are deleted with it.
    fn deleted_table(&self) -> Encoded {
        let mut encoded = self.new_encoded();
        encoded.each::<V, O>(Op::Delete, &self.objects.delete, |batch, object| {
            if let TableObject::Table(_) = object {
                batch.delete_table();
            }
        });
        encoded
    }

    /// All of a table that is created or replaced as a whole.
    fn table(&self) -> Encoded {
        let mut encoded = self.new_encoded();
        if self.objects.replace.iter().any(is_table) {
            encoded.batch.delete_table();
        }
        self.create(&mut encoded, true, |_| true);
        encoded
    }

    fn ahead(&self) -> Encoded {
        let mut encoded = self.new_encoded();
        self.create(&mut encoded, false, is_restriction);
        encoded
    }

    fn main(&self) -> Encoded {
        let mut encoded = self.new_encoded();
        let Batch { replace, delete, .. } = self.objects;
        encoded.each::<V, O>(Op::Delete, delete, |batch, object| self.delete_element(batch, object));
        encoded.each::<V, O>(Op::Replace, replace, |batch, object| self.delete_element(batch, object));
        self.create(&mut encoded, true, |object| !is_restriction(object));
        encoded.each::<V, O>(Op::Delete, delete, |batch, object| match object {
            TableObject::Chain(ChainName::Fixed(name), _) => {
                batch.flush_chain(name.name());
                batch.delete_chain(name.name());
            }
            TableObject::Set(name) => batch.delete_set(&name.to_string()),
            TableObject::Table(_)
            | TableObject::Ranges(..)
            | TableObject::Chain(ChainName::Restricted(_), _)
            | TableObject::Element(..) => {}
        });
        encoded
    }

    fn behind(&self) -> Encoded {
        let mut encoded = self.new_encoded();
        encoded.each::<V, O>(Op::Delete, &self.objects.delete, |batch, object| {
            if let TableObject::Chain(name @ ChainName::Restricted(_), _) = object {
                batch.flush_chain(&name.to_string());
                batch.delete_chain(&name.to_string());
            }
        });
        encoded.each::<V, O>(Op::Delete, &self.objects.delete, |batch, object| {
            if let TableObject::Ranges(id, _) = object {
                batch.delete_set(&SetName::<V>::Sources(*id).to_string());
            }
        });
        encoded
    }

    /// Writes the created objects that are `wanted`, and the replaced ones if they are.
    fn create(&self, encoded: &mut Encoded, replaced: bool, wanted: impl Fn(&TableObject<V>) -> bool) {
        // A replaced table comes before the objects that are created in it.
        let lists = [(Op::Replace, &self.objects.replace), (Op::Create, &self.objects.create)];
        let lists = || lists.into_iter().filter(|(op, _)| replaced || *op == Op::Create);
        let family = self.family;
        for (op, list) in lists() {
            encoded.each::<V, O>(op, list, |batch, object| match object {
                _ if op == Op::Create && !wanted(object) => {}
                TableObject::Table(TableOwner::Ours) => batch.add_table(Some(V::COMMENT)),
                TableObject::Set(name) => batch.add_set(&name.shape(family)),
                TableObject::Ranges(id, ranges) => {
                    fill_set(batch, &SetName::<V>::Sources(*id).shape(family), ranges);
                }
                TableObject::Chain(name, _) if op == Op::Create => batch.add_chain(&name.chain()),
                TableObject::Table(TableOwner::Foreign) | TableObject::Chain(..) | TableObject::Element(..) => {}
            });
        }
        // After all chains exist, since rules refer to other chains.
        for (op, list) in lists() {
            encoded.each::<V, O>(op, list, |batch, object| match object {
                TableObject::Chain(name, rules) if op == Op::Replace || wanted(object) => {
                    fill_chain(batch, &name.to_string(), rules);
                }
                TableObject::Table(_)
                | TableObject::Set(_)
                | TableObject::Ranges(..)
                | TableObject::Chain(..)
                | TableObject::Element(..) => {}
            });
        }
        for (op, list) in lists() {
            encoded.each::<V, O>(op, list, |batch, object| {
                if op == Op::Replace || wanted(object) {
                    self.add_element(batch, object);
                }
            });
        }
    }

    fn delete_element(&self, batch: &mut NftBatch, object: &TableObject<V>) {
        let TableObject::Element(element, _) = object else { return };
        match V::key_bytes(self.world, element) {
            Some(bytes) => batch.delete_element(V::set_of(element).name(), bytes.as_slice(), None),
            None => self.unknown.borrow_mut().push((object.key().to_string(), false)),
        }
    }

    fn add_element(&self, batch: &mut NftBatch, object: &TableObject<V>) {
        let TableObject::Element(element, value) = object else { return };
        let added = V::key_bytes(self.world, element).is_some_and(|bytes| {
            let set = V::set_of(element).name();
            V::with_data(self.world, value, &mut |data| batch.add_element(set, bytes.as_slice(), None, data))
        });
        if !added {
            self.unknown.borrow_mut().push((object.key().to_string(), true));
        }
    }
}

fn is_table<V: Vocabulary, O: InTable<V>>(object: &O) -> bool {
    matches!(object.in_table(), Some(TableObject::Table(_)))
}

/// True for the set of source ranges and its chain.
fn is_restriction<V: Vocabulary>(object: &TableObject<V>) -> bool {
    matches!(object, TableObject::Ranges(..) | TableObject::Chain(ChainName::Restricted(_), _))
}

// === impl Encoded ===

impl Encoded {
    fn each<V: Vocabulary, O: InTable<V>>(
        &mut self,
        op: Op,
        objects: &[O],
        write: impl Fn(&mut NftBatch, &TableObject<V>),
    ) {
        self.marks.write(&mut self.batch, op, objects, |batch, object| {
            if let Some(object) = object.in_table() {
                write(batch, object);
            }
        });
    }
}
