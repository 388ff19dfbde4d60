//! What is committed ahead of a transaction, so that no packet that comes in the very moment of it finds less than it should.
//!
//! nf_tables changes generations between the lookups of a packet, not between packets, and interval sets a moment later
//! than the rest. What that does to verdicts and slots, the late chains mend by looking again (`base`). Two things need
//! a step of their own: source ranges that are replaced, since who is in none of them is dropped, and endpoints that go
//! while clients are remembered with them, since rules write the memories at any time.

use std::collections::HashSet;

use ferry_kernel::nft;
use ferry_model::Scope;
use ferry_plane::Batch;

use crate::names::{PortId, SetName};
use crate::object::{ElementKey, NftObject, Table, Value, VipMap};

/// What the transaction itself need not do any more, or has to do besides.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// elements that are deleted already
    pub(crate) deleted: HashSet<ElementKey>,
    /// keys of memories that are to be forgotten
    pub(crate) forget: Vec<(SetName, nft::Octets)>,
}

/// The new source ranges of frontends that are served already, as elements of the set that lets them in beside the old
/// ones until the new ones are found where they belong.
pub(crate) fn ranges(batch: &Batch<NftObject>) -> Vec<NftObject> {
    let mut served = HashSet::new();
    for object in batch.delete.iter().chain(&batch.replace) {
        match object {
            NftObject::Element(
                ElementKey::SourceRange { vip, protocol, port, .. }
                | ElementKey::Vip { map: VipMap::Services, vip, protocol, port },
                _,
            ) => drop(served.insert((*vip, *protocol, *port))),
            // With the table, packets see all of the old one or all of the new one.
            NftObject::Table(_) => return Vec::new(),
            NftObject::Set(_) | NftObject::Chain(..) | NftObject::Element(..) => {}
        }
    }
    let coming = batch.create.iter().filter_map(|object| match object {
        NftObject::Element(ElementKey::SourceRange { vip, protocol, port, sources }, _)
            if served.contains(&(*vip, *protocol, *port)) =>
        {
            let (vip, protocol, port, sources) = (*vip, *protocol, *port, *sources);
            Some(NftObject::Element(ElementKey::NextRange { vip, protocol, port, sources }, Value::None))
        }
        NftObject::Element(..) | NftObject::Table(_) | NftObject::Set(_) | NftObject::Chain(..) => None,
    });
    coming.collect()
}

/// The endpoints that go from sets of those that may be remembered, where the memories stay; and these memories.
pub(crate) fn members(batch: &Batch<NftObject>) -> (Vec<NftObject>, HashSet<(PortId, Scope)>) {
    let mut going = HashSet::new();
    for object in batch.delete.iter().chain(&batch.replace) {
        match object {
            NftObject::Table(Table::Ours | Table::Foreign) => return (Vec::new(), HashSet::new()),
            NftObject::Set(SetName::Memory(id, scope)) => drop(going.insert((*id, *scope))),
            NftObject::Set(_) | NftObject::Chain(..) | NftObject::Element(..) => {}
        }
    }
    let mut memories = HashSet::new();
    let members = batch.delete.iter().filter(|object| match object {
        NftObject::Element(ElementKey::Member { id, scope, .. }, _) if !going.contains(&(*id, *scope)) => {
            memories.insert((*id, *scope));
            true
        }
        NftObject::Element(..) | NftObject::Table(_) | NftObject::Set(_) | NftObject::Chain(..) => false,
    });
    let members = members.cloned().collect();
    (members, memories)
}

/// A batch that only adds and deletes these.
pub(crate) fn step(create: Vec<NftObject>, delete: Vec<NftObject>) -> Batch<NftObject> {
    Batch { create, delete, ..Batch::default() }
}
