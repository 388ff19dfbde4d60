//! Contested frontends: which Service gets an address and port that several claim.
//!
//! A cluster IP comes before a load balancer address, that before a node port, and that before an external IP, which
//! every author of a Service may set (CVE-2020-8554). Among equals the older one (metadata.creationTimestamp; one
//! without counts as the newest), then the first by namespace and name.
//! So the winner doesn't depend on the order of arrival, and a newcomer can't take over traffic by its name.
//!
//! A node port is at an address of this machine, if that serves node ports. An external IP that is such an address loses
//! the numbers of all node ports; a cluster IP or load balancer address that is one has its own number, and the node port is
//! served at the other addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ferry_api::object::{Family, ObjectName, Protocol, Service, Timestamp};

use crate::state::{FrontendAddr, FrontendKind};
use crate::visible::{ValidPort, Visible, VisibleAddress, valid_ports};

/// Ownership of frontends by services. Incremental: the cost of a change is proportional to the service's frontends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    owners: HashMap<ClaimKey, Arc<Claimant>>,
    /// frontends that several services want, with all of them, the owner first
    contested: BTreeMap<ClaimKey, BTreeSet<Arc<Claimant>>>,
    /// addresses of this machine that serve node ports
    node_addresses: BTreeSet<IpAddr>,
    /// number of owned VIPs by port
    vips: HashMap<(Family, Protocol, u16), usize>,
}

/// A frontend key with exactly one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ClaimKey {
    at: FrontendAddr,
    protocol: Protocol,
    /// the same nodePort may belong to one service in IPv4 and to another in IPv6
    family: Family,
}

/// A service that claims frontends; the least wins. One allocation for all frontends of a service that have one rank.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    rank: Rank,
    created: Timestamp,
    name: ObjectName,
}

/// Rank of a claim by its kind, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    ClusterIp,
    LoadBalancer,
    NodePort,
    ExternalIp,
}

/// The outcome of a service's claim to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing<'a> {
    /// it has the frontend
    Owner,
    /// this one has it
    LosesTo(&'a ObjectName),
    /// one of many has it
    Loses,
    /// it is an address of this node, and the port a node port of the same service
    NodePortToo,
}

/// Losers of a frontend whose diagnostic names the owner: the first in line. With all of them named, ten thousand Services that
/// claim one address would all be resolved again whenever the owner is deleted.
const NAMED: usize = 8;

/// Creation time of a service without one: later than all others.
const UNDATED: Timestamp = Timestamp { seconds: i64::MAX, nanoseconds: u32::MAX };

const _: () = assert!(size_of::<(ClaimKey, Arc<Claimant>)>() <= 32, "there are several of these per service");

// === impl Claims ===

impl Claims {
    /// The number of frontends that Services claim.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// True if no Service claims any.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// The service that owns a frontend; `None` if no service claims it.
    pub fn owner(&self, family: Family, at: FrontendAddr, protocol: Protocol) -> Option<&ObjectName> {
        self.winner(ClaimKey { at, protocol, family }).map(|winner| &winner.name)
    }

    /// The services that claim a frontend, the first in line first.
    pub fn claimants(&self, family: Family, at: FrontendAddr, protocol: Protocol) -> impl Iterator<Item = &ObjectName> {
        self.all_at(ClaimKey { at, protocol, family }).map(|claimant| &claimant.name)
    }

    /// The owner of a frontend, by a claim to it or to a node port that ranks before it.
    fn winner(&self, key: ClaimKey) -> Option<&Claimant> {
        let owner = self.owners.get(&key)?;
        let by_node_port = || self.owners.get(&self.node_port_at(key)?);
        Some(if owner.rank > Rank::NodePort { by_node_port().unwrap_or(owner) } else { owner })
    }

    /// The node port that coincides with a VIP, if its address serves node ports.
    fn node_port_at(&self, key: ClaimKey) -> Option<ClaimKey> {
        match key.at {
            FrontendAddr::Vip(vip, port) if self.node_addresses.contains(&vip) => {
                Some(ClaimKey { at: FrontendAddr::NodePort(port), ..key })
            }
            FrontendAddr::Vip(..) | FrontendAddr::NodePort(_) => None,
        }
    }

    /// The outcome of a service's claim to a frontend.
    pub(crate) fn standing(
        &self,
        name: &ObjectName,
        family: Family,
        at: FrontendAddr,
        protocol: Protocol,
    ) -> Standing<'_> {
        let key = ClaimKey { at, protocol, family };
        let Some(owner) = self.owners.get(&key) else { return Standing::Owner };
        let Some(winner) = self.winner(key).filter(|winner| *winner != &**owner || winner.name != *name) else {
            return Standing::Owner;
        };
        if winner.name == *name {
            return Standing::NodePortToo;
        }
        let mut told = self.first_at(key);
        if told.any(|told| told.name == *name) { Standing::LosesTo(&winner.name) } else { Standing::Loses }
    }

    /// A node address where the service's node port is shadowed, because it is another service's cluster IP or load balancer
    /// address; with that service.
    pub(crate) fn shadow(
        &self,
        name: &ObjectName,
        family: Family,
        port: u16,
        protocol: Protocol,
    ) -> Option<(IpAddr, &ObjectName)> {
        self.shadows(family, port, protocol).find(|(_, owner)| *owner != name)
    }

    /// The node addresses that are a cluster IP or load balancer address with the number of a node port, sorted; with the
    /// services, of which one may be that of the node port.
    pub(crate) fn shadows(
        &self,
        family: Family,
        port: u16,
        protocol: Protocol,
    ) -> impl Iterator<Item = (IpAddr, &ObjectName)> {
        self.vips_at_node(family, protocol, port).filter_map(|(address, key)| {
            let owner = self.owners.get(&key).filter(|owner| owner.rank < Rank::NodePort)?;
            Some((address, &owner.name))
        })
    }

    /// The VIPs that would be in conflict with a node port.
    fn vips_at_node(
        &self,
        family: Family,
        protocol: Protocol,
        port: u16,
    ) -> impl Iterator<Item = (IpAddr, ClaimKey)> + use<'_> {
        // Few VIPs have the number of a node port, and a node may have many addresses.
        let any = self.vips.contains_key(&(family, protocol, port));
        let addresses = self.node_addresses.iter().filter(move |address| any && Family::of(**address) == family);
        addresses.map(move |address| (*address, ClaimKey { at: FrontendAddr::Vip(*address, port), protocol, family }))
    }

    /// Replaces the addresses of this machine that serve node ports; returns the services that win or lose a frontend by that.
    pub(crate) fn serve_node_ports_at(&mut self, addresses: BTreeSet<IpAddr>) -> BTreeSet<ObjectName> {
        let mut dirty = BTreeSet::new();
        let before = std::mem::replace(&mut self.node_addresses, addresses);
        let changed: BTreeSet<IpAddr> = before.symmetric_difference(&self.node_addresses).copied().collect();
        if changed.is_empty() {
            return dirty;
        }
        for key in self.owners.keys() {
            if let FrontendAddr::Vip(vip, port) = key.at
                && changed.contains(&vip)
                && let Some(node_port) = self.owners.get(&ClaimKey { at: FrontendAddr::NodePort(port), ..*key })
            {
                dirty.insert(node_port.name.clone());
                dirty.extend(self.first_at(*key).map(|claimant| claimant.name.clone()));
            }
        }
        dirty
    }

    /// The owner of a frontend, and all rival claims.
    fn all_at(&self, key: ClaimKey) -> impl Iterator<Item = &Arc<Claimant>> {
        let contested = self.contested.get(&key);
        let alone = if contested.is_none() { self.owners.get(&key) } else { None };
        contested.into_iter().flatten().chain(alone)
    }

    /// The owner of a frontend, and the first rival claims.
    fn first_at(&self, key: ClaimKey) -> impl Iterator<Item = &Arc<Claimant>> {
        self.all_at(key).take(NAMED + 1)
    }

    /// Records a changed owner of a frontend; returns the services that are affected beside the rival claims.
    fn note_owner(&self, key: ClaimKey, dirty: &mut BTreeSet<ObjectName>) {
        match key.at {
            FrontendAddr::NodePort(port) => {
                for (_, key) in self.vips_at_node(key.family, key.protocol, port) {
                    dirty.extend(self.first_at(key).map(|claimant| claimant.name.clone()));
                }
            }
            FrontendAddr::Vip(..) => {
                let node_port = self.node_port_at(key).and_then(|node_port| self.owners.get(&node_port));
                dirty.extend(node_port.map(|claimant| claimant.name.clone()));
            }
        }
    }

    /// One more or one less VIP is owned.
    fn count_vip(&mut self, key: ClaimKey, is_there: bool) {
        let FrontendAddr::Vip(_, port) = key.at else { return };
        let port = (key.family, key.protocol, port);
        let count = self.vips.entry(port).or_default();
        *count = if is_there { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.vips.remove(&port);
        }
    }

    /// Replaces the claims of a service; returns the other services that win or lose a frontend by that, or lose it to another
    /// service than before.
    pub(crate) fn change(
        &mut self,
        before: Option<&Service>,
        after: Option<&Service>,
        dirty: &mut BTreeSet<ObjectName>,
    ) {
        let old_keys = before.map(keys).unwrap_or_default();
        let new_keys = after.map(keys).unwrap_or_default();
        for rank in [Rank::ClusterIp, Rank::LoadBalancer, Rank::NodePort, Rank::ExternalIp] {
            let of_rank = |keys: &[(ClaimKey, Rank)]| -> Vec<ClaimKey> {
                keys.iter().filter(|(_, of)| *of == rank).map(|(key, _)| *key).collect()
            };
            let (old_keys, new_keys) = (of_rank(&old_keys), of_rank(&new_keys));
            if !old_keys.is_empty() || !new_keys.is_empty() {
                let old = before.map(|service| Claimant::of(service, rank));
                let new = after.map(|service| Claimant::of(service, rank));
                self.change_rank((old, &old_keys), (new, &new_keys), dirty);
            }
        }
    }

    /// The same for the claims of one rank.
    fn change_rank(
        &mut self,
        (old, old_keys): (Option<Claimant>, &[ClaimKey]),
        (new, new_keys): (Option<Claimant>, &[ClaimKey]),
        dirty: &mut BTreeSet<ObjectName>,
    ) {
        let same = old == new;
        let known = |keys: &[ClaimKey], key: &ClaimKey| same && keys.binary_search(key).is_ok();
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

    fn claim(&mut self, key: ClaimKey, claimant: &Arc<Claimant>, dirty: &mut BTreeSet<ObjectName>) {
        let Some(owner) = self.owners.get(&key).cloned() else {
            self.owners.insert(key, Arc::clone(claimant));
            self.count_vip(key, true);
            self.note_owner(key, dirty);
            return;
        };
        let all = self.contested.entry(key).or_insert_with(|| BTreeSet::from([Arc::clone(&owner)]));
        if *claimant < owner {
            dirty.extend(first(all).map(|other| other.name.clone()));
            all.insert(Arc::clone(claimant));
            self.owners.insert(key, Arc::clone(claimant));
            return self.note_owner(key, dirty);
        }
        if let Some(last) = first(all).nth(NAMED)
            && claimant < last
        {
            dirty.insert(last.name.clone());
        }
        all.insert(Arc::clone(claimant));
    }

    fn release(&mut self, key: &ClaimKey, claimant: &Claimant, dirty: &mut BTreeSet<ObjectName>) {
        let Some(all) = self.contested.get_mut(key) else {
            self.owners.remove(key);
            self.count_vip(*key, false);
            return self.note_owner(*key, dirty);
        };
        let mut changed = false;
        let was_named = first(all).any(|other| **other == *claimant);
        all.remove(claimant);
        if let Some(next) = all.first()
            && self.owners.get(key).is_some_and(|owner| **owner == *claimant)
        {
            dirty.extend(first(all).map(|other| other.name.clone()));
            self.owners.insert(*key, Arc::clone(next));
            changed = true;
        } else if was_named {
            dirty.extend(first(all).nth(NAMED).map(|other| other.name.clone()));
        }
        if all.len() <= 1 {
            self.contested.remove(key);
        }
        if changed {
            self.note_owner(*key, dirty);
        }
    }
}

// === impl Rank ===

impl Rank {
    fn of(kind: FrontendKind) -> Self {
        match kind {
            FrontendKind::ClusterIp => Self::ClusterIp,
            FrontendKind::LoadBalancer => Self::LoadBalancer,
            FrontendKind::NodePort => Self::NodePort,
            FrontendKind::ExternalIp => Self::ExternalIp,
        }
    }
}

// === impl Claimant ===

impl Claimant {
    fn of(service: &Service, rank: Rank) -> Self {
        Self { rank, created: service.created.unwrap_or(UNDATED), name: service.name.clone() }
    }
}

/// The owner, and the losers whose diagnostic names it.
fn first(all: &BTreeSet<Arc<Claimant>>) -> impl Iterator<Item = &Arc<Claimant>> {
    all.iter().take(NAMED + 1)
}

/// The field of a service by which it claims a frontend, that of its best claim; `None` if it doesn't.
pub fn claiming_field(service: &Service, family: Family, at: FrontendAddr, protocol: Protocol) -> Option<String> {
    let ports = valid_ports(service, &mut |_, _, _| {});
    let all = addresses(Visible::of(service, family)?, &ports);
    let claims = all.filter(|(of, address)| *of == protocol && address.at == at);
    claims.min_by_key(|(_, address)| Rank::of(address.kind)).map(|(_, address)| address.field().to_string())
}

/// The addresses of all ports of a service in one family, with the ports' protocols.
fn addresses(visible: Visible<'_>, ports: &[ValidPort<'_>]) -> impl Iterator<Item = (Protocol, VisibleAddress)> {
    let mut frontends = visible.frontends();
    ports.iter().flat_map(move |port| {
        let protocol = port.protocol;
        frontends.of_port(port).0.into_iter().map(move |address| (protocol, address))
    })
}

/// All claims of a service, sorted, each once and with its best rank.
fn keys(service: &Service) -> Vec<(ClaimKey, Rank)> {
    let ports = valid_ports(service, &mut |_, _, _| {});
    let mut keys = Vec::with_capacity(ports.len() * 4);
    for visible in Family::ALL.into_iter().filter_map(|family| Visible::of(service, family)) {
        let family = visible.family;
        keys.extend(
            addresses(visible, &ports)
                .map(|(protocol, address)| (ClaimKey { at: address.at, protocol, family }, Rank::of(address.kind))),
        );
    }
    keys.sort_unstable();
    keys.dedup_by_key(|(key, _)| *key);
    keys
}

#[cfg(test)]
mod tests;
