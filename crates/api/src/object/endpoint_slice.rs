//! discovery.k8s.io/v1 EndpointSlice: its service, its ports, and the address, conditions, node, zone and hints of each endpoint.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use super::{ObjectName, Parsed, Protocol, Timestamp};

/// An EndpointSlice, reduced to the fields that determine the treatment of traffic. Node names, zones and hints are kept once per
/// slice and referenced by endpoints, so that an endpoint takes 24 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// metadata.namespace and metadata.name
    pub name: ObjectName,
    /// the service, from label `kubernetes.io/service-name` and the slice's namespace; `None` if absent or no name of a
    /// Service
    pub service: Option<ObjectName>,
    /// the label `service.kubernetes.io/headless` is present: never proxied
    pub headless: bool,
    /// addressType
    pub address_type: AddressType,
    /// ports
    pub ports: Box<[SlicePort]>,
    /// endpoints whose first address parses
    pub endpoints: Box<[SliceEndpoint]>,
    /// annotation `endpoints.kubernetes.io/last-change-trigger-time`
    pub trigger_time: Option<Timestamp>,
    /// first addresses that don't parse, for a diagnostic
    pub bad_addresses: Box<[Box<str>]>,
    /// the node name of each place, then the zones
    names: PackedNames,
    /// for each place: 1-based index into the zones, 0 for none; empty if no endpoint has a zone
    place_zones: Box<[u16]>,
    hints: Box<[Hints]>,
}

/// Several names in one string: a slice mostly has a few, and an allocation for each would cost more than the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PackedNames {
    text: Box<str>,
    /// end of each name
    ends: Box<[u32]>,
}

/// addressType of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressType {
    /// IPv4
    Ipv4,
    /// IPv6
    Ipv6,
    /// FQDN or anything else: never proxied
    Other,
}

/// One entry of a slice's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// name; `None` (nil) never matches, the empty name matches an unnamed service port
    pub name: Option<Box<str>>,
    /// protocol
    pub protocol: Parsed<Protocol>,
    /// port; `None` for nil; 0 and values out of range are kept as text
    pub port: Option<Parsed<u16>>,
}

/// The three conditions of an endpoint, nil values resolved: absent ones mean ready, serving and not terminating. Each is
/// kept apart from the others: a ready endpoint may be terminating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// ready; nil means true
    pub ready: bool,
    /// serving; nil means true
    pub serving: bool,
    /// terminating; nil means false
    pub terminating: bool,
}

/// One endpoint of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// the first of its addresses
    pub address: IpAddr,
    /// ready, serving, terminating
    pub conditions: Conditions,
    /// 1-based index into the slice's places, each a node and its zone; 0 for none
    place: u16,
    /// 1-based index into the slice's hints; 0 for none
    hints: u16,
}

/// Topology hints of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// hints.forZones[].name
    pub zones: Box<[Box<str>]>,
    /// hints.forNodes[].name
    pub nodes: Box<[Box<str>]>,
}

/// Collects the endpoints of one slice; equal node names, zones and hints are stored once.
#[derive(Debug, Default)]
pub struct EndpointSliceBuilder {
    endpoints: Vec<SliceEndpoint>,
    bad_addresses: Vec<Box<str>>,
    /// node names, empty for none, with 1-based indexes into the zones
    places: UniqueValues<(Box<str>, u16)>,
    zones: UniqueValues<Box<str>>,
    hints: UniqueValues<Hints>,
}

/// Distinct values, each stored once.
#[derive(Debug)]
struct UniqueValues<T> {
    values: Vec<T>,
    /// index of each value; empty while a linear search is faster
    index: HashMap<T, u16>,
}

/// Most slices have no more values than this; beyond it an index is kept, so that the cost stays linear in a slice's size.
const LOOKED_THROUGH: usize = 32;

const _: () = assert!(size_of::<SliceEndpoint>() <= 24, "a node holds a hundred thousand of these");

// === impl EndpointSlice ===

impl EndpointSlice {
    /// nodeName of one of this slice's endpoints.
    pub fn node_of(&self, endpoint: &SliceEndpoint) -> Option<&str> {
        self.names.get(usize::from(endpoint.place).checked_sub(1)?).filter(|node| !node.is_empty())
    }

    /// zone of one of this slice's endpoints.
    pub fn zone_of(&self, endpoint: &SliceEndpoint) -> Option<&str> {
        let place = usize::from(endpoint.place).checked_sub(1)?;
        let zone = usize::from(*self.place_zones.get(place)?).checked_sub(1)?;
        self.names.get(self.place_zones.len() + zone)
    }

    /// Approximate size in bytes, strings included.
    pub fn weight_bytes(&self) -> usize {
        let hints = self.hints.iter().flat_map(|hints| hints.zones.iter().chain(&hints.nodes));
        let names = self.ports.iter().filter_map(|port| port.name.as_ref());
        let texts = hints.chain(names).chain(&self.bad_addresses).map(|text| size_of_val(text) + text.len());
        size_of_val(self)
            + size_of_val(&*self.endpoints)
            + size_of_val(&*self.ports)
            + self.names.text.len()
            + size_of_val(&*self.place_zones)
            + texts.sum::<usize>()
    }

    /// Hints of one of this slice's endpoints.
    pub fn hints_of(&self, endpoint: &SliceEndpoint) -> Option<&Hints> {
        self.hints.get(usize::from(endpoint.hints).checked_sub(1)?)
    }
}

// === impl PackedNames ===

impl PackedNames {
    fn get(&self, index: usize) -> Option<&str> {
        let start = index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.text.get(usize::try_from(start).ok()?..usize::try_from(*self.ends.get(index)?).ok()?)
    }
}

impl FromIterator<Box<str>> for PackedNames {
    fn from_iter<I: IntoIterator<Item = Box<str>>>(names: I) -> Self {
        let (mut text, mut ends) = (String::new(), Vec::new());
        for name in names {
            text.push_str(&name);
            // Names beyond 4 GiB have no end and are not found.
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        Self { text: text.into(), ends: ends.into() }
    }
}

// === impl Conditions ===

impl Default for Conditions {
    fn default() -> Self {
        Self { ready: true, serving: true, terminating: false }
    }
}

// === impl EndpointSliceBuilder ===

impl EndpointSliceBuilder {
    /// Adds one endpoint; `address` is the first of its addresses. At most 65,535 distinct nodes with their zones and hints are
    /// kept per slice (the API allows 1,000 endpoints); further endpoints have none.
    pub fn push(
        &mut self,
        address: Parsed<IpAddr>,
        conditions: Conditions,
        node: Option<&str>,
        zone: Option<&str>,
        hints: Hints,
    ) {
        let address = match address {
            Ok(address) => address,
            Err(text) => return self.bad_addresses.push(text),
        };
        let zone = zone.filter(|zone| !zone.is_empty()).map_or(0, |zone| self.zones.index_of(zone.into()));
        let node = node.unwrap_or_default();
        let place = if node.is_empty() && zone == 0 { 0 } else { self.places.index_of((node.into(), zone)) };
        let hints = if hints == Hints::default() { 0 } else { self.hints.index_of(hints) };
        self.endpoints.push(SliceEndpoint { address, conditions, place, hints });
    }

    /// Finishes the slice.
    pub fn build(
        self,
        name: ObjectName,
        service: Option<ObjectName>,
        address_type: AddressType,
        ports: Vec<SlicePort>,
    ) -> EndpointSlice {
        let (nodes, place_zones): (Vec<Box<str>>, Vec<u16>) = self.places.values.into_iter().unzip();
        let has_zones = !self.zones.values.is_empty();
        EndpointSlice {
            name,
            service,
            headless: false,
            address_type,
            ports: ports.into(),
            endpoints: self.endpoints.into(),
            trigger_time: None,
            bad_addresses: self.bad_addresses.into(),
            names: nodes.into_iter().chain(self.zones.values).collect(),
            place_zones: if has_zones { place_zones.into() } else { Box::default() },
            hints: self.hints.values.into(),
        }
    }
}

// === impl UniqueValues ===

impl<T> Default for UniqueValues<T> {
    fn default() -> Self {
        Self { values: Vec::new(), index: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> UniqueValues<T> {
    /// The 1-based index of a value; the table grows when it is new. 0 when the table is full.
    fn index_of(&mut self, value: T) -> u16 {
        if let Some(at) = self.find(&value) {
            return at;
        }
        let Ok(at) = u16::try_from(self.values.len() + 1) else { return 0 };
        if self.values.len() == LOOKED_THROUGH {
            self.index = self.values.iter().cloned().zip(1..).collect();
        }
        if self.values.len() >= LOOKED_THROUGH {
            self.index.insert(value.clone(), at);
        }
        self.values.push(value);
        at
    }

    fn find(&self, value: &T) -> Option<u16> {
        if self.values.len() > LOOKED_THROUGH {
            return self.index.get(value).copied();
        }
        // Endpoints of one node are mostly adjacent, so the newest entries are compared first.
        let at = self.values.iter().rposition(|known| known == value)?;
        u16::try_from(at + 1).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_again_in_tables_of_any_size() {
        let mut table = UniqueValues::default();
        for round in 0..2 {
            for value in 0..70_000_u32 {
                let wanted = u16::try_from(value + 1).unwrap_or(0);
                // At once again, while the table has exactly this size.
                assert_eq!([table.index_of(value), table.index_of(value)], [wanted, wanted], "round {round}");
            }
        }
        assert_eq!(table.values.len(), usize::from(u16::MAX));
    }

    #[test]
    fn a_slice_weighs_as_much_as_its_lists_and_texts() {
        let build = |builder: EndpointSliceBuilder, names: &[Option<&str>]| {
            let port =
                |name: &Option<&str>| SlicePort { name: name.map(Into::into), protocol: Ok(Protocol::Tcp), port: None };
            builder.build(ObjectName::new("shop", "web-1"), None, AddressType::Ipv4, names.iter().map(port).collect())
        };
        let empty = build(EndpointSliceBuilder::default(), &[]);
        assert_eq!(empty.weight_bytes(), size_of::<EndpointSlice>());

        let mut builder = EndpointSliceBuilder::default();
        let mut push = |address: Parsed<IpAddr>, node, zone, hints| {
            builder.push(address, Conditions::default(), node, zone, hints);
        };
        let hints = Hints { zones: ["a".into(), "bc".into()].into(), nodes: ["def".into()].into() };
        push(Ok("10.0.0.1".parse().unwrap()), Some("node"), Some("zone"), hints);
        push(Ok("10.0.0.2".parse().unwrap()), None, None, Hints::default());
        push(Err("nowhere".into()), None, None, Hints::default());
        let slice = build(builder, &[Some("http"), None, Some("dns")]);
        let lists = 2 * size_of::<SliceEndpoint>() + 3 * size_of::<SlicePort>() + size_of::<u16>();
        let texts = ["a", "bc", "def", "http", "dns", "nowhere"].map(|text| size_of::<Box<str>>() + text.len());
        let wanted = size_of::<EndpointSlice>() + lists + "nodezone".len() + texts.iter().sum::<usize>();
        assert_eq!(slice.weight_bytes(), wanted);
    }
}
