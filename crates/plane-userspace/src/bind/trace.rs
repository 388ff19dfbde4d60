//! Simulates the objects on the first packet of a connection: the listener at its destination, or the kernel's refusal.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ferry_api::object::Protocol;
use ferry_model::{Packet, Snat, Verdict};
use ferry_plane::{PacketPath, Trace, Traced};

use super::compile::Binding;
use super::object::{BindObject, ListenAddress, Origins, Serves};
use crate::port::{PortId, PortSpec};

/// Traces many packets through the same objects.
#[derive(Debug)]
struct Tracer<'a> {
    origins: Origins,
    ports: HashMap<&'a PortId, &'a PortSpec>,
    addresses: HashSet<IpAddr>,
    listeners: HashMap<ListenAddress, &'a Serves>,
}

impl Trace for Binding {
    fn tracer<'a>(&self, objects: &'a [BindObject]) -> Box<dyn ferry_plane::Tracer + 'a> {
        Box::new(Tracer::new(objects))
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

    /// The decision of a listener.
    fn served(&self, serves: &Serves, packet: &Packet, path: &mut PacketPath) -> Verdict {
        let admits =
            serves.sources.as_ref().is_none_or(|ranges| ranges.iter().any(|range| range.contains(&packet.source)));
        let scope = self.origins.scope(serves.scopes, packet.source, packet.source_local).filter(|_| admits);
        let spec = scope.and_then(|scope| self.ports.get(&PortId { scope, ..serves.port.clone() }));
        match (admits, spec) {
            (_, Some(spec)) => path.step(1, format_args!("port {}{spec}", serves.port)),
            (false, None) => path.step(1, format_args!("{} is in no source range", packet.source)),
            (true, None) => path.step(1, "no endpoints for clients of this origin"),
        }
        match spec {
            Some(spec) => Verdict::Forward(spec.pool.iter().map(|endpoint| (*endpoint, Snat::Masquerade)).collect()),
            None if packet.protocol == Protocol::Udp => Verdict::Drop,
            None => Verdict::Reject,
        }
    }
}

impl ferry_plane::Tracer for Tracer<'_> {
    /// With all endpoints that the relay may choose.
    fn trace(&self, packet: &Packet, path: &PacketPath) -> Traced {
        let (mut path, mut verdict) = (path.clone(), Verdict::Pass);
        if self.addresses.contains(&packet.destination) {
            path.step(0, format_args!("address {}", packet.destination));
            verdict = Verdict::Reject;
        }
        let place = ListenAddress { protocol: packet.protocol, address: packet.destination, port: packet.port };
        if let Some(serves) = self.listeners.get(&place) {
            path.step(0, format_args!("listener {place}"));
            verdict = self.served(serves, packet, &mut path);
        }
        Traced::one(path, verdict)
    }
}
