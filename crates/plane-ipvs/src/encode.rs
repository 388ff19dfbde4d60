//! Encodes the table's part of a batch as nf_tables transactions.
//!
//! A new set of source ranges and its chain are made ahead, and old ones deleted afterwards, in transactions of their own: a
//! packet sees the rules of the moment in which it entered the hook, and the elements of the moment of its lookup. In between,
//! deleted elements come first; then created objects, from the table down to elements. A changed element is deleted and added
//! again in one transaction: packets see the old one or the new one.

use ferry_api::object::Family;
use ferry_kernel::nft;
use ferry_plane::{Batch, Op};
use ferry_ruleset::encode::{fill_chain, fill_set};
use ferry_ruleset::marks::Marks;

use crate::layout;
use crate::names::{ChainName, SetName, TABLE, TABLE_COMMENT};
use crate::object::{ElementKey, IpvsObject, Table};
use crate::wire::{key_bytes, with_data};

/// A transaction, with the positions of its operations.
pub(crate) struct Encoded {
    pub(crate) batch: nft::Batch,
    pub(crate) marks: Marks,
}

/// The transactions of a batch, in their order; those without an operation are left out.
pub(crate) fn transactions(family: Family, objects: &Batch<IpvsObject>) -> Vec<Encoded> {
    let has_table = |objects: &[IpvsObject]| objects.iter().any(|object| matches!(object, IpvsObject::Table(_)));
    let mut all = if has_table(&objects.delete) {
        // The table's contents are deleted with it.
        let mut encoded = Encoded::new(family);
        encoded.each(Op::Delete, &objects.delete, |batch, object| {
            if matches!(object, IpvsObject::Table(_)) {
                batch.delete_table();
            }
        });
        vec![encoded]
    } else if has_table(&objects.create) || has_table(&objects.replace) {
        vec![Encoded::table(family, objects)]
    } else {
        vec![Encoded::ahead(family, objects), Encoded::main(family, objects), Encoded::behind(family, objects)]
    };
    all.retain(|encoded| !encoded.batch.is_empty());
    all
}

// === impl Encoded ===

impl Encoded {
    fn new(family: Family) -> Self {
        Self { batch: nft::Batch::new(family, TABLE), marks: Marks::default() }
    }

    /// All of a table that is created or replaced as a whole.
    fn table(family: Family, objects: &Batch<IpvsObject>) -> Self {
        let mut encoded = Self::new(family);
        if objects.replace.iter().any(|object| matches!(object, IpvsObject::Table(_))) {
            encoded.batch.delete_table();
        }
        encoded.create(family, objects, |_| true);
        encoded
    }

    fn ahead(family: Family, objects: &Batch<IpvsObject>) -> Self {
        let mut encoded = Self::new(family);
        let ahead = Batch { create: objects.create.clone(), ..Batch::default() };
        encoded.create(family, &ahead, is_restriction);
        encoded
    }

    fn main(family: Family, objects: &Batch<IpvsObject>) -> Self {
        let mut encoded = Self::new(family);
        encoded.each(Op::Delete, &objects.delete, delete_element);
        encoded.each(Op::Replace, &objects.replace, delete_element);
        encoded.create(family, objects, |object| !is_restriction(object));
        encoded.each(Op::Delete, &objects.delete, |batch, object| match object {
            IpvsObject::Chain(ChainName::Fixed(name), _) => {
                batch.flush_chain(name.name());
                batch.delete_chain(name.name());
            }
            IpvsObject::Set(name) => batch.delete_set(&name.to_string()),
            IpvsObject::Table(_)
            | IpvsObject::Ranges(..)
            | IpvsObject::Chain(ChainName::Restricted(_), _)
            | IpvsObject::Element(..)
            | IpvsObject::Server(..)
            | IpvsObject::Address(..) => {}
        });
        encoded
    }

    fn behind(family: Family, objects: &Batch<IpvsObject>) -> Self {
        let mut encoded = Self::new(family);
        encoded.each(Op::Delete, &objects.delete, |batch, object| {
            if let IpvsObject::Chain(name @ ChainName::Restricted(_), _) = object {
                batch.flush_chain(&name.to_string());
                batch.delete_chain(&name.to_string());
            }
        });
        encoded.each(Op::Delete, &objects.delete, |batch, object| {
            if let IpvsObject::Ranges(id, _) = object {
                batch.delete_set(&SetName::Sources(*id).to_string());
            }
        });
        encoded
    }

    /// Writes the created and replaced objects that are `wanted`.
    fn create(&mut self, family: Family, objects: &Batch<IpvsObject>, wanted: impl Fn(&IpvsObject) -> bool) {
        // A replaced table comes before the objects that are created in it.
        let lists = [(Op::Replace, &objects.replace), (Op::Create, &objects.create)];
        for (op, list) in lists {
            self.each(op, list, |batch, object| match object {
                _ if op == Op::Create && !wanted(object) => {}
                IpvsObject::Table(Table::Ours) => batch.add_table(Some(TABLE_COMMENT)),
                IpvsObject::Set(name) => batch.add_set(&layout::shape(*name, family)),
                IpvsObject::Ranges(id, ranges) => {
                    fill_set(batch, &layout::shape(SetName::Sources(*id), family), ranges);
                }
                IpvsObject::Chain(name, _) if op == Op::Create => batch.add_chain(&name.chain()),
                IpvsObject::Table(Table::Foreign)
                | IpvsObject::Chain(..)
                | IpvsObject::Element(..)
                | IpvsObject::Server(..)
                | IpvsObject::Address(..) => {}
            });
        }
        // After all chains exist, since rules refer to other chains.
        for (op, list) in lists {
            self.each(op, list, |batch, object| match object {
                IpvsObject::Chain(name, rules) if op == Op::Replace || wanted(object) => {
                    fill_chain(batch, &name.to_string(), rules);
                }
                _ => {}
            });
        }
        for (op, list) in lists {
            self.each(op, list, |batch, object| {
                if op == Op::Replace || wanted(object) {
                    add_element(batch, object);
                }
            });
        }
    }

    fn each(&mut self, op: Op, objects: &[IpvsObject], write: impl Fn(&mut nft::Batch, &IpvsObject)) {
        self.marks.write(&mut self.batch, op, objects, write);
    }
}

/// True for the set of source ranges and its chain.
fn is_restriction(object: &IpvsObject) -> bool {
    matches!(object, IpvsObject::Ranges(..) | IpvsObject::Chain(ChainName::Restricted(_), _))
}

fn delete_element(batch: &mut nft::Batch, object: &IpvsObject) {
    if let IpvsObject::Element(key, _) = object {
        batch.delete_element(key.set().name(), key_bytes(key).as_slice(), None);
    }
}

fn add_element(batch: &mut nft::Batch, object: &IpvsObject) {
    let IpvsObject::Element(key, value) = object else { return };
    let (set, bytes): (&str, _) = (ElementKey::set(key).name(), key_bytes(key));
    with_data(*value, |data| batch.add_element(set, bytes.as_slice(), None, data));
}

#[cfg(test)]
mod tests {
    use ferry_ruleset::sources::{Ranges, SourcesId};
    use ferry_ruleset::{Rule, Rules};

    use super::*;
    use crate::names::FixedChain;
    use crate::object::Value;

    fn id() -> SourcesId {
        Ranges::new(&["10.0.0.0/8".parse().unwrap()]).id()
    }

    fn ranges() -> IpvsObject {
        IpvsObject::Ranges(id(), Ranges::new(&["10.0.0.0/8".parse().unwrap()]))
    }

    fn chain(name: ChainName) -> IpvsObject {
        IpvsObject::Chain(name, Rules([Rule { exprs: Vec::new(), text: String::new() }].into()))
    }

    fn bound(last: u8, value: Value) -> IpvsObject {
        IpvsObject::Element(ElementKey::BoundIp([10, 96, 0, last].into()), value)
    }

    /// The operations of each transaction in their order.
    fn order(objects: &Batch<IpvsObject>) -> Vec<Vec<(Op, usize)>> {
        let operations = |encoded: Encoded| encoded.marks.as_slice().iter().map(|mark| (mark.op, mark.index)).collect();
        transactions(Family::V4, objects).into_iter().map(operations).collect()
    }

    #[test]
    fn restrictions_are_made_ahead_and_deleted_behind() {
        let restricted = || chain(ChainName::Restricted(id()));
        let create = vec![ranges(), restricted(), bound(1, Value::None)];
        let created = order(&Batch { create, ..Batch::default() });
        let (create, delete) = (Op::Create, Op::Delete);
        assert_eq!(created, [vec![(create, 0), (create, 1), (create, 1)], vec![(create, 2)]]);
        let deleted = order(&Batch { delete: vec![bound(1, Value::None), restricted(), ranges()], ..Batch::default() });
        assert_eq!(deleted, [vec![(delete, 0)], vec![(delete, 1), (delete, 2)]]);
    }

    #[test]
    fn elements_that_change_are_replaced_in_one_transaction() {
        let key = ElementKey::NodePort { protocol: ferry_api::object::Protocol::Tcp, port: 30_080 };
        let replace = vec![chain(ChainName::Fixed(FixedChain::Services)), IpvsObject::Element(key, Value::Drop)];
        let objects = Batch { create: vec![bound(1, Value::None)], replace, delete: vec![bound(2, Value::None)] };
        let wanted = [(Op::Delete, 0), (Op::Replace, 1), (Op::Replace, 0), (Op::Replace, 1), (Op::Create, 0)];
        assert_eq!(order(&objects), [wanted]);
    }

    #[test]
    fn a_table_comes_and_goes_as_a_whole() {
        let table = || IpvsObject::Table(Table::Ours);
        let delete = vec![bound(1, Value::None), table()];
        assert_eq!(order(&Batch { delete, ..Batch::default() }), [[(Op::Delete, 1)]]);
        let objects = Batch { create: vec![ranges()], replace: vec![table()], delete: vec![] };
        assert_eq!(order(&objects), [[(Op::Replace, 0), (Op::Create, 0)]]);
        assert_eq!(order(&Batch::default()), Vec::<Vec<_>>::new());
    }
}
