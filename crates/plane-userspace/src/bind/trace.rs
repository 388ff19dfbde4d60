//! Simulates the objects on the first packet of a connection: the listener at its destination, or the kernel's refusal.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ferry_api::object::Protocol;
use ferry_model::{Packet, Snat, Verdict};
use ferry_plane::Trace;

use super::compile::Binding;
use super::object::{BindObject, Origins, Place, Serves};
use crate::port::{PortId, PortSpec};

/// Traces many packets through the same objects.
#[derive(Debug)]
struct Tracer<'a> {
    origins: Origins,
    ports: HashMap<&'a PortId, &'a PortSpec>,
    addresses: HashSet<IpAddr>,
    listeners: HashMap<Place, &'a Serves>,
}

impl Trace for Binding {
    fn tracer<'a>(&self, objects: &'a [BindObject]) -> Box<dyn Fn(&Packet) -> Verdict + 'a> {
        let tracer = Tracer::new(objects);
        Box::new(move |packet| tracer.trace(packet))
    }
}

// === impl Tracer ===

impl<'a> Tracer<'a> {
    /// A tracer of one family's objects.
    fn new(objects: &'a [BindObject]) -> Self {
        let (origins, ports) = (Origins::default(), HashMap::new());
        let mut tracer = Self { origins, ports, addresses: HashSet::new(), listeners: HashMap::new() };
        for object in objects {
            match object {
                BindObject::Origins(origins) => tracer.origins = origins.clone(),
                BindObject::Port(id, spec) => drop(tracer.ports.insert(id, spec)),
                BindObject::Address(address) => drop(tracer.addresses.insert(*address)),
                BindObject::Listener(place, serves) => drop(tracer.listeners.insert(*place, serves)),
            }
        }
        tracer
    }

    /// The verdict on a packet, with all endpoints that the relay may choose.
    fn trace(&self, packet: &Packet) -> Verdict {
        let place = Place { protocol: packet.protocol, address: packet.destination, port: packet.port };
        match self.listeners.get(&place) {
            Some(serves) => self.served(serves, packet),
            None if self.addresses.contains(&packet.destination) => Verdict::Reject,
            None => Verdict::Pass,
        }
    }

    /// The decision of a listener.
    fn served(&self, serves: &Serves, packet: &Packet) -> Verdict {
        let admits =
            serves.sources.as_ref().is_none_or(|ranges| ranges.iter().any(|range| range.contains(&packet.source)));
        let scope = self.origins.scope(serves.scopes, packet.source, packet.source_local).filter(|_| admits);
        let spec = scope.and_then(|scope| self.ports.get(&PortId { scope, ..serves.port.clone() }));
        match spec {
            Some(spec) => Verdict::Forward(spec.pool.iter().map(|endpoint| (*endpoint, Snat::Masquerade)).collect()),
            None if packet.protocol == Protocol::Udp => Verdict::Drop,
            None => Verdict::Reject,
        }
    }
}
