//! A service's EndpointSlices as one table of endpoints per service port.

use ferry_api::object::{
    AddressType, Conditions, EndpointSlice, Family, Kind, ObjectName, Parsed, Protocol, SliceEndpoint, SlicePort,
    is_dns_label,
};

use crate::diagnostic::{Cause, Diagnostic, FieldPath, Findings};
use crate::special::special;
use crate::state::Endpoint;

/// The ports of all slices of one family, found by name and protocol.
pub(crate) struct PortIndex<'a> {
    /// sorted by name and protocol, then in the order of the slices
    ports: Vec<IndexedPort<'a>>,
    family: Family,
}

#[derive(Clone, Copy)]
struct IndexedPort<'a> {
    name: &'a str,
    protocol: Protocol,
    number: u16,
    slice: &'a EndpointSlice,
}

/// One endpoint of a service port, with the facts that determine its use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointRow<'a> {
    pub(crate) endpoint: Endpoint,
    pub(crate) conditions: Conditions,
    slice: &'a EndpointSlice,
    of_slice: &'a SliceEndpoint,
}

// === impl PortIndex ===

impl<'a> PortIndex<'a> {
    /// Collects the slices of the family, ordered by name, and reports malformed ones.
    pub(crate) fn new(slices: &[&'a EndpointSlice], family: Family, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let mut ports = Vec::new();
        for slice in slices.iter().filter(|slice| is_of(slice, family)) {
            check_endpoints(slice, family, diagnostics);
            let mut findings = Findings::of(Kind::EndpointSlice, &slice.name);
            for (index, port) in slice.ports.iter().enumerate() {
                match usable(port) {
                    Ok(Some((name, protocol, number))) => ports.push(IndexedPort { name, protocol, number, slice }),
                    Ok(None) => {}
                    Err(Unusable { field, text, what }) => {
                        let message = format_args!("{text:?} is no {what}: this port is not used");
                        findings.add(FieldPath::at("ports", index, field), Cause::Object, &message);
                    }
                }
            }
            diagnostics.extend(findings.diagnostics());
        }
        ports.sort_by_key(IndexedPort::key);
        Self { ports, family }
    }

    /// Fills `rows` with the endpoints of a service port, sorted by address and port, each once. Returns the number of entries
    /// before deduplication; if it exceeds `most`, `rows` is incomplete.
    ///
    /// Of an endpoint listed twice, the later copy counts, unless it is terminating: the address of a terminating pod may
    /// have been given to a new one. Copies are never mixed.
    pub(crate) fn endpoints(
        &self,
        name: &str,
        protocol: Protocol,
        most: usize,
        rows: &mut Vec<EndpointRow<'a>>,
    ) -> usize {
        rows.clear();
        let start = self.ports.partition_point(|port| port.key() < (name, protocol));
        let matching = self.ports.iter().skip(start).take_while(|port| port.key() == (name, protocol));
        let mut seen = 0;
        for port in matching {
            let slice = port.slice;
            seen += slice.endpoints.len();
            if seen > most {
                return seen;
            }
            rows.reserve(slice.endpoints.len());
            let of_family = slice.endpoints.iter().filter(|endpoint| may_serve(endpoint, self.family));
            rows.extend(of_family.map(|of_slice| EndpointRow {
                endpoint: Endpoint { address: of_slice.address, port: port.number },
                conditions: of_slice.conditions,
                slice,
                of_slice,
            }));
        }
        rows.sort_by_key(|row| row.endpoint);
        rows.dedup_by(|next, kept| {
            let same = next.endpoint == kept.endpoint;
            if same && !next.conditions.terminating {
                *kept = *next;
            }
            same
        });
        seen
    }
}

impl<'a> PortIndex<'a> {
    /// The names and protocols of all ports, sorted, each once.
    pub(crate) fn names(&self) -> Vec<(&'a str, Protocol)> {
        let mut names: Vec<_> = self.ports.iter().map(|port| (port.name, port.protocol)).collect();
        names.dedup();
        names
    }
}

// === impl IndexedPort ===

impl<'a> IndexedPort<'a> {
    fn key(&self) -> (&'a str, Protocol) {
        (self.name, self.protocol)
    }
}

// === impl EndpointRow ===

impl<'a> EndpointRow<'a> {
    /// The name of its slice.
    pub(crate) fn slice_name(&self) -> &'a ObjectName {
        &self.slice.name
    }

    /// The name of its node.
    pub(crate) fn node(&self) -> Option<&'a str> {
        self.slice.node_of(self.of_slice)
    }

    /// True if the endpoint is on this node. One without a node name is on none.
    pub(crate) fn is_on(&self, node: &str) -> bool {
        !node.is_empty() && self.node() == Some(node)
    }

    /// Its zone.
    pub(crate) fn zone(&self) -> Option<&'a str> {
        self.slice.zone_of(self.of_slice)
    }

    /// Its hints for nodes.
    pub(crate) fn node_hints(&self) -> &[Box<str>] {
        self.slice.hints_of(self.of_slice).map_or(&[], |hints| &hints.nodes)
    }

    /// Its hints for zones.
    pub(crate) fn zone_hints(&self) -> &[Box<str>] {
        self.slice.hints_of(self.of_slice).map_or(&[], |hints| &hints.zones)
    }
}

fn is_of(slice: &EndpointSlice, family: Family) -> bool {
    let matches = match slice.address_type {
        AddressType::Ipv4 => family == Family::V4,
        AddressType::Ipv6 => family == Family::V6,
        AddressType::Other => false,
    };
    matches && !slice.headless
}

/// True if an endpoint is usable in the family: its address is of the family, and no special address.
pub fn may_serve(endpoint: &SliceEndpoint, family: Family) -> bool {
    Family::of(endpoint.address) == family && special(endpoint.address).is_none()
}

/// The problem of a slice port: the field, its text, and the type that it fails to be.
struct Unusable<'a> {
    field: &'static str,
    text: &'a str,
    what: &'static str,
}

/// A slice port's name, protocol and number, or its problem; `None` for one that is left out on purpose.
type Usable<'a> = Result<Option<(&'a str, Protocol, u16)>, Unusable<'a>>;

fn usable(port: &SlicePort) -> Usable<'_> {
    let wrong = |field, what| move |text| Unusable { field, text, what };
    let protocol = parsed(&port.protocol).map_err(wrong(".protocol", "known protocol"))?;
    let number = match &port.port {
        Some(number) => parsed(number).map_err(wrong(".port", "port"))?,
        None => return Ok(None),
    };
    if number == 0 {
        return Err(wrong(".port", "port")("0"));
    }
    match port.name.as_deref() {
        Some(name) if !name.is_empty() && !is_dns_label(name) => {
            Err(wrong(".name", "name of a port, which is a DNS label")(name))
        }
        name => Ok(name.map(|name| (name, protocol, number))),
    }
}

fn parsed<T: Copy>(value: &Parsed<T>) -> Result<T, &str> {
    value.as_ref().copied().map_err(|text| &**text)
}

/// Endpoints that can't be used: one diagnostic of a sort per slice, since there may be a thousand.
fn check_endpoints(slice: &EndpointSlice, family: Family, diagnostics: &mut Vec<Diagnostic>) {
    let mut report = |first: &str, count: usize, cause: Cause, what: &str| {
        let message = format!("{first} is {what}: not used as an endpoint");
        let field = "endpoints[].addresses[0]".to_owned();
        let first = Diagnostic::new(Kind::EndpointSlice, &slice.name, field, cause, message);
        diagnostics.push(Diagnostic { count, ..first });
    };
    if let Some(first) = slice.bad_addresses.first() {
        report(&format!("{first:?}"), slice.bad_addresses.len(), Cause::Object, "no address");
    }
    let mut foreign = slice.endpoints.iter().filter(|endpoint| Family::of(endpoint.address) != family);
    if let Some(first) = foreign.next() {
        let what = format!("no {family} address");
        report(&first.address.to_string(), 1 + foreign.count(), Cause::Object, &what);
    }
    let of_family = slice.endpoints.iter().filter(|endpoint| Family::of(endpoint.address) == family);
    let mut specials = of_family.filter_map(|endpoint| Some((endpoint.address, special(endpoint.address)?)));
    if let Some((address, what)) = specials.next() {
        report(&address.to_string(), 1 + specials.count(), Cause::Special, what);
    }
}

#[cfg(test)]
mod tests;
