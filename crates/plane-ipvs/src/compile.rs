//! The compiler: turns the state of a Service into elements of the table, virtual servers and addresses.

use std::net::IpAddr;
use std::sync::Arc;

use ferry_api::object::{Family, IpNet};
use ferry_model::{Context, Endpoint, Frontend, FrontendAddr, PortState, Profile, Scope, ServiceState, SourceRanges};
use ferry_plane::{Compile, Unit};
use ferry_ruleset::Rules;
use ferry_ruleset::rules::{RuleWriter, VIP};
use ferry_ruleset::sources::{Ranges, SourcesId};
use ferry_ruleset::table::{ChainName, SetName, TableObject};

use crate::base::{self, Pings};
use crate::element::{ElementKey, IpvsTable, Value, VipMap};
use crate::hint::{self, Hint};
use crate::names::FixedSet;
use crate::object::{IpvsKey, IpvsObject, Lifetime};
use crate::server::{Listed, ServerId, ServerSettings, VirtualServer, Weighted};
use crate::shape::Shape;

/// The pure half of the mode, of one family.
#[derive(Clone, Copy, Debug)]
pub struct Ipvs {
    family: Family,
    pings: Pings,
}

/// Writes the objects of one service port.
struct PortWriter<'a> {
    family: Family,
    pings: Pings,
    context: &'a Context,
    state: &'a PortState,
    /// the endpoints of each scope, once a frontend needs them
    pools: [Option<Arc<[Weighted]>>; 2],
    listed: Listed,
    out: &'a mut Vec<IpvsObject>,
}

// === impl Ipvs ===

impl Ipvs {
    /// A compiler for this family.
    pub fn new(family: Family, pings: Pings) -> Self {
        Self { family, pings }
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    fn service(self, context: &Context, service: &ServiceState, out: &mut Vec<IpvsObject>) {
        for state in &service.ports {
            let (family, pings) = (self.family, self.pings);
            let listed = Listed::of(state);
            let mut writer = PortWriter { family, pings, context, state, pools: [None, None], listed, out };
            state.frontends.iter().for_each(|frontend| writer.frontend(frontend));
        }
        if let Some(check) = service.health_check.filter(|_| !service.ports.is_empty()) {
            out.push(IpvsObject::element(ElementKey::HealthPort(check.port.get()), Value::None));
        }
    }
}

impl Compile for Ipvs {
    type Object = IpvsObject;
    type Hint = Hint;
    const PROFILE: Profile = Profile::IPVS;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<IpvsObject>) {
        match unit {
            Unit::Base(_) => base::compile(self.family, self.pings, context, out),
            Unit::Service(service) => {
                let start = out.len();
                self.service(context, service, out);
                share(out, start);
            }
        }
    }

    fn hints(&self, key: &IpvsKey, hints: &mut Vec<Hint>) {
        hint::of_key(key, hints);
    }

    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
        hint::may_want(unit, asked)
    }
}

/// Leaves each of a unit's objects once: its frontends may share an address or source ranges.
fn share(out: &mut Vec<IpvsObject>, start: usize) {
    let Some(own) = out.get_mut(start..) else { return };
    own.sort_unstable();
    let mut own: Vec<IpvsObject> = out.drain(start..).collect();
    own.dedup();
    out.append(&mut own);
}

/// True if the device has this service address: another interface of the node doesn't.
pub(crate) fn is_bound(context: &Context, vip: IpAddr) -> bool {
    context.local_addresses.binary_search(&vip).is_err()
}

/// The rules of a source range chain: packets from outside are dropped, others go on to the frontend's verdict.
pub(crate) fn restricted(family: Family, id: SourcesId) -> Rules {
    let rule = || RuleWriter::new(family);
    let outside = rule().source_outside(SetName::<IpvsTable>::Sources(id)).drop_it();
    Rules([outside, rule().verdict_map(VIP, FixedSet::RestrictedIps)].into())
}

// === impl PortWriter ===

impl PortWriter<'_> {
    fn frontend(&mut self, frontend: &Frontend) {
        let Some(shape) = Shape::of(frontend) else { return };
        match frontend.at {
            FrontendAddr::Vip(vip, port) => self.vip(vip, port, frontend, shape),
            FrontendAddr::NodePort(port) => self.node_port(port, shape),
        }
    }

    fn vip(&mut self, vip: IpAddr, port: u16, frontend: &Frontend, shape: Shape) {
        let at = ServerId { protocol: self.state.protocol, address: vip, port };
        let verdict = match &frontend.sources {
            // An empty list has become a verdict already.
            SourceRanges::Only(ranges) if !ranges.is_empty() => {
                let key = ElementKey::Vip { map: VipMap::Restricted, at };
                self.out.push(IpvsObject::element(key, shape.verdict));
                self.restrict(ranges)
            }
            SourceRanges::Any | SourceRanges::Only(_) => shape.verdict,
        };
        self.out.push(IpvsObject::element(ElementKey::Vip { map: VipMap::Services, at }, verdict));
        self.server(at, shape.scope);
        if is_bound(self.context, vip) {
            self.out.push(IpvsObject::element(ElementKey::BoundIp(vip), Value::None));
            self.out.push(IpvsObject::Address(vip, Lifetime::Deprecated));
            let answers = shape.scope.is_some_and(|scope| !self.state.pool(scope).is_empty());
            if answers && self.pings == Pings::OnlyWithEndpoints {
                self.out.push(IpvsObject::element(ElementKey::PingedIp(vip), Value::None));
            }
        }
    }

    fn node_port(&mut self, port: u16, shape: Shape) {
        let protocol = self.state.protocol;
        self.out.push(IpvsObject::element(ElementKey::NodePort { protocol, port }, shape.verdict));
        let (addresses, state) = (Arc::clone(&self.context.node_addresses), self.state);
        for address in addresses.iter().copied().filter(|address| state.serves_node_port_at(*address)) {
            self.server(ServerId { protocol, address, port }, shape.scope);
        }
    }

    /// Writes the set and the chain of these source ranges; returns the verdict that leads there.
    fn restrict(&mut self, networks: &Arc<[IpNet]>) -> Value {
        let ranges = Ranges::new(networks);
        let id = ranges.id();
        self.out.push(IpvsObject::Table(TableObject::Ranges(id, ranges)));
        let chain = ChainName::Restricted(id);
        self.out.push(IpvsObject::Table(TableObject::Chain(chain, restricted(self.family, id))));
        Value::Goto(chain)
    }

    fn server(&mut self, id: ServerId, scope: Option<Scope>) {
        let settings = ServerSettings {
            scheduler: self.state.scheduler(self.context),
            persistence: self.state.affinity.map(|affinity| affinity.timeout_seconds),
            altered: false,
        };
        let endpoints = scope.map_or_else(|| [].into(), |scope| self.endpoints(scope));
        let listed = self.listed.clone();
        self.out.push(IpvsObject::Server(id, VirtualServer { settings, endpoints, listed }));
    }

    /// The weighted endpoints of a scope, the same allocation for all frontends.
    fn endpoints(&mut self, scope: Scope) -> Arc<[Weighted]> {
        let [cluster, local] = &mut self.pools;
        let kept = match scope {
            Scope::Cluster => cluster,
            Scope::Local => local,
        };
        let state = self.state;
        let weighted = |endpoint: &Endpoint| Weighted { endpoint: *endpoint, weight: state.weight(endpoint) };
        Arc::clone(kept.get_or_insert_with(|| state.pool(scope).0.iter().map(weighted).collect()))
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Protocol;
    use ferry_conformance::states;
    use ferry_model::{Affinity, Balance, Endpoint, FrontendKind, Pool, Scheduler, Shadowed};

    use super::*;

    const FAMILY: Family = Family::V4;

    fn vip(last: u8) -> IpAddr {
        states::address(FAMILY, 96, last)
    }

    fn node(last: u8) -> IpAddr {
        states::address(FAMILY, 0, last)
    }

    /// A port with a cluster IP, an external IP and a node port, and these endpoints.
    fn port(endpoints: &[u8]) -> PortState {
        let at = |last| FrontendAddr::Vip(vip(last), 80);
        let treatment = |treatment| {
            if endpoints.is_empty() { ferry_model::Treatment::all(ferry_model::Action::Reject) } else { treatment }
        };
        let frontends = vec![
            states::frontend(FrontendKind::ClusterIp, at(1), treatment(states::INTERNAL)),
            states::frontend(FrontendKind::ExternalIp, at(2), treatment(states::EXTERNAL)),
            states::frontend(FrontendKind::NodePort, FrontendAddr::NodePort(30_080), treatment(states::EXTERNAL)),
        ];
        states::port(Protocol::Tcp, states::pool(FAMILY, endpoints), Pool::default(), frontends)
    }

    fn compiled(port: PortState, pings: Pings, context: &Context) -> Vec<IpvsObject> {
        let (_, unit) = states::service("web", vec![port]);
        let mut objects = Vec::new();
        Ipvs::new(FAMILY, pings).compile(context, &unit.unwrap(), &mut objects);
        objects
    }

    fn servers(objects: &[IpvsObject]) -> Vec<(IpAddr, u16)> {
        let server = |object: &IpvsObject| match object {
            IpvsObject::Server(id, _) => Some((id.address, id.port)),
            _ => None,
        };
        objects.iter().filter_map(server).collect()
    }

    fn addresses(objects: &[IpvsObject]) -> Vec<IpAddr> {
        let address = |object: &IpvsObject| match object {
            IpvsObject::Address(address, _) => Some(*address),
            _ => None,
        };
        objects.iter().filter_map(address).collect()
    }

    #[test]
    fn a_node_port_has_a_server_at_each_address_that_serves_it() {
        let context = states::context_for(FAMILY, &Profile::IPVS);
        let all = compiled(port(&[1]), Pings::Answered, &context);
        assert_eq!(servers(&all), [(node(1), 30_080), (node(2), 30_080), (vip(1), 80), (vip(2), 80)]);
        let shadowed = Some(Box::new(Shadowed { addresses: [node(1)].into() }));
        let some = compiled(PortState { shadowed, ..port(&[1]) }, Pings::Answered, &context);
        assert_eq!(servers(&some), [(node(2), 30_080), (vip(1), 80), (vip(2), 80)]);
    }

    #[test]
    fn an_address_of_another_interface_is_served_and_not_bound() {
        let context = states::context_for(FAMILY, &Profile::IPVS);
        assert_eq!(addresses(&compiled(port(&[1]), Pings::Answered, &context)), [vip(1), vip(2)]);
        let context = Context { local_addresses: [vip(2)].into(), ..context };
        let objects = compiled(port(&[1]), Pings::Answered, &context);
        assert_eq!(addresses(&objects), [vip(1)]);
        assert!(!objects.contains(&IpvsObject::element(ElementKey::BoundIp(vip(2)), Value::None)));
        assert!(servers(&objects).contains(&(vip(2), 80)));
    }

    #[test]
    fn pings_are_answered_where_there_are_endpoints_if_so_configured() {
        let context = states::context_for(FAMILY, &Profile::IPVS);
        let pinged = |endpoints: &[u8], pings| {
            let objects = compiled(port(endpoints), pings, &context);
            objects
                .iter()
                .filter(|object| matches!(object, IpvsObject::Table(TableObject::Element(ElementKey::PingedIp(_), _))))
                .count()
        };
        assert_eq!((pinged(&[1], Pings::Answered), pinged(&[1], Pings::OnlyWithEndpoints)), (0, 2));
        assert_eq!(pinged(&[], Pings::OnlyWithEndpoints), 0);
    }

    /// Under policy Local, and where packets are refused, the servers list the endpoints that they don't lead to.
    #[test]
    fn each_server_lists_the_endpoints_of_all_pools() {
        let context = states::context_for(FAMILY, &Profile::IPVS);
        let at = |last| FrontendAddr::Vip(vip(last), 80);
        let refused = ferry_model::Treatment::all(ferry_model::Action::Reject);
        let frontends = vec![
            states::frontend(FrontendKind::ClusterIp, at(1), states::INTERNAL),
            states::frontend(FrontendKind::LoadBalancer, at(2), states::LOCAL),
            states::frontend(FrontendKind::ExternalIp, at(3), refused),
        ];
        let pool = |last: &[u8]| states::pool(FAMILY, last);
        let port = states::port(Protocol::Tcp, pool(&[1, 2]), pool(&[2]), frontends);
        let objects = compiled(PortState { lingering: pool(&[3]), ..port }, Pings::Answered, &context);
        let server = |object: &IpvsObject| match object {
            IpvsObject::Server(_, server) => Some(server.clone()),
            _ => None,
        };
        let servers: Vec<VirtualServer> = objects.iter().filter_map(server).collect();
        assert_eq!(servers.iter().map(|server| server.endpoints.len()).collect::<Vec<_>>(), [2, 1, 0]);
        let lists = |server: &VirtualServer, last| server.listed.contains(&pool(&[last]).0[0]);
        for server in &servers {
            assert_eq!([1, 2, 3, 4].map(|last| lists(server, last)), [true, true, true, false], "{server}");
        }
    }

    #[test]
    fn a_service_chooses_its_scheduler_its_affinity_and_weights() {
        let context = states::context_for(FAMILY, &Profile::IPVS);
        let heavy = Endpoint { address: states::address(FAMILY, 244, 2), port: 8080 };
        let balance = Some(Box::new(Balance { scheduler: Some(Scheduler::Wrr), weights: [(heavy, 7)].into() }));
        let port = PortState { balance, affinity: Affinity::new(60), ..port(&[1, 2]) };
        let objects = compiled(port, Pings::Answered, &context);
        let server = objects.iter().find_map(|object| match object {
            IpvsObject::Server(_, server) => Some(server.to_string()),
            _ => None,
        });
        let text = "wrr persistent 60 -> 10.244.0.1:8080 weight 1 -> 10.244.0.2:8080 weight 7";
        assert_eq!(server.as_deref(), Some(text));
    }
}
