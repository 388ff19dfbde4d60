//! Simulates the objects on the first packet of a connection: the table's chains, then the virtual server.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ferry_api::object::Family;
use ferry_kernel::nft::{Hook, Verdict as Go};
use ferry_model::{Context, Packet, Snat, Verdict};
use ferry_plane::Trace;
use ferry_ruleset::trace::{Data, End, Walk, World};

use crate::compile::Ipvs;
use crate::names::SetName;
use crate::object::{IpvsObject, Value};
use crate::server::{ServerId, Weighted};
use crate::wire;

/// Traces many packets through the same objects.
#[derive(Debug)]
pub struct Tracer<'a> {
    world: World<'a>,
    servers: HashMap<ServerId, Arc<[Weighted]>>,
    bound: HashSet<IpAddr>,
}

impl Trace for Ipvs {
    fn trace(&self, objects: &[IpvsObject], packet: &Packet, _context: &Context) -> Verdict {
        Tracer::new(self.family(), objects).trace(packet)
    }
}

// === impl Tracer ===

impl<'a> Tracer<'a> {
    /// A tracer of one family's objects.
    pub fn new(family: Family, objects: &'a [IpvsObject]) -> Self {
        let mut tracer = Self { world: World::new(family), servers: HashMap::new(), bound: HashSet::new() };
        for object in objects {
            match object {
                IpvsObject::Table(_) | IpvsObject::Set(_) => {}
                IpvsObject::Ranges(id, ranges) => tracer.world.ranges(SetName::Sources(*id), ranges),
                IpvsObject::Chain(name, rules) => tracer.world.chain(name, name.chain().hook, rules),
                IpvsObject::Element(key, value) => {
                    tracer.world.element(key.set(), wire::key_bytes(key).as_slice(), data(value));
                }
                IpvsObject::Server(id, server) => {
                    tracer.servers.insert(*id, Arc::clone(&server.endpoints));
                }
                IpvsObject::Address(address, _) => {
                    tracer.bound.insert(*address);
                }
            }
        }
        tracer
    }

    /// The verdict on a packet, with all endpoints that the scheduler may choose. IPVS takes packets that the node receives for
    /// itself, and all that it sends.
    pub fn trace(&self, packet: &Packet) -> Verdict {
        let entry = if packet.interface.is_some() { Hook::Prerouting } else { Hook::Output };
        let mut walk = Walk::new(&self.world, packet, 0);
        if let Some(refused) = refusal(walk.hook(entry)) {
            return refused;
        }
        let is_received = packet.destination_local || self.bound.contains(&packet.destination);
        let id = ServerId { protocol: packet.protocol, address: packet.destination, port: packet.port };
        match self.servers.get(&id).filter(|_| is_received || entry == Hook::Output) {
            // The chain in input sees no packet that has passed postrouting.
            None => {
                let next = if is_received && entry == Hook::Prerouting { Hook::Input } else { Hook::Postrouting };
                refusal(walk.hook(next)).unwrap_or(Verdict::Pass)
            }
            // IPVS refuses it with port-unreachable.
            Some(endpoints) if endpoints.is_empty() => Verdict::Reject,
            Some(endpoints) => {
                let to = endpoints.iter().map(|weighted| (weighted.endpoint, self.snat(packet, entry, weighted)));
                Verdict::Forward(to.collect())
            }
        }
    }

    fn snat(&self, packet: &Packet, entry: Hook, to: &Weighted) -> Snat {
        let mut walk = Walk::new(&self.world, packet, 0);
        walk.hook(entry);
        walk.translate(to.endpoint);
        walk.hook(Hook::Postrouting);
        if walk.is_masqueraded() { Snat::Masquerade } else { Snat::Keep }
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
fn data(value: &Value) -> Data {
    match value {
        Value::None | Value::Foreign => Data::None,
        Value::Accept => Data::Go(Go::Accept),
        Value::Drop => Data::Go(Go::Drop),
        Value::Goto(chain) => Data::Go(Go::Goto(chain.to_string())),
    }
}
