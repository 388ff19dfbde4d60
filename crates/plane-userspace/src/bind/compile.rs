//! The compiler of the way `bind`: turns the state of a Service into service ports, addresses and listeners.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ferry_api::object::Family;
use ferry_model::{
    Action, Context, Frontend, FrontendAddr, LocalDetector, PortState, Profile, Scope, ServiceState, SourceRanges,
    Treatment,
};
use ferry_plane::{Compile, Unit};

use super::hint::{self, Hint};
use super::object::{BindKey, BindObject, ByOrigin, ListenAddress, Origins, Serves};
use crate::change;
use crate::port::{PortId, PortSpec};

/// The pure half of the way `bind`, of one family.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    family: Family,
    /// addresses of Services can be made this machine's
    binds: bool,
}

/// What this process does for a frontend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// it has no address for the frontend
    Absent,
    /// it doesn't listen: no endpoint may be used
    Refused,
    /// it listens
    Served,
}

// === impl Binding ===

impl Binding {
    /// A compiler for this family. A process that may not change the network (`CAP_NET_ADMIN`) `binds` no address: Services are served at
    /// those that interfaces have.
    pub fn new(family: Family, binds: bool) -> Self {
        Self { family, binds }
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    fn service(self, context: &Context, service: &ServiceState, out: &mut Vec<BindObject>) {
        let start = out.len();
        for state in &service.ports {
            let port = port_id(service, state);
            for frontend in &state.frontends {
                self.frontend(context, (state, &port), frontend, out);
            }
        }
        self.ports(context, service, out);
        share(out, start);
    }

    /// The objects of a Service without those of its frontends.
    fn ports(self, context: &Context, service: &ServiceState, out: &mut Vec<BindObject>) {
        let start = out.len();
        for state in &service.ports {
            self.port(context, state, &port_id(service, state), out);
        }
        share(out, start);
    }

    /// Writes a service port with each scope that a listener leads to; the endpoints that keep connections, if none does.
    fn port(self, context: &Context, state: &PortState, port: &PortId, out: &mut Vec<BindObject>) {
        let (mut reach, mut used) = (None, BTreeSet::new());
        for frontend in &state.frontends {
            let of_frontend = self.reach(context, state, frontend);
            if of_frontend == Reach::Served {
                used.extend(by_origin(frontend.treatment).scopes());
            }
            reach = reach.max(Some(of_frontend));
        }
        match reach {
            Some(Reach::Absent | Reach::Served) => {
                let with = |scope| BindObject::Port(PortId { scope, ..port.clone() }, PortSpec::new(state, scope));
                out.extend(used.into_iter().map(with));
            }
            Some(Reach::Refused) | None => {
                out.extend(PortSpec::held(state).map(|spec| BindObject::Port(port.clone(), spec)));
            }
        }
    }

    fn reach(self, context: &Context, state: &PortState, frontend: &Frontend) -> Reach {
        let has_address = match frontend.at {
            FrontendAddr::Vip(vip, _) => self.binds || !is_missing(context, vip),
            FrontendAddr::NodePort(_) => node_addresses(context, state).next().is_some(),
        };
        match (has_address, frontend.has_listener()) {
            (false, _) => Reach::Absent,
            (true, false) => Reach::Refused,
            (true, true) => Reach::Served,
        }
    }

    /// Writes the address of a frontend and its listeners.
    fn frontend(
        self,
        context: &Context,
        (state, port): (&PortState, &PortId),
        frontend: &Frontend,
        out: &mut Vec<BindObject>,
    ) {
        if let FrontendAddr::Vip(vip, _) = frontend.at
            && self.binds
            && is_missing(context, vip)
        {
            out.push(BindObject::Address(vip));
        }
        if self.reach(context, state, frontend) != Reach::Served {
            return;
        }
        let serves = Serves { port: port.clone(), scopes: by_origin(frontend.treatment), sources: sources(frontend) };
        let mut listen = |address, port| {
            let place = ListenAddress { protocol: state.protocol, address, port };
            out.push(BindObject::Listener(place, serves.clone()));
        };
        match frontend.at {
            FrontendAddr::Vip(vip, number) => listen(vip, number),
            FrontendAddr::NodePort(number) => {
                node_addresses(context, state).for_each(|address| listen(address, number));
            }
        }
    }
}

impl Compile for Binding {
    type Object = BindObject;
    type Hint = Hint;
    const PROFILE: Profile = Profile::USERSPACE_BIND;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<BindObject>) {
        match unit {
            Unit::Base(_) => out.push(BindObject::Origins(origins(context))),
            Unit::Service(service) => self.service(context, service, out),
        }
    }

    fn compile_change(
        &self,
        context: &Context,
        units: (&Unit, &Unit),
        before: &mut Vec<BindObject>,
        after: &mut Vec<BindObject>,
    ) {
        change::compile(self, context, units, (before, after), |service, out| self.ports(context, service, out));
    }

    fn hints(&self, key: &BindKey, hints: &mut Vec<Hint>) {
        hint::of_key(key, hints);
    }

    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
        hint::may_want(unit, asked)
    }
}

/// A port of a Service, with the endpoints of all nodes.
fn port_id(service: &ServiceState, state: &PortState) -> PortId {
    let (service, name) = (service.name.clone(), state.name.as_ref().into());
    PortId { service, name, protocol: state.protocol, scope: Scope::Cluster }
}

/// The addresses at which the node port of a service port is served.
fn node_addresses(context: &Context, state: &PortState) -> impl Iterator<Item = IpAddr> {
    context.node_addresses.iter().copied().filter(|address| state.serves_node_port_at(*address))
}

/// True if no interface of the machine has this address.
fn is_missing(context: &Context, vip: IpAddr) -> bool {
    context.local_addresses.binary_search(&vip).is_err()
}

fn origins(context: &Context) -> Origins {
    let pods = match context.local {
        Some(LocalDetector::Cidr(range)) => Some(range),
        // A listening socket reports no interface of its client: the model has no such detector in this profile.
        Some(LocalDetector::Bridge(_) | LocalDetector::InterfacePrefix(_)) | None => None,
    };
    Origins { local: Arc::clone(&context.local_addresses), pods }
}

fn by_origin(Treatment { pod, host, other }: Treatment) -> ByOrigin {
    let scope = |action| match action {
        Action::Forward { to, .. } => Some(to),
        Action::Drop | Action::Reject | Action::Pass => None,
    };
    ByOrigin { pod: scope(pod), host: scope(host), other: scope(other) }
}

fn sources(frontend: &Frontend) -> Option<Arc<[ferry_api::object::IpNet]>> {
    match &frontend.sources {
        SourceRanges::Any => None,
        SourceRanges::Only(ranges) => Some(Arc::clone(ranges)),
    }
}

/// Leaves each of a unit's objects once: its frontends may share an address.
fn share(out: &mut Vec<BindObject>, start: usize) {
    let Some(own) = out.get_mut(start..) else { return };
    own.sort_unstable();
    let mut own: Vec<BindObject> = out.drain(start..).collect();
    own.dedup();
    out.append(&mut own);
}

#[cfg(test)]
mod tests;
