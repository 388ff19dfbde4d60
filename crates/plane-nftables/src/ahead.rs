//! What is committed ahead of a transaction, so that no packet that comes in the very moment of it finds less than it should.
//!
//! nf_tables changes generations between the lookups of a packet, not between packets. What that does to verdicts and slots, the
//! late chains mend by looking again (`base`). Two things need a step of their own. A new set with intervals is empty to packets
//! for a while after its transaction took effect, and a source that is in none of the ranges is dropped: so such sets are made
//! ahead. And rules write the memories at any time, also while the endpoint that a client is remembered with goes.

use std::collections::HashSet;

use ferry_kernel::nft;
use ferry_model::Scope;
use ferry_plane::Batch;

use crate::names::{PortId, SetName, SourcesId};
use crate::object::{ElementKey, NftObject, Table};

/// What the transaction itself need not do any more, or has to do besides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ahead {
    /// sets of source ranges that are made already
    pub(crate) made: HashSet<SourcesId>,
    /// elements that are deleted already
    pub(crate) deleted: HashSet<ElementKey>,
    /// keys of memories that are to be forgotten
    pub(crate) forget: Vec<(SetName, nft::Octets)>,
}

/// The sets of source ranges that the batch makes in a table that stays.
pub(crate) fn ranges(batch: &Batch<NftObject>) -> Vec<NftObject> {
    let all = batch.create.iter().chain(&batch.replace).chain(&batch.delete);
    if all.into_iter().any(|object| matches!(object, NftObject::Table(_))) {
        return Vec::new();
    }
    batch.create.iter().filter(|object| matches!(object, NftObject::Ranges(..))).cloned().collect()
}

/// The endpoints that go from sets of those that may be remembered, where the memories stay; and these memories.
pub(crate) fn members(batch: &Batch<NftObject>) -> (Vec<NftObject>, HashSet<(PortId, Scope)>) {
    let mut going = HashSet::new();
    for object in batch.delete.iter().chain(&batch.replace) {
        match object {
            NftObject::Table(Table::Ours | Table::Foreign) => return (Vec::new(), HashSet::new()),
            NftObject::Set(SetName::Memory(id, scope)) => drop(going.insert((*id, *scope))),
            NftObject::Set(_) | NftObject::Ranges(..) | NftObject::Chain(..) | NftObject::Element(..) => {}
        }
    }
    let mut memories = HashSet::new();
    let members = batch.delete.iter().filter(|object| match object {
        NftObject::Element(ElementKey::Member { id, scope, .. }, _) if !going.contains(&(*id, *scope)) => {
            memories.insert((*id, *scope));
            true
        }
        NftObject::Element(..)
        | NftObject::Table(_)
        | NftObject::Set(_)
        | NftObject::Ranges(..)
        | NftObject::Chain(..) => false,
    });
    let members = members.cloned().collect();
    (members, memories)
}

/// A batch that only adds and deletes these.
pub(crate) fn step(create: Vec<NftObject>, delete: Vec<NftObject>) -> Batch<NftObject> {
    Batch { create, delete, ..Batch::default() }
}
