//! Two services, one VIP:port or nodePort: who wins.
//!
//! The one whose cluster IP it is; among equals the older one (metadata.creationTimestamp; one without counts as the
//! newest), then the first by namespace and name.
//! So the winner doesn't depend on the order of arrival, and a newcomer can't take over traffic by its name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ferry_api::object::{Family, ObjectName, Protocol, Service, Timestamp};

use crate::state::{FrontendAddr, FrontendKind};
use crate::visible::{Visible, valid_ports};

/// Which service owns a frontend. Incremental: a change costs as much as the service has frontends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    owners: HashMap<Key, Arc<Claimant>>,
    /// frontends that several services want, with all of them, the owner first
    contested: BTreeMap<Key, BTreeSet<Arc<Claimant>>>,
}

/// What can be owned only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    at: FrontendAddr,
    protocol: Protocol,
    /// the same nodePort may belong to one service in IPv4 and to another in IPv6
    family: Family,
}

/// A service that wants frontends; the least wins. One allocation for all frontends of a service that have one rank.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    rank: Rank,
    created: Timestamp,
    name: ObjectName,
}

/// How good a claim is by its kind. A cluster IP is given by the cluster, while an external IP is written by whoever may
/// write a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    ClusterIp,
    Other,
}

/// How a service stands that claims a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing<'a> {
    /// it has the frontend
    Owner,
    /// this one has it
    LosesTo(&'a ObjectName),
    /// one of many has it
    Loses,
}

/// So many of those who lose a frontend are told who has it: the first in line. If all were, ten thousand Services that
/// name one address would have to be decided about again whenever the first of them goes.
const NAMED: usize = 8;

/// When a service was made that doesn't say so: after all others.
const UNDATED: Timestamp = Timestamp { seconds: i64::MAX, nanoseconds: u32::MAX };

const _: () = assert!(size_of::<(Key, Arc<Claimant>)>() <= 32, "there are several of these per service");

// === impl Claims ===

impl Claims {
    /// The service that owns a frontend; `None` if no service claims it.
    pub fn owner(&self, family: Family, at: FrontendAddr, protocol: Protocol) -> Option<&ObjectName> {
        self.owners.get(&Key { at, protocol, family }).map(|claimant| &claimant.name)
    }

    /// How a service stands that claims a frontend.
    pub(crate) fn standing(
        &self,
        name: &ObjectName,
        family: Family,
        at: FrontendAddr,
        protocol: Protocol,
    ) -> Standing<'_> {
        let key = Key { at, protocol, family };
        let Some(owner) = self.owner(family, at, protocol).filter(|owner| *owner != name) else {
            return Standing::Owner;
        };
        let named = self.contested.get(&key).into_iter().flat_map(first);
        if named.map(|claimant| &claimant.name).any(|named| named == name) {
            Standing::LosesTo(owner)
        } else {
            Standing::Loses
        }
    }

    /// Replaces what a service claims, and names the other services that win or lose a frontend by that, or lose it to
    /// another one than before.
    pub(crate) fn change(
        &mut self,
        before: Option<&Service>,
        after: Option<&Service>,
        dirty: &mut BTreeSet<ObjectName>,
    ) {
        let old_keys = before.map(keys).unwrap_or_default();
        let new_keys = after.map(keys).unwrap_or_default();
        for rank in [Rank::ClusterIp, Rank::Other] {
            let of_rank = |keys: &[(Key, Rank)]| -> Vec<Key> {
                keys.iter().filter(|(_, of)| *of == rank).map(|(key, _)| *key).collect()
            };
            let old = before.map(|service| Claimant::of(service, rank));
            let new = after.map(|service| Claimant::of(service, rank));
            self.change_rank((old, &of_rank(&old_keys)), (new, &of_rank(&new_keys)), dirty);
        }
    }

    /// The same for the claims of one rank.
    fn change_rank(
        &mut self,
        (old, old_keys): (Option<Claimant>, &[Key]),
        (new, new_keys): (Option<Claimant>, &[Key]),
        dirty: &mut BTreeSet<ObjectName>,
    ) {
        let same = old == new;
        let known = |keys: &[Key], key: &Key| same && keys.binary_search(key).is_ok();
        // A service that claims more keeps the allocation that it has.
        let kept = old_keys.iter().filter_map(|key| self.owners.get(key)).find(|owner| Some(&***owner) == new.as_ref());
        let new = kept.cloned().or_else(|| new.map(Arc::new));
        if let Some(old) = &old {
            for key in old_keys.iter().filter(|key| !known(new_keys, key)) {
                self.release(key, old, dirty);
            }
        }
        if let Some(new) = &new {
            for key in new_keys.iter().filter(|key| !known(old_keys, key)) {
                self.claim(*key, new, dirty);
            }
        }
    }

    fn claim(&mut self, key: Key, claimant: &Arc<Claimant>, dirty: &mut BTreeSet<ObjectName>) {
        let Some(owner) = self.owners.get(&key).cloned() else {
            self.owners.insert(key, Arc::clone(claimant));
            return;
        };
        let all = self.contested.entry(key).or_insert_with(|| BTreeSet::from([Arc::clone(&owner)]));
        if *claimant < owner {
            dirty.extend(first(all).map(|other| other.name.clone()));
            self.owners.insert(key, Arc::clone(claimant));
        } else if let Some(last) = first(all).nth(NAMED)
            && claimant < last
        {
            dirty.insert(last.name.clone());
        }
        all.insert(Arc::clone(claimant));
    }

    fn release(&mut self, key: &Key, claimant: &Claimant, dirty: &mut BTreeSet<ObjectName>) {
        let Some(all) = self.contested.get_mut(key) else {
            self.owners.remove(key);
            return;
        };
        let was_named = first(all).any(|other| **other == *claimant);
        all.remove(claimant);
        if let Some(next) = all.first()
            && self.owners.get(key).is_some_and(|owner| **owner == *claimant)
        {
            dirty.extend(first(all).map(|other| other.name.clone()));
            self.owners.insert(*key, Arc::clone(next));
        } else if was_named {
            dirty.extend(first(all).nth(NAMED).map(|other| other.name.clone()));
        }
        if all.len() <= 1 {
            self.contested.remove(key);
        }
    }
}

// === impl Claimant ===

impl Claimant {
    fn of(service: &Service, rank: Rank) -> Self {
        Self { rank, created: service.created.unwrap_or(UNDATED), name: service.name.clone() }
    }
}

/// The owner, and those who are told its name.
fn first(all: &BTreeSet<Arc<Claimant>>) -> impl Iterator<Item = &Arc<Claimant>> {
    all.iter().take(NAMED + 1)
}

/// All that a service claims, sorted, each once and with its best rank.
fn keys(service: &Service) -> Vec<(Key, Rank)> {
    let ports = valid_ports(service, &mut |_| {});
    let mut keys = Vec::with_capacity(ports.len() * 4);
    for visible in Family::ALL.into_iter().filter_map(|family| Visible::of(service, family)) {
        let mut frontends = visible.frontends();
        for port in &ports {
            keys.extend(frontends.of_port(port).0.iter().map(|address| {
                let rank = if address.kind == FrontendKind::ClusterIp { Rank::ClusterIp } else { Rank::Other };
                (Key { at: address.at, protocol: port.protocol, family: visible.family }, rank)
            }));
        }
    }
    keys.sort_unstable();
    keys.dedup_by_key(|(key, _)| *key);
    keys
}

#[cfg(test)]
mod tests;
