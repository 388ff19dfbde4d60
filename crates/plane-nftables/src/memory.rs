//! Affinity memories: rules write them, and an endpoint that is gone has to be forgotten.
//!
//! A transaction takes the endpoint out of the set of those that may be remembered, so that nobody can be taught it any
//! more; then the memory is read and what holds the endpoint is deleted. In between, a few milliseconds, a remembered
//! client is still sent there.

use std::collections::{BTreeMap, HashSet};
use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, CommitFailure, OwnedData, Socket};
use ferry_model::{Endpoint, Scope};
use ferry_plane::Batch;

use crate::encode::kernel_family;
use crate::names::{AffinityId, SetName, TABLE};
use crate::object::{ElementKey, NftObject};
use crate::watch::CommitTurn;
use crate::wire;

/// Memories that may hold endpoints they should not, and how many looks each still gets.
#[derive(Debug, Default)]
pub(crate) struct Memories(BTreeMap<(AffinityId, Scope), u8>);

/// A packet under way when the transaction took effect may teach the endpoint once more, so there is a second look.
const LOOKS: u8 = 2;
/// Entries expire while they are deleted; so often a purge starts again.
const TRIES: usize = 3;

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

    /// Endpoints were taken out of the sets of those that may be remembered.
    pub(crate) fn doubt_removed(&mut self, batch: &Batch<NftObject>) {
        for object in &batch.delete {
            if let NftObject::Element(ElementKey::Member { id, scope, .. }, _) = object {
                self.0.insert((*id, *scope), LOOKS);
            }
        }
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

fn purge(socket: &mut Socket, family: Family, id: AffinityId, scope: Scope) -> io::Result<()> {
    let members = members(socket, family, id, scope)?;
    let memory = SetName::Memory(id, scope).to_string();
    for _ in 0..TRIES {
        let mut batch = nft::Batch::new(kernel_family(family), TABLE);
        socket.elements(kernel_family(family), TABLE, &memory, &mut |element| {
            let OwnedData::Value(value) = &element.data else { return };
            if wire::endpoint(family, value).is_none_or(|endpoint| !members.contains(&endpoint)) {
                batch.delete_element(&memory, &element.key, None);
            }
        })?;
        match socket.commit(batch) {
            Ok(_) => return Ok(()),
            Err(CommitFailure::Messages(_)) => {}
            Err(CommitFailure::Io(error)) => return Err(error),
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

fn members(socket: &mut Socket, family: Family, id: AffinityId, scope: Scope) -> io::Result<HashSet<Endpoint>> {
    let set = SetName::Members(id, scope);
    let mut members = HashSet::new();
    socket.elements(kernel_family(family), TABLE, &set.to_string(), &mut |element| {
        if let Some((ElementKey::Member { endpoint, .. }, _)) = wire::element(set, family, &element) {
            members.insert(endpoint);
        }
    })?;
    Ok(members)
}
