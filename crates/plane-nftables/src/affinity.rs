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

use crate::fields;
use crate::names::{PortId, SetName, TABLE};
use crate::object::{ElementKey, NftObject};
use crate::watch::CommitTurn;
use crate::wire;

/// Memories that may hold endpoints they should not, and how many looks each still gets.
#[derive(Debug, Default)]
pub(crate) struct SuspectMaps(BTreeMap<(PortId, Scope), u8>);

/// A packet under way when the transaction took effect may teach the endpoint once more, so there is a second look.
pub(crate) const PURGES: u8 = 2;
/// Entries expire while they are deleted; so often it is tried again.
pub(crate) const TRIES: usize = 3;

// === impl Memories ===

impl SuspectMaps {
    /// Some memory may be an earlier run's that ended in between.
    pub(crate) fn suspect_all(&mut self, objects: &[NftObject]) {
        for object in objects {
            if let NftObject::Set(SetName::Affinity(id, scope)) = object {
                self.0.insert((*id, *scope), PURGES);
            }
        }
    }

    /// Endpoints were taken out of the sets of those that may be remembered there.
    pub(crate) fn suspect(&mut self, maps: &HashSet<(PortId, Scope)>, purges: u8) {
        self.0.extend(maps.iter().map(|map| (*map, purges)));
    }

    /// Forgets what should be. What fails is tried again at the next call.
    pub(crate) fn purge(&mut self, socket: &mut Socket, turn: &CommitTurn, family: Family) {
        if self.0.is_empty() {
            return;
        }
        let _turn = turn.take();
        self.0.retain(|(id, scope), purges| match purge(socket, family, *id, *scope) {
            Ok(()) => {
                *purges -= 1;
                *purges > 0
            }
            // The memory is gone with its service.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        });
    }
}

fn purge(socket: &mut Socket, family: Family, id: PortId, scope: Scope) -> io::Result<()> {
    for _ in 0..TRIES {
        let mut batch = nft::Batch::new(family, TABLE);
        for (map, key) in stale(socket, family, id, scope)? {
            batch.delete_element(&map.to_string(), key.as_slice(), None);
        }
        match socket.commit(batch) {
            Ok(_) => return Ok(()),
            Err(CommitFailure::Messages(_)) => {}
            Err(CommitFailure::Io(error) | CommitFailure::Lost(error)) => return Err(error),
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
    let map = SetName::Affinity(id, scope);
    let mut stale = Vec::new();
    socket.elements(family, TABLE, &map.to_string(), &mut |element| {
        let OwnedData::Value(value) = &element.data else { return };
        if fields::endpoint(family, value).is_none_or(|endpoint| !members.contains(&endpoint)) {
            stale.push((map, element.key));
        }
    })?;
    Ok(stale)
}

fn members(socket: &mut Socket, family: Family, id: PortId, scope: Scope) -> io::Result<HashSet<Endpoint>> {
    let set = SetName::Members(id, scope);
    let mut members = HashSet::new();
    socket.elements(family, TABLE, &set.to_string(), &mut |element| {
        if let Some((ElementKey::Member { endpoint, .. }, _)) = wire::element(set, family, &element) {
            members.insert(endpoint);
        }
    })?;
    Ok(members)
}

#[cfg(test)]
mod tests {
    use ferry_api::object::{ObjectName, Protocol};
    use ferry_kernel::netns::Namespace;
    use ferry_plane::Batch;

    use super::*;
    use crate::ahead::Ahead;
    use crate::encode::{ChainRelease, Encoded};
    use crate::object::{Table, Value};

    const FAMILY: Family = Family::V4;
    const SCOPE: Scope = Scope::Local;

    fn port_id() -> PortId {
        PortId::new(&ObjectName::new("demo", "web"), Protocol::Tcp, "http")
    }

    fn endpoint(last: u8) -> Endpoint {
        Endpoint { address: [10, 244, 0, last].into(), port: 80 }
    }

    fn member(last: u8) -> NftObject {
        NftObject::Element(ElementKey::Member { id: port_id(), scope: SCOPE, endpoint: endpoint(last) }, Value::None)
    }

    fn commit(socket: &mut Socket, create: Vec<NftObject>, delete: Vec<NftObject>) {
        let batch = Batch { create, replace: Vec::new(), delete };
        socket.commit(Encoded::new(FAMILY, &batch, ChainRelease::Now, &Ahead::default()).batch).unwrap();
    }

    /// The client 192.0.2.`last` is led to the endpoint of the same number.
    fn record(socket: &mut Socket, last: &[u8]) {
        let mut batch = nft::Batch::new(FAMILY, TABLE);
        for last in last {
            let value = fields::endpoint_bytes(endpoint(*last));
            let value = nft::ElementData::Value(value.as_slice());
            batch.add_element(&SetName::Affinity(port_id(), SCOPE).to_string(), &[192, 0, 2, *last], None, value);
        }
        socket.commit(batch).unwrap();
    }

    fn clients(socket: &mut Socket) -> Vec<u8> {
        let mut clients = Vec::new();
        let map = SetName::Affinity(port_id(), SCOPE).to_string();
        let mut add = |element: nft::Element| clients.extend(element.key.last());
        socket.elements(FAMILY, TABLE, &map, &mut add).unwrap();
        clients.sort_unstable();
        clients
    }

    /// A memory of three clients, of which the members know the endpoints of the first two.
    fn inside(test: impl Fn(&mut Socket) + Send + Sync) {
        let run = || {
            let mut socket = Socket::open().unwrap();
            let sets = [SetName::Affinity(port_id(), SCOPE), SetName::Members(port_id(), SCOPE)].map(NftObject::Set);
            let objects = [NftObject::Table(Table::Ours)].into_iter().chain(sets).chain([member(1), member(2)]);
            commit(&mut socket, objects.collect(), Vec::new());
            record(&mut socket, &[1, 2, 3]);
            test(&mut socket);
        };
        Namespace::new().unwrap().run(run).unwrap();
    }

    #[test]
    fn clients_of_endpoints_that_are_gone_are_stale() {
        inside(|socket| {
            let found = |socket: &mut Socket| -> Vec<(SetName, Vec<u8>)> {
                let mut stale = stale(socket, FAMILY, port_id(), SCOPE).unwrap();
                stale.sort_unstable();
                stale.into_iter().map(|(map, key)| (map, key.to_vec())).collect()
            };
            let client = |last| (SetName::Affinity(port_id(), SCOPE), vec![192, 0, 2, last]);
            assert_eq!(found(socket), [client(3)]);
            commit(socket, Vec::new(), vec![member(1)]);
            assert_eq!(found(socket), [client(1), client(3)]);
        });
    }

    #[test]
    fn a_suspect_map_is_purged_as_often_as_it_was_asked_for() {
        inside(|socket| {
            let turn = CommitTurn::default();
            let mut maps = SuspectMaps::default();
            maps.purge(socket, &turn, FAMILY);
            assert_eq!(clients(socket), [1, 2, 3], "no map is suspect");
            maps.suspect(&[(port_id(), SCOPE)].into(), PURGES);
            for _ in 0..PURGES {
                maps.purge(socket, &turn, FAMILY);
                assert_eq!(clients(socket), [1, 2]);
                record(socket, &[3]);
            }
            maps.purge(socket, &turn, FAMILY);
            assert_eq!(clients(socket), [1, 2, 3], "no more than that");
        });
    }

    #[test]
    fn maps_that_were_found_are_suspect_and_deleted_ones_are_not_any_more() {
        inside(|socket| {
            let turn = CommitTurn::default();
            let mut maps = SuspectMaps::default();
            let found = [member(1), NftObject::Set(SetName::Affinity(port_id(), SCOPE))];
            maps.suspect_all(&found);
            maps.purge(socket, &turn, FAMILY);
            assert_eq!(clients(socket), [1, 2]);
            commit(socket, Vec::new(), vec![NftObject::Table(Table::Ours)]);
            maps.purge(socket, &turn, FAMILY);
            assert!(maps.0.is_empty(), "{maps:?}");
        });
    }
}
