//! The compiler: turns the state of a Service into service ports, listeners and routes of the relay, and elements of the table.

use std::net::IpAddr;
use std::sync::Arc;

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_model::{
    Context, Frontend, FrontendAddr, FrontendKind, PortState, Profile, Scope, ServiceState, SourceRanges,
};
use ferry_plane::{Compile, Unit};
use ferry_ruleset::sources::Ranges;
use ferry_ruleset::table::{ChainName, TableObject, Vocabulary as _};

use super::base;
use super::element::{Door, ElementKey, Userspace, Value, VipMap};
use super::hint::{self, Hint};
use super::object::{UserspaceKey, UserspaceObject};
use super::shape::Shape;
use crate::change;
use crate::port::{PortId, PortSpec, SCOPES};

/// The pure half of the mode, of one family.
#[derive(Clone, Copy, Debug)]
pub struct Relaying {
    family: Family,
}

/// Writes the objects of one service port.
struct PortWriter<'a> {
    family: Family,
    context: &'a Context,
    state: &'a PortState,
    /// with each scope
    ids: [PortId; 2],
    /// the scopes that a frontend needs
    uses: [bool; 2],
}

/// The objects of a Service's frontends, in the order of the frontends.
#[derive(Default)]
struct OfFrontends {
    /// for each scope
    routes: [Vec<UserspaceObject>; 2],
    table: Vec<UserspaceObject>,
}

// === impl Relaying ===

impl Relaying {
    /// A compiler for this family.
    pub fn new(family: Family) -> Self {
        Self { family }
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    fn service(self, context: &Context, service: &ServiceState, out: &mut Vec<UserspaceObject>) {
        let start = out.len();
        let writers = self.writers(context, service);
        let mut frontends = Vec::new();
        for (port, state) in service.ports.iter().enumerate() {
            frontends.extend(state.frontends.iter().map(|frontend| (frontend.at, port, frontend)));
        }
        // By address, as the objects are: frontends are smaller to sort than objects, and `share` finds those in order.
        frontends.sort_unstable_by_key(|(at, ..)| *at);
        let mut written = OfFrontends::default();
        for (_, port, frontend) in frontends {
            if let Some(writer) = writers.get(port) {
                writer.frontend(frontend, &mut written);
            }
        }
        writers.into_iter().for_each(|writer| writer.port(out));
        let OfFrontends { routes, mut table } = written;
        routes.into_iter().for_each(|mut routes| out.append(&mut routes));
        out.append(&mut table);
        share(out, start);
    }

    /// The objects of a Service without those of its frontends.
    fn ports(self, context: &Context, service: &ServiceState, out: &mut Vec<UserspaceObject>) {
        let start = out.len();
        self.writers(context, service).into_iter().for_each(|writer| writer.port(out));
        share(out, start);
    }

    fn writers<'a>(self, context: &'a Context, service: &'a ServiceState) -> Vec<PortWriter<'a>> {
        service.ports.iter().map(|state| PortWriter::new(self.family, context, service, state)).collect()
    }
}

impl Compile for Relaying {
    type Object = UserspaceObject;
    type Hint = Hint;
    const PROFILE: Profile = Profile::USERSPACE;
    /// All at once: connections may wait in a listener that the process before has left, and one without a route is reset.
    const PORTION: usize = usize::MAX;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<UserspaceObject>) {
        match unit {
            Unit::Base(base) => base::compile(self.family, context, base, out),
            Unit::Service(service) => self.service(context, service, out),
        }
    }

    fn compile_change(
        &self,
        context: &Context,
        units: (&Unit, &Unit),
        before: &mut Vec<UserspaceObject>,
        after: &mut Vec<UserspaceObject>,
    ) {
        change::compile(self, context, units, (before, after), |service, out| self.ports(context, service, out));
    }

    fn hints(&self, key: &UserspaceKey, hints: &mut Vec<Hint>) {
        hint::of_key(key, hints);
    }

    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
        hint::may_want(unit, asked)
    }
}

/// Leaves each of a unit's objects once: its frontends may share an address or source ranges. A stable sort, which finds what is in order
/// already.
fn share(out: &mut Vec<UserspaceObject>, start: usize) {
    let Some(own) = out.get_mut(start..) else { return };
    own.sort();
    let mut own: Vec<UserspaceObject> = out.drain(start..).collect();
    own.dedup();
    out.append(&mut own);
}

// === impl PortWriter ===

impl<'a> PortWriter<'a> {
    fn new(family: Family, context: &'a Context, service: &ServiceState, state: &'a PortState) -> Self {
        let name: Arc<str> = state.name.as_ref().into();
        let id =
            |scope| PortId { service: service.name.clone(), name: Arc::clone(&name), protocol: state.protocol, scope };
        let used = |scope| {
            let leads = |frontend| Shape::of(frontend).is_some_and(|shape| shape.scopes.contains(&scope));
            state.frontends.iter().any(leads)
        };
        Self { family, context, state, ids: SCOPES.map(id), uses: SCOPES.map(used) }
    }

    fn frontend(&self, frontend: &Frontend, out: &mut OfFrontends) {
        if frontend.kind == FrontendKind::ClusterIp
            && let FrontendAddr::Vip(address, _) = frontend.at
        {
            out.element(ElementKey::ClusterIp(address), Value::None);
        }
        let Some(shape) = Shape::of(frontend) else { return };
        match frontend.at {
            FrontendAddr::Vip(address, port) => self.vip((address, port), frontend, shape.verdict, out),
            FrontendAddr::NodePort(port) => {
                let protocol = self.state.protocol;
                out.element(ElementKey::NodePort { protocol, port }, shape.verdict);
            }
        }
        self.lead(frontend.at, shape.scopes, out);
    }

    fn vip(&self, (address, port): (IpAddr, u16), frontend: &Frontend, verdict: Value, out: &mut OfFrontends) {
        let protocol = self.state.protocol;
        let key = |map| ElementKey::Vip { map, protocol, address, port };
        let verdict = match &frontend.sources {
            // An empty list has become a verdict already.
            SourceRanges::Only(ranges) if !ranges.is_empty() => {
                out.element(key(VipMap::Restricted), verdict);
                out.restrict(self.family, ranges)
            }
            SourceRanges::Any | SourceRanges::Only(_) => verdict,
        };
        out.element(key(VipMap::Services), verdict);
    }

    /// Leads a frontend's packets to the relay.
    fn lead(&self, at: FrontendAddr, scopes: &[Scope], out: &mut OfFrontends) {
        for (id, routes) in self.ids.iter().zip(&mut out.routes) {
            if !scopes.contains(&id.scope) {
                continue;
            }
            match (self.state.protocol, self.context.relay_address) {
                (Protocol::Tcp, _) => routes.push(UserspaceObject::Route(id.scope, at, id.clone())),
                (Protocol::Udp, Some(address)) => {
                    let key = ElementKey::Datagrams(id.scope, at);
                    let value = Value::Relay(address, Door::Datagrams(id.clone()));
                    out.table.push(UserspaceObject::Table(TableObject::Element(key, value)));
                }
                // The model leaves SCTP out, and there is always an address.
                (Protocol::Sctp, _) | (Protocol::Udp, None) => {}
            }
        }
    }

    /// Writes the service port and its listeners.
    fn port(self, out: &mut Vec<UserspaceObject>) {
        let Self { state, ids, uses, .. } = self;
        if !uses.contains(&true) {
            let [cluster, _] = ids;
            out.extend(PortSpec::held(state).map(|spec| UserspaceObject::Port(cluster, spec)));
            return;
        }
        for (id, _) in ids.into_iter().zip(uses).filter(|(_, used)| *used) {
            if state.protocol == Protocol::Udp {
                let door = Door::Datagrams(id.clone());
                out.push(UserspaceObject::Table(base::listens(&door)));
                out.push(UserspaceObject::Listener(door));
            }
            let spec = PortSpec::new(state, id.scope);
            out.push(UserspaceObject::Port(id, spec));
        }
    }
}

// === impl OfFrontends ===

impl OfFrontends {
    /// Writes the set and the chain of these source ranges; returns the verdict that leads there.
    fn restrict(&mut self, family: Family, networks: &Arc<[IpNet]>) -> Value {
        let ranges = Ranges::new(networks);
        let id = ranges.id();
        self.table.push(UserspaceObject::Table(TableObject::Ranges(id, ranges)));
        let chain = ChainName::Restricted(id);
        let rules = Userspace::restricted(family, id);
        self.table.push(UserspaceObject::Table(TableObject::Chain(chain, rules)));
        Value::Goto(chain)
    }

    fn element(&mut self, key: ElementKey, value: Value) {
        self.table.push(UserspaceObject::Table(TableObject::Element(key, value)));
    }
}

#[cfg(test)]
mod tests;
