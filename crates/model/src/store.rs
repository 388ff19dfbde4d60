//! Stores all objects by name. Applying an event returns the services whose state must be resolved again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;

use ferry_api::object::{EndpointSlice, Family, Kind, KubeObject, Node, ObjectName, Service, ServiceCidr};

use crate::claims::Claims;
use crate::context::PerFamily;
use crate::diagnostic::{Cause, Diagnostic};
use crate::node::{self, Retained};
use crate::visible::has_affinity;

/// An event from a source: an object added, changed or deleted, or a list complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// a new initial list of this kind begins; what is known stays in force until it is complete
    Restart(Kind),
    /// this object is there, new or changed
    Upsert(KubeObject),
    /// the object of this kind and name is gone
    Delete(Kind, ObjectName),
    /// the object of this kind and name is there and can't be read: what is known of it stays
    Unreadable(Kind, ObjectName),
    /// the initial list of this kind is complete: what it didn't hold is gone
    Synced(Kind),
}

/// The services to resolve again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// services to resolve again; one that is no longer in the store is gone
    pub services: BTreeSet<ObjectName>,
    /// our Node changed: the context and the base state depend on it
    pub node: bool,
    /// ServiceCIDRs changed: the base state depends on them
    pub service_cidrs: bool,
}

/// All objects that a source has delivered, in compact form. Objects that must not be proxied are kept too: `resolve` skips
/// them.
///
/// The base state depends on [`Store::uses_affinity`] besides what [`Dirty`] names; asking is free.
#[derive(Clone, Debug)]
pub struct Store {
    node_name: ObjectName,
    /// with what it has lost
    node: Option<Node>,
    retained: Retained,
    services: BTreeMap<ObjectName, ServiceEntry>,
    /// which service a slice belongs to; `None` for a slice that names none
    owners: BTreeMap<ObjectName, Option<ObjectName>>,
    service_cidrs: BTreeMap<ObjectName, ServiceCidr>,
    claims: Claims,
    with_affinity: PerFamily<usize>,
    lists: BTreeMap<Kind, ListProgress>,
    external_ips: bool,
    limits: Limits,
    load: Load,
}

/// Limits of a store, for every source: an endless source must not exhaust the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// objects of one kind
    pub objects: usize,
    /// bytes of all Services and slices, about
    pub bytes: usize,
}

/// Contents of the store, counted against its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    services: usize,
    bytes: usize,
    /// objects, or newer states of some, that found no room
    left_out: usize,
}

/// The objects of one service, for [`resolve`](crate::resolve::resolve).
#[derive(Clone, Debug)]
pub struct ServiceObjects<'a> {
    /// the Service; `None` while only slices of it are known
    pub service: Option<&'a Service>,
    /// its EndpointSlices of all address types, ordered by name
    pub slices: Vec<&'a EndpointSlice>,
}

/// A service's objects. Boxed because tree nodes are seldom full.
#[derive(Clone, Debug, Default)]
struct ServiceEntry {
    service: Option<Box<Service>>,
    /// ordered by name
    slices: Vec<EndpointSlice>,
}

/// Progress of the list of one kind.
#[derive(Clone, Debug, Default)]
struct ListProgress {
    /// it was complete at least once
    synced: bool,
    /// while a new list runs: what it hasn't held so far
    unseen: Option<BTreeSet<ObjectName>>,
}

// === impl Dirty ===

impl Dirty {
    /// True if nothing has to be resolved.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node && !self.service_cidrs
    }

    /// Adds what another event made dirty.
    pub fn merge(&mut self, other: Self) {
        self.services.extend(other.services);
        self.node |= other.node;
        self.service_cidrs |= other.service_cidrs;
    }
}

// === impl Limits ===

impl Default for Limits {
    /// Several times what the largest clusters hold.
    fn default() -> Self {
        Self { objects: 1 << 18, bytes: 1 << 30 }
    }
}

// === impl Store ===

impl Store {
    /// An empty store for the proxy of this node.
    pub fn new(node_name: &str) -> Self {
        Self::with_limits(node_name, Limits::default())
    }

    /// An empty store that holds so much at most.
    pub fn with_limits(node_name: &str, limits: Limits) -> Self {
        Self {
            limits,
            load: Load::default(),
            node_name: ObjectName::cluster_wide(node_name),
            node: None,
            retained: Retained::default(),
            services: BTreeMap::new(),
            owners: BTreeMap::new(),
            service_cidrs: BTreeMap::new(),
            claims: Claims::default(),
            with_affinity: PerFamily::default(),
            lists: BTreeMap::new(),
            external_ips: true,
        }
    }

    /// The same store, still empty, which keeps external addresses of Services only if they are served: an unserved address
    /// contests nothing.
    #[must_use]
    pub fn serving_external_ips(self, served: bool) -> Self {
        Self { external_ips: served, ..self }
    }

    /// Applies an event and returns the services to resolve again: none without a change, and of Nodes only this node's
    /// counts.
    pub fn apply(&mut self, event: Event) -> Dirty {
        let mut dirty = Dirty::default();
        match event {
            Event::Restart(kind) => {
                let known = self.names(kind);
                self.lists.entry(kind).or_default().unseen = Some(known);
            }
            Event::Upsert(object) => {
                self.see(object.kind(), object.name());
                self.upsert(object, &mut dirty);
            }
            Event::Delete(kind, name) => {
                self.see(kind, &name);
                self.delete(kind, &name, &mut dirty);
            }
            Event::Unreadable(kind, name) => self.see(kind, &name),
            Event::Synced(kind) => {
                let list = self.lists.entry(kind).or_default();
                list.synced = true;
                for name in list.unseen.take().unwrap_or_default() {
                    self.delete(kind, &name, &mut dirty);
                }
            }
        }
        dirty
    }

    /// Adds objects of a kind that an earlier run has kept, until the source's list arrives: those whose names no list has brought
    /// yet. The kind counts as synced. A list, also one that has begun, deletes those that it doesn't hold. Once a list was
    /// complete, nothing is added.
    pub fn restore(&mut self, kind: Kind, objects: impl IntoIterator<Item = KubeObject>) -> Dirty {
        let mut dirty = Dirty::default();
        if self.synced(kind) {
            return dirty;
        }
        let known = self.names(kind);
        for object in objects {
            if object.kind() != kind || known.contains(object.name()) {
                continue;
            }
            if let Some(unseen) = self.lists.get_mut(&kind).and_then(|list| list.unseen.as_mut()) {
                unseen.insert(object.name().clone());
            }
            self.upsert(object, &mut dirty);
        }
        self.lists.entry(kind).or_default().synced = true;
        dirty
    }

    /// The objects of the services behind this name, ordered by their names, or of all. Slices without a Service are left out.
    pub fn services_after(&self, name: Option<&ObjectName>) -> impl Iterator<Item = (&ObjectName, ServiceObjects<'_>)> {
        let begin = name.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.services.range::<ObjectName, _>((begin, Bound::Unbounded));
        entries.filter(|(_, entry)| entry.service.is_some()).map(|(name, entry)| (name, entry.objects()))
    }

    /// The objects of one service.
    pub fn objects(&self, name: &ObjectName) -> ServiceObjects<'_> {
        match self.services.get(name) {
            Some(entry) => entry.objects(),
            None => ServiceObjects { service: None, slices: Vec::new() },
        }
    }

    /// The names of all services, ordered. Slices alone don't make a service.
    pub fn service_names(&self) -> impl Iterator<Item = &ObjectName> {
        self.services.iter().filter(|(_, entry)| entry.service.is_some()).map(|(name, _)| name)
    }

    /// Replaces the addresses of this machine that serve node ports. Returns the services to resolve again, since they
    /// contest them ([`Claims`]).
    pub fn serve_node_ports_at(&mut self, addresses: BTreeSet<IpAddr>) -> BTreeSet<ObjectName> {
        self.claims.serve_node_ports_at(addresses)
    }

    /// The facts of [`Store::node`] that are retained from an earlier version.
    pub fn retained(&self) -> Retained {
        self.retained
    }

    /// Our Node. An address or pod range that it has lost stays, as the last of its family.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// All ServiceCIDRs, ordered by name.
    pub fn service_cidrs(&self) -> impl Iterator<Item = &ServiceCidr> {
        self.service_cidrs.values()
    }

    /// True once the initial list of this kind has been complete.
    pub fn synced(&self, kind: Kind) -> bool {
        self.lists.get(&kind).is_some_and(|list| list.synced)
    }

    /// Objects, or newer versions of some, dropped since the start for want of room.
    pub fn left_out(&self) -> usize {
        self.load.left_out
    }

    /// Owners of frontends.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// True if some service visible to this family has session affinity.
    pub fn uses_affinity(&self, family: Family) -> bool {
        *self.with_affinity.of(family) > 0
    }

    /// The slices whose Service isn't there, each with the name that its label gives; `None` for one without a name.
    pub fn slices_without_service(&self) -> impl Iterator<Item = (&ObjectName, Option<&ObjectName>)> {
        let is_there = |owner: &ObjectName| self.services.get(owner).is_some_and(|entry| entry.service.is_some());
        let lacks = move |owner: &Option<ObjectName>| owner.as_ref().is_none_or(|owner| !is_there(owner));
        self.owners.iter().filter(move |(_, owner)| lacks(owner)).map(|(name, owner)| (name, owner.as_ref()))
    }

    /// A diagnostic for each slice that belongs to no service, since no service's state can carry it.
    pub fn orphans(&self) -> impl Iterator<Item = Diagnostic> {
        self.owners.iter().filter(|(_, owner)| owner.is_none()).map(|(name, _)| {
            let field = "metadata.labels[kubernetes.io/service-name]".to_owned();
            let message = "missing, empty or no name of a Service: the slice belongs to no service and is not used";
            Diagnostic::new(Kind::EndpointSlice, name, field, Cause::Object, message.to_owned())
        })
    }

    /// The names of all objects of a kind.
    fn names(&self, kind: Kind) -> BTreeSet<ObjectName> {
        match kind {
            Kind::Service => self.service_names().cloned().collect(),
            Kind::EndpointSlice => self.owners.keys().cloned().collect(),
            Kind::Node => self.node.iter().map(|node| node.name.clone()).collect(),
            Kind::ServiceCidr => self.service_cidrs.keys().cloned().collect(),
        }
    }

    fn see(&mut self, kind: Kind, name: &ObjectName) {
        if let Some(unseen) = self.lists.get_mut(&kind).and_then(|list| list.unseen.as_mut()) {
            unseen.remove(name);
        }
    }

    fn upsert(&mut self, object: KubeObject, dirty: &mut Dirty) {
        match object {
            KubeObject::Service(service) => self.upsert_service(service, dirty),
            KubeObject::EndpointSlice(slice) => self.upsert_slice(slice, dirty),
            KubeObject::Node(node) => self.upsert_node(node, dirty),
            KubeObject::ServiceCidr(cidr) => self.upsert_service_cidr(cidr, dirty),
        }
    }

    fn delete(&mut self, kind: Kind, name: &ObjectName, dirty: &mut Dirty) {
        match kind {
            Kind::Service => self.delete_service(name, dirty),
            Kind::EndpointSlice => {
                if let Some(Some(owner)) = self.owners.remove(name) {
                    self.remove_slice(&owner, name, dirty);
                }
            }
            Kind::Node => {
                if *name == self.node_name && self.node.take().is_some() {
                    self.retained = Retained::default();
                    dirty.node = true;
                }
            }
            Kind::ServiceCidr => dirty.service_cidrs |= self.service_cidrs.remove(name).is_some(),
        }
    }

    fn upsert_node(&mut self, mut node: Node, dirty: &mut Dirty) {
        if node.name != self.node_name {
            return;
        }
        let retained = node::complete(&mut node, self.node.as_ref());
        dirty.node |= self.node.as_ref() != Some(&node) || self.retained != retained;
        (self.node, self.retained) = (Some(node), retained);
    }

    fn upsert_service(&mut self, mut service: Service, dirty: &mut Dirty) {
        if !self.external_ips {
            service.external_ips = Box::default();
        }
        // The name is kept once for the service, its slices and the tree.
        service.name = self.interned(service.name);
        let name = service.name.clone();
        let known = self.services.get(&name).and_then(|entry| entry.service.as_deref()).map(Service::weight_bytes);
        let after = service.weight_bytes();
        let full = known.is_none() && self.load.services >= self.limits.objects;
        if full || !self.has_room(known.unwrap_or(0), after) {
            self.load.left_out += 1;
            return;
        }
        let entry = self.services.entry(name.clone()).or_default();
        let before = entry.service.take();
        if before.as_deref() == Some(&service) {
            entry.service = before;
            return;
        }
        self.load.services += usize::from(known.is_none());
        self.load.bytes += after;
        self.load.bytes -= known.unwrap_or(0);
        self.claims.change(before.as_deref(), Some(&service), &mut dirty.services);
        count_affinity(&mut self.with_affinity, before.as_deref(), Some(&service));
        entry.service = Some(Box::new(service));
        dirty.services.insert(name);
    }

    fn delete_service(&mut self, name: &ObjectName, dirty: &mut Dirty) {
        let Some(entry) = self.services.get_mut(name) else { return };
        let Some(before) = entry.service.take() else { return };
        self.load.services -= 1;
        self.load.bytes -= before.weight_bytes();
        if entry.slices.is_empty() {
            self.services.remove(name);
        }
        self.claims.change(Some(&before), None, &mut dirty.services);
        count_affinity(&mut self.with_affinity, Some(&before), None);
        dirty.services.insert(name.clone());
    }

    fn upsert_service_cidr(&mut self, cidr: ServiceCidr, dirty: &mut Dirty) {
        let known = self.service_cidrs.get(&cidr.name);
        if known == Some(&cidr) {
            return;
        }
        if known.is_none() && self.service_cidrs.len() >= self.limits.objects {
            self.load.left_out += 1;
            return;
        }
        self.service_cidrs.insert(cidr.name.clone(), cidr);
        dirty.service_cidrs = true;
    }

    /// True if `after` bytes have room in the place of `before` bytes.
    fn has_room(&self, before: usize, after: usize) -> bool {
        after <= before || self.load.bytes - before + after <= self.limits.bytes
    }

    /// True if the slice has room in the place of its stored version.
    fn has_room_for(&self, slice: &EndpointSlice) -> bool {
        let owner = self.owners.get(&slice.name);
        let known = owner.and_then(Option::as_ref).and_then(|owner| self.services.get(owner)?.slice(&slice.name));
        (owner.is_some() || self.owners.len() < self.limits.objects)
            && self.has_room(known.map_or(0, EndpointSlice::weight_bytes), slice.weight_bytes())
    }

    fn upsert_slice(&mut self, mut slice: EndpointSlice, dirty: &mut Dirty) {
        if !self.has_room_for(&slice) {
            self.load.left_out += 1;
            return;
        }
        slice.service = slice.service.map(|name| self.interned(name));
        if let Some((name, owner)) = self.owners.get_key_value(&slice.name) {
            slice.name = name.clone();
            // A slice that moves leaves the service it belonged to.
            if *owner != slice.service
                && let Some(owner) = owner.clone()
            {
                self.remove_slice(&owner, &slice.name, dirty);
            }
        }
        self.owners.insert(slice.name.clone(), slice.service.clone());
        let Some(owner) = slice.service.clone() else { return };
        let entry = self.services.entry(owner.clone()).or_default();
        let weight = slice.weight_bytes();
        match entry.slices.binary_search_by(|known| known.name.cmp(&slice.name)) {
            Ok(at) => match entry.slices.get_mut(at) {
                Some(known) if *known != slice => {
                    self.load.bytes -= known.weight_bytes();
                    *known = slice;
                }
                _ => return,
            },
            Err(at) => {
                // Most services have one slice: room for more would cost as much as the slices.
                entry.slices.reserve_exact(1);
                entry.slices.insert(at, slice);
            }
        }
        self.load.bytes += weight;
        if entry.service.is_some() {
            dirty.services.insert(owner);
        }
    }

    fn remove_slice(&mut self, owner: &ObjectName, name: &ObjectName, dirty: &mut Dirty) {
        let Some(entry) = self.services.get_mut(owner) else { return };
        self.load.bytes -= entry.slice(name).map_or(0, EndpointSlice::weight_bytes);
        entry.slices.retain(|slice| slice.name != *name);
        if entry.service.is_some() {
            dirty.services.insert(owner.clone());
        } else if entry.slices.is_empty() {
            self.services.remove(owner);
        }
    }

    /// The copy of this service name that is already in use, if there is one.
    fn interned(&self, name: ObjectName) -> ObjectName {
        self.services.get_key_value(&name).map_or(name, |(known, _)| known.clone())
    }
}

// === impl ServiceEntry ===

impl ServiceEntry {
    fn objects(&self) -> ServiceObjects<'_> {
        ServiceObjects { service: self.service.as_deref(), slices: self.slices.iter().collect() }
    }

    fn slice(&self, name: &ObjectName) -> Option<&EndpointSlice> {
        let at = self.slices.binary_search_by(|known| known.name.cmp(name)).ok()?;
        self.slices.get(at)
    }
}

/// Keeps the number of services with session affinity, per family.
fn count_affinity(counts: &mut PerFamily<usize>, before: Option<&Service>, after: Option<&Service>) {
    for family in Family::ALL {
        let count = counts.of_mut(family);
        *count += usize::from(after.is_some_and(|service| has_affinity(service, family)));
        *count -= usize::from(before.is_some_and(|service| has_affinity(service, family)));
    }
}

#[cfg(test)]
mod tests;
