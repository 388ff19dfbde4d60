//! Simulates the objects on the first packet of a connection: the table's chains, then the relay.

use std::collections::HashMap;
use std::net::IpAddr;

use ferry_api::object::Family;
use ferry_kernel::nft::{ElementData, Hook, Verdict as Go, VerdictRef};
use ferry_model::{FrontendAddr, Packet, Scope, Snat, Verdict};
use ferry_plane::{PacketPath, Trace, Traced};
use ferry_ruleset::table::{SetName, TableObject, Vocabulary as _};
use ferry_ruleset::trace::{Data, End, Walk, World};

use super::compile::Relaying;
use super::doors::Doors;
use super::element::{Door, Userspace};
use super::object::UserspaceObject;
use crate::port::{PortId, PortSpec};

/// The first of the ports of imagined listeners: one that no frontend of a test has.
const FIRST_PORT: u16 = 55_001;

/// Traces many packets through the same objects.
#[derive(Debug)]
struct Tracer<'a> {
    world: World<'a>,
    /// as if the listeners were open, each at a port of its own
    doors: Doors,
    ports: HashMap<&'a PortId, &'a PortSpec>,
    routes: HashMap<(Scope, FrontendAddr), &'a PortId>,
}

impl Trace for Relaying {
    fn tracer<'a>(&self, objects: &'a [UserspaceObject]) -> Box<dyn ferry_plane::Tracer + 'a> {
        Box::new(Tracer::new(self.family(), objects))
    }
}

// === impl Tracer ===

impl<'a> Tracer<'a> {
    /// A tracer of one family's objects.
    fn new(family: Family, objects: &'a [UserspaceObject]) -> Self {
        let doors = Doors::default();
        let listeners = objects.iter().filter_map(|object| match object {
            UserspaceObject::Listener(door) => Some(door),
            UserspaceObject::Port(..) | UserspaceObject::Route(..) | UserspaceObject::Table(_) => None,
        });
        listeners.zip(FIRST_PORT..).for_each(|(door, port)| doors.open(door, port));
        let mut tracer = Self { world: World::new(family), doors, ports: HashMap::new(), routes: HashMap::new() };
        for object in objects {
            match object {
                UserspaceObject::Port(id, spec) => drop(tracer.ports.insert(id, spec)),
                UserspaceObject::Route(scope, at, id) => drop(tracer.routes.insert((*scope, *at), id)),
                UserspaceObject::Listener(_) => {}
                UserspaceObject::Table(object) => tracer.table(object),
            }
        }
        tracer
    }

    fn table(&mut self, object: &'a TableObject<Userspace>) {
        match object {
            TableObject::Table(_) | TableObject::Set(_) => {}
            TableObject::Ranges(id, ranges) => self.world.ranges(SetName::<Userspace>::Sources(*id), ranges),
            TableObject::Chain(name, rules) => self.world.chain(name, name.chain().hook, rules),
            TableObject::Element(key, value) => {
                let Some(bytes) = Userspace::key_bytes(&self.doors, key) else { return };
                let mut found = None;
                Userspace::with_data(&self.doors, value, &mut |value| found = Some(data(&value)));
                if let Some(found) = found {
                    self.world.element(key.set(), bytes.as_slice(), found, object);
                }
            }
        }
    }

    fn walk(&self, walk: &mut Walk<'_>, packet: &Packet) -> Verdict {
        let entry = if packet.interface.is_some() { Hook::Prerouting } else { Hook::Output };
        if let Some(refused) = refusal(walk.hook(entry)) {
            return refused;
        }
        if !walk.is_translated() {
            let arrives = packet.destination_local;
            return if arrives { refusal(walk.hook(Hook::Input)) } else { None }.unwrap_or(Verdict::Pass);
        }
        if let Some(refused) = refusal(walk.hook(Hook::Input)) {
            return refused;
        }
        match self.doors.door(packet.protocol, walk.port()) {
            Some(door) => self.relay(&door, packet, walk.path()),
            None => Verdict::Reject,
        }
    }

    /// The decision of the relay on a connection that its listener accepts.
    fn relay(&self, door: &Door, packet: &Packet, path: &mut PacketPath) -> Verdict {
        path.step(0, format_args!("the relay, listener {door}"));
        let id = match door {
            Door::Gate(scope) => self.route(*scope, packet.destination, packet.port),
            Door::Datagrams(id) => Some(id),
        };
        let spec = id.and_then(|id| self.ports.get(id)).filter(|spec| !spec.pool.is_empty());
        match (id, spec) {
            (Some(id), Some(spec)) => path.step(1, format_args!("port {id}{spec}")),
            (Some(id), None) => path.step(1, format_args!("port {id} without endpoints")),
            (None, _) => path.step(1, "no port at this destination"),
        }
        spec.map_or(Verdict::Reject, |spec| {
            Verdict::Forward(spec.pool.iter().map(|endpoint| (*endpoint, Snat::Masquerade)).collect())
        })
    }

    fn route(&self, scope: Scope, address: IpAddr, port: u16) -> Option<&PortId> {
        let at = self.routes.get(&(scope, FrontendAddr::Vip(address, port)));
        at.or_else(|| self.routes.get(&(scope, FrontendAddr::NodePort(port)))).copied()
    }
}

impl ferry_plane::Tracer for Tracer<'_> {
    /// With all endpoints that the relay may choose.
    fn trace(&self, packet: &Packet, path: &PacketPath) -> Traced {
        let mut walk = Walk::new(&self.world, packet, 0, path.clone());
        let verdict = self.walk(&mut walk, packet);
        Traced::one(walk.into_path(), verdict)
    }
}

/// The verdict on a packet that goes no further.
fn refusal(end: End) -> Option<Verdict> {
    match end {
        End::Drop => Some(Verdict::Drop),
        End::Reject => Some(Verdict::Reject),
        End::Accept | End::Return => None,
    }
}

/// Value of an element in the kernel's form.
fn data(value: &ElementData<'_>) -> Data {
    match value {
        ElementData::None => Data::None,
        ElementData::Value(bytes) => Data::Value(bytes.to_vec()),
        ElementData::Verdict(VerdictRef::Goto(chain)) => Data::Go(Go::Goto((*chain).to_owned())),
        _ => Data::Go(Go::Drop),
    }
}
