//! Affinity memories: rules write them, and an endpoint that is gone has to be forgotten.
//!
//! A first transaction takes the endpoint out of the set of those that may be remembered, so that nobody can be taught it
//! any more; then the memory is read, and the transaction that takes the endpoint's slots deletes what holds it. So no
//! client is sent there from then on. A packet that was just being learnt may come in between: there is another look.

use std::collections::{BTreeMap, HashSet};
use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, CommitFailure, OwnedData, Socket};
use ferry_model::{Endpoint, Scope};

use crate::encode::kernel_family;
use crate::names::{PortId, SetName, TABLE};
use crate::object::{ElementKey, NftObject};
use crate::watch::CommitTurn;
use crate::wire;

/// Memories that may hold endpoints they should not, and how many looks each still gets.
#[derive(Debug, Default)]
pub(crate) struct Memories(BTreeMap<(PortId, Scope), u8>);

/// A packet under way when the transaction took effect may teach the endpoint once more, so there is a second look.
pub(crate) const LOOKS: u8 = 2;
/// Entries expire while they are deleted; so often it is tried again.
pub(crate) const TRIES: usize = 3;

// === impl Memories ===

impl Memories {
    /// Some memory may be an earlier run's that ended in between.
    pub(crate) fn doubt_all(&mut self, objects: &[NftObject]) {
        for object in objects {
            if let NftObject::Set(SetName::Memory(id, scope)) = object {
                self.0.insert((*id, *scope), LOOKS);
            }
        }
    }

    /// Endpoints were taken out of the sets of those that may be remembered there.
    pub(crate) fn doubt(&mut self, memories: &HashSet<(PortId, Scope)>, looks: u8) {
        self.0.extend(memories.iter().map(|memory| (*memory, looks)));
    }

    /// Forgets what should be. What fails is tried again at the next call.
    pub(crate) fn purge(&mut self, socket: &mut Socket, turn: &CommitTurn, family: Family) {
        if self.0.is_empty() {
            return;
        }
        let _turn = turn.take();
        self.0.retain(|(id, scope), looks| match purge(socket, family, *id, *scope) {
            Ok(()) => {
                *looks -= 1;
                *looks > 0
            }
            // The memory is gone with its service.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        });
    }
}

fn purge(socket: &mut Socket, family: Family, id: PortId, scope: Scope) -> io::Result<()> {
    for _ in 0..TRIES {
        let mut batch = nft::Batch::new(kernel_family(family), TABLE);
        for (memory, key) in stale(socket, family, id, scope)? {
            batch.delete_element(&memory.to_string(), key.as_slice(), None);
        }
        match socket.commit(batch) {
            Ok(_) => return Ok(()),
            Err(CommitFailure::Messages(_)) => {}
            Err(CommitFailure::Io(error)) => return Err(error),
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

/// What a memory holds and should not.
pub(crate) fn stale(
    socket: &mut Socket,
    family: Family,
    id: PortId,
    scope: Scope,
) -> io::Result<Vec<(SetName, nft::Octets)>> {
    let members = members(socket, family, id, scope)?;
    let memory = SetName::Memory(id, scope);
    let mut stale = Vec::new();
    socket.elements(kernel_family(family), TABLE, &memory.to_string(), &mut |element| {
        let OwnedData::Value(value) = &element.data else { return };
        if wire::endpoint(family, value).is_none_or(|endpoint| !members.contains(&endpoint)) {
            stale.push((memory, element.key));
        }
    })?;
    Ok(stale)
}

fn members(socket: &mut Socket, family: Family, id: PortId, scope: Scope) -> io::Result<HashSet<Endpoint>> {
    let set = SetName::Members(id, scope);
    let mut members = HashSet::new();
    socket.elements(kernel_family(family), TABLE, &set.to_string(), &mut |element| {
        if let Some((ElementKey::Member { endpoint, .. }, _)) = wire::element(set, family, &element) {
            members.insert(endpoint);
        }
    })?;
    Ok(members)
}
