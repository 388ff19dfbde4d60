//! Simulates the objects on the first packet of a connection: the table's chains, then the virtual server.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ferry_api::object::Family;
use ferry_kernel::nft::{Hook, Verdict as Go};
use ferry_model::{Packet, Snat, Verdict};
use ferry_plane::{PacketPath, RuleTexts, Trace, Traced};
use ferry_ruleset::Rules;
use ferry_ruleset::table::{SetName, TableObject, Vocabulary as _};
use ferry_ruleset::trace::{Data, End, Walk, World};

use crate::compile::Ipvs;
use crate::element::{IpvsTable, Value};
use crate::names::DEVICE;
use crate::object::IpvsObject;
use crate::server::{ServerId, VirtualServer, Weighted};

/// Traces many packets through the same objects.
#[derive(Debug)]
struct Tracer<'a> {
    world: World<'a>,
    servers: HashMap<ServerId, &'a VirtualServer>,
    bound: HashSet<IpAddr>,
}

impl Trace for Ipvs {
    fn tracer<'a>(&self, objects: &'a [IpvsObject]) -> Box<dyn ferry_plane::Tracer + 'a> {
        Box::new(Tracer::new(self.family(), objects))
    }

    fn texts(&self, objects: &[IpvsObject]) -> RuleTexts {
        let chains = objects.iter().filter_map(|object| match object {
            IpvsObject::Table(TableObject::Chain(_, rules)) => Some(rules),
            IpvsObject::Table(_) | IpvsObject::Server(..) | IpvsObject::Address(..) => None,
        });
        chains.flat_map(Rules::texts).collect()
    }
}

// === impl Tracer ===

impl<'a> Tracer<'a> {
    /// A tracer of one family's objects.
    fn new(family: Family, objects: &'a [IpvsObject]) -> Self {
        let mut tracer = Self { world: World::new(family), servers: HashMap::new(), bound: HashSet::new() };
        for object in objects {
            match object {
                IpvsObject::Table(object) => tracer.table(object),
                IpvsObject::Server(id, server) => {
                    tracer.servers.insert(*id, server);
                }
                IpvsObject::Address(address, _) => {
                    tracer.bound.insert(*address);
                }
            }
        }
        tracer
    }

    fn table(&mut self, object: &'a TableObject<IpvsTable>) {
        match object {
            TableObject::Table(_) | TableObject::Set(_) => {}
            TableObject::Ranges(id, ranges) => self.world.ranges(SetName::<IpvsTable>::Sources(*id), ranges),
            TableObject::Chain(name, rules) => self.world.chain(name, name.chain().hook, rules),
            TableObject::Element(key, value) => {
                let Some(bytes) = IpvsTable::key_bytes(&(), key) else { return };
                self.world.element(key.set(), bytes.as_slice(), data(value), object);
            }
        }
    }
}

impl ferry_plane::Tracer for Tracer<'_> {
    /// With all endpoints that the scheduler may choose. IPVS takes packets that the node receives for itself, and all that it sends.
    fn trace(&self, packet: &Packet, path: &PacketPath) -> Traced {
        let entry = if packet.interface.is_some() { Hook::Prerouting } else { Hook::Output };
        let mut walk = Walk::new(&self.world, packet, 0, path.clone());
        if let Some(refused) = refusal(walk.hook(entry)) {
            return Traced::one(walk.into_path(), refused);
        }
        let is_bound = self.bound.contains(&packet.destination);
        if is_bound {
            walk.path().step(0, format_args!("address {} dev {DEVICE}", packet.destination));
        }
        let is_received = packet.destination_local || is_bound;
        let id = ServerId { protocol: packet.protocol, address: packet.destination, port: packet.port };
        let Some(server) = self.servers.get(&id).filter(|_| is_received || entry == Hook::Output) else {
            // The chain in input sees no packet that has passed postrouting.
            let next = if is_received && entry == Hook::Prerouting { Hook::Input } else { Hook::Postrouting };
            let verdict = refusal(walk.hook(next)).unwrap_or(Verdict::Pass);
            return Traced::one(walk.into_path(), verdict);
        };
        walk.path().step(0, format_args!("virtual server {id} {}", server.settings));
        if server.endpoints.is_empty() {
            walk.path().step(1, "no destinations: port unreachable");
            return Traced::one(walk.into_path(), Verdict::Reject);
        }
        let paths: Vec<_> = server.endpoints.iter().map(|to| forward(walk.clone(), to)).collect();
        let all = paths.iter().filter_map(|(_, verdict)| match verdict {
            Verdict::Forward(to) => Some(to.clone()),
            Verdict::Drop | Verdict::Reject | Verdict::Pass => None,
        });
        Traced { verdict: Verdict::Forward(all.flatten().collect()), paths }
    }
}

/// The rest of the path of a packet that the scheduler sends to this endpoint.
fn forward(mut walk: Walk<'_>, to: &Weighted) -> (PacketPath, Verdict) {
    walk.path().step(1, format_args!("destination {} weight {}", to.endpoint, to.weight));
    walk.translate(to.endpoint);
    walk.hook(Hook::Postrouting);
    let snat = if walk.is_masqueraded() { Snat::Masquerade } else { Snat::Keep };
    (walk.into_path(), Verdict::Forward([(to.endpoint, snat)].into()))
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

#[cfg(test)]
mod tests {
    use ferry_api::object::Protocol;
    use ferry_conformance::states;
    use ferry_model::{FrontendAddr, FrontendKind, Pool, Profile};
    use ferry_plane::{Compile as _, Unit};

    use ferry_plane::Tracer as _;
    use ferry_ruleset::table::ChainName;

    use super::*;
    use crate::base::Pings;
    use crate::names::FixedChain;

    const FAMILY: Family = Family::V4;

    /// All objects of a cluster IP 10.96.0.1:80 and a node port 30080, but for those that are left out.
    fn objects(leave_out: impl Fn(&IpvsObject) -> bool) -> Vec<IpvsObject> {
        let vip = FrontendAddr::Vip(states::address(FAMILY, 96, 1), 80);
        let frontends = vec![
            states::frontend(FrontendKind::ClusterIp, vip, states::INTERNAL),
            states::frontend(FrontendKind::NodePort, FrontendAddr::NodePort(30_080), states::EXTERNAL),
        ];
        let port = states::port(Protocol::Tcp, states::pool(FAMILY, &[1]), Pool::default(), frontends);
        let (_, service) = states::service("web", vec![port]);
        let units = [Unit::Base(states::base(FAMILY, false)), Unit::clone(&service.unwrap())];
        let mut objects = Vec::new();
        for unit in &units {
            let context = states::context_for(FAMILY, &Profile::IPVS);
            Ipvs::new(FAMILY, Pings::Answered).compile(&context, unit, &mut objects);
        }
        objects.retain(|object| !leave_out(object));
        objects
    }

    fn packet(interface: Option<&str>, destination: IpAddr, port: u16) -> Packet {
        Packet {
            source: states::address(FAMILY, 7, 7),
            source_local: interface.is_none(),
            interface: interface.map(str::to_owned),
            destination,
            destination_local: destination != states::address(FAMILY, 96, 1),
            protocol: Protocol::Tcp,
            port,
        }
    }

    #[test]
    fn packets_that_no_virtual_server_takes_do_not_arrive_at_a_service_address() {
        let all = objects(|_| false);
        let missing = objects(|object| matches!(object, IpvsObject::Server(..)));
        let routed = objects(|object| matches!(object, IpvsObject::Server(..) | IpvsObject::Address(..)));
        let unbound = objects(|object| matches!(object, IpvsObject::Address(..)));
        let (vip, node) = (states::address(FAMILY, 96, 1), states::address(FAMILY, 0, 1));
        let verdict = |objects: &[IpvsObject], packet| Tracer::new(FAMILY, objects).verdict(&packet);
        for interface in [None, Some("eth0")] {
            let own = interface.is_none();
            assert!(matches!(verdict(&all, packet(interface, vip, 80)), Verdict::Forward(_)), "{interface:?}");
            let refused = if own { Verdict::Drop } else { Verdict::Reject };
            assert_eq!(verdict(&missing, packet(interface, vip, 80)), refused, "{interface:?}");
            // Packets that the node would forward leave no conntrack entry.
            assert_eq!(verdict(&routed, packet(interface, vip, 80)), Verdict::Drop, "{interface:?}");
            // While the address isn't local, IPVS takes what the node sends, but nothing that it receives.
            let passing = verdict(&unbound, packet(interface, vip, 80));
            assert!(if own { matches!(passing, Verdict::Forward(_)) } else { passing == Verdict::Drop }, "{passing:?}");
            assert_eq!(verdict(&missing, packet(interface, vip, 81)), Verdict::Reject, "{interface:?}");
            assert_eq!(verdict(&missing, packet(interface, node, 30_080)), Verdict::Pass, "{interface:?}");
        }
    }
    #[test]
    fn the_rules_of_chains_have_texts() {
        let in_prerouting = |object: &IpvsObject| match object {
            IpvsObject::Table(TableObject::Chain(chain, _)) => *chain == ChainName::Fixed(FixedChain::NatPrerouting),
            _ => true,
        };
        let texts = Ipvs::new(FAMILY, Pings::Answered).texts(&objects(|object| !in_prerouting(object)));
        assert_eq!(texts.into_values().collect::<Vec<_>>(), ["jump services"]);
    }
}
