//! Deletes stale entries of session affinity maps (client → endpoint). Rules write these maps on the data path, so the entries
//! of a deleted endpoint must be removed when the endpoint goes.
//!
//! A first transaction removes the endpoint from the set of recordable endpoints, so that no rule records it any more. Then the
//! map is read, and the transaction that deletes the endpoint's slots deletes the entries with it, too: from then on no client
//! is sent there. A packet that is being recorded meanwhile may still add one: there is another purge, 250 ms later.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::nft::{self, CommitFailure, NftBatch, NftSocket, OwnedData};
use ferry_model::{Endpoint, Scope};
use ferry_ruleset::fields;

use crate::names::{PortId, SetName, TABLE};
use crate::object::{ElementKey, NftObject};
use crate::watch::NftablesCommitLock;
use crate::wire;

/// Affinity maps that may hold stale entries.
#[derive(Debug, Default)]
pub(crate) struct SuspectMaps(BTreeMap<(PortId, Scope), Suspicion>);

#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// remaining purges
    purges: u8,
    /// time of the next one; `None`: not planned yet
    due: Option<Instant>,
}

/// Purges of each map: a packet in flight when the transaction took effect may record the endpoint once more.
pub(crate) const PURGES: u8 = 2;
/// Delay of the last purge: until then a packet that met the rules of before the transaction has been recorded.
const AGAIN: Duration = Duration::from_millis(250);
/// Attempts to delete entries, which may expire in the meantime: then the transaction fails.
pub(crate) const TRIES: usize = 3;

// === impl SuspectMaps ===

impl SuspectMaps {
    /// Suspects every affinity map that was read back: an earlier run may have ended before its purge.
    pub(crate) fn suspect_all(&mut self, objects: &[NftObject]) {
        for object in objects {
            if let NftObject::Set(SetName::Affinity(id, scope)) = object {
                self.0.insert((*id, *scope), Suspicion { purges: PURGES, due: None });
            }
        }
    }

    /// Suspects maps from whose sets of recordable endpoints some were removed.
    pub(crate) fn suspect(&mut self, maps: &HashSet<(PortId, Scope)>, purges: u8) {
        self.0.extend(maps.iter().map(|map| (*map, Suspicion { purges, due: None })));
    }

    /// Deletes the stale entries of maps whose purge is due. A failed purge is repeated after a while.
    pub(crate) fn purge(
        &mut self,
        socket: &mut NftSocket,
        commit_lock: &NftablesCommitLock,
        family: Family,
        now: Instant,
    ) {
        if self.wake(now).is_none_or(|wake| wake > now) {
            return;
        }
        let _guard = commit_lock.take();
        self.0.retain(|(id, scope), suspicion| {
            if suspicion.due(now) > now {
                return true;
            }
            suspicion.due = Some(now + AGAIN);
            match purge(socket, family, *id, *scope) {
                Ok(()) => {
                    suspicion.purges -= 1;
                    suspicion.purges > 0
                }
                // The map was deleted with its service.
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            }
        });
    }

    /// Time of the next purge. The delay of a last purge begins with the first call.
    pub(crate) fn wake(&mut self, now: Instant) -> Option<Instant> {
        self.0.values_mut().map(|suspicion| suspicion.due(now)).min()
    }
}

// === impl Suspicion ===

impl Suspicion {
    fn due(&mut self, now: Instant) -> Instant {
        let delay = if self.purges < PURGES { AGAIN } else { Duration::ZERO };
        *self.due.get_or_insert(now + delay)
    }
}

fn purge(socket: &mut NftSocket, family: Family, id: PortId, scope: Scope) -> io::Result<()> {
    for _ in 0..TRIES {
        let mut batch = NftBatch::new(family, TABLE);
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

/// The entries of an affinity map whose endpoints may not be recorded any more.
pub(crate) fn stale(
    socket: &mut NftSocket,
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

fn members(socket: &mut NftSocket, family: Family, id: PortId, scope: Scope) -> io::Result<HashSet<Endpoint>> {
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
    use ferry_ruleset::read::TableOwner;

    use super::*;
    use crate::ahead::Ahead;
    use crate::encode::{ChainRelease, Encoded};
    use crate::object::Value;

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

    fn commit(socket: &mut NftSocket, create: Vec<NftObject>, delete: Vec<NftObject>) {
        let batch = Batch { create, replace: Vec::new(), delete };
        socket.commit(Encoded::new(FAMILY, &batch, ChainRelease::Now, &Ahead::default()).batch).unwrap();
    }

    /// Records for the client 192.0.2.`last` the endpoint of the same number.
    fn record(socket: &mut NftSocket, last: &[u8]) {
        let mut batch = NftBatch::new(FAMILY, TABLE);
        for last in last {
            let value = fields::endpoint_bytes(endpoint(*last));
            let value = nft::ElementData::Value(value.as_slice());
            batch.add_element(&SetName::Affinity(port_id(), SCOPE).to_string(), &[192, 0, 2, *last], None, value);
        }
        socket.commit(batch).unwrap();
    }

    fn clients(socket: &mut NftSocket) -> Vec<u8> {
        let mut clients = Vec::new();
        let map = SetName::Affinity(port_id(), SCOPE).to_string();
        let mut add = |element: nft::Element| clients.extend(element.key.last());
        socket.elements(FAMILY, TABLE, &map, &mut add).unwrap();
        clients.sort_unstable();
        clients
    }

    /// A map of three clients, of which the first two have a recordable endpoint.
    fn inside(test: impl Fn(&mut NftSocket) + Send + Sync) {
        let run = || {
            let mut socket = NftSocket::open().unwrap();
            let sets = [SetName::Affinity(port_id(), SCOPE), SetName::Members(port_id(), SCOPE)].map(NftObject::Set);
            let objects = [NftObject::Table(TableOwner::Ours)].into_iter().chain(sets).chain([member(1), member(2)]);
            commit(&mut socket, objects.collect(), Vec::new());
            record(&mut socket, &[1, 2, 3]);
            test(&mut socket);
        };
        Namespace::new().unwrap().run(run).unwrap();
    }

    #[test]
    fn clients_of_endpoints_that_are_gone_are_stale() {
        inside(|socket| {
            let found = |socket: &mut NftSocket| -> Vec<(SetName, Vec<u8>)> {
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
            let commit_lock = NftablesCommitLock::default();
            let mut maps = SuspectMaps::default();
            let mut now = Instant::now();
            maps.purge(socket, &commit_lock, FAMILY, now);
            assert_eq!((clients(socket), maps.wake(now)), (vec![1, 2, 3], None), "no map is suspect");
            let (at_once, moment) = (Duration::ZERO, Duration::from_millis(1));
            // The delay of each purge, and how late it is.
            for plan in [&[(at_once, at_once), (AGAIN, moment)][..], &[(AGAIN, at_once)]] {
                maps.suspect(&[(port_id(), SCOPE)].into(), u8::try_from(plan.len()).unwrap());
                for (delay, late) in plan {
                    let due = now + *delay;
                    assert_eq!(maps.wake(now), Some(due));
                    if due > now {
                        maps.purge(socket, &commit_lock, FAMILY, due - moment);
                        assert_eq!(clients(socket), [1, 2, 3], "not yet");
                    }
                    now = due + *late;
                    maps.purge(socket, &commit_lock, FAMILY, now);
                    assert_eq!(clients(socket), [1, 2]);
                    record(socket, &[3]);
                }
                maps.purge(socket, &commit_lock, FAMILY, now + AGAIN);
                assert_eq!((clients(socket), maps.wake(now)), (vec![1, 2, 3], None), "no more than that");
            }
        });
    }

    #[test]
    fn maps_that_were_found_are_suspect_and_deleted_ones_are_not_any_more() {
        inside(|socket| {
            let commit_lock = NftablesCommitLock::default();
            let mut maps = SuspectMaps::default();
            let found = [member(1), NftObject::Set(SetName::Affinity(port_id(), SCOPE))];
            let now = Instant::now();
            maps.suspect_all(&found);
            maps.purge(socket, &commit_lock, FAMILY, now);
            assert_eq!(clients(socket), [1, 2]);
            commit(socket, Vec::new(), vec![NftObject::Table(TableOwner::Ours)]);
            maps.purge(socket, &commit_lock, FAMILY, now + AGAIN);
            assert!(maps.0.is_empty(), "{maps:?}");
        });
    }
}
