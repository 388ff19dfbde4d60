//! The compiler of the way `bind`: turns the state of a Service into service ports, addresses and listeners.

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
        for state in &service.ports {
            let name: Arc<str> = state.name.as_ref().into();
            let (protocol, service) = (state.protocol, service.name.clone());
            let port = PortId { service, name, protocol, scope: Scope::Cluster };
            let mut reach = None;
            for frontend in &state.frontends {
                reach = reach.max(Some(self.frontend(context, (state, &port), frontend, out)));
            }
            match reach {
                Some(Reach::Absent | Reach::Served) => {}
                Some(Reach::Refused) | None => {
                    out.extend(PortSpec::held(state).map(|spec| BindObject::Port(port, spec)));
                }
            }
        }
    }

    /// Writes the objects of a frontend.
    fn frontend(
        self,
        context: &Context,
        (state, port): (&PortState, &PortId),
        frontend: &Frontend,
        out: &mut Vec<BindObject>,
    ) -> Reach {
        let addresses = match frontend.at {
            FrontendAddr::Vip(vip, _) if is_missing(context, vip) => {
                if !self.binds {
                    return Reach::Absent;
                }
                out.push(BindObject::Address(vip));
                vec![vip]
            }
            FrontendAddr::Vip(vip, _) => vec![vip],
            FrontendAddr::NodePort(_) => {
                let serves = |address: &&IpAddr| state.serves_node_port_at(**address);
                context.node_addresses.iter().filter(serves).copied().collect()
            }
        };
        if addresses.is_empty() {
            return Reach::Absent;
        }
        if !frontend.has_listener() {
            return Reach::Refused;
        }
        let (FrontendAddr::Vip(_, number) | FrontendAddr::NodePort(number)) = frontend.at;
        let serves = Serves { port: port.clone(), scopes: by_origin(frontend.treatment), sources: sources(frontend) };
        for id in serves.ports() {
            let spec = PortSpec::new(state, id.scope);
            out.push(BindObject::Port(id, spec));
        }
        for address in addresses {
            let place = ListenAddress { protocol: state.protocol, address, port: number };
            out.push(BindObject::Listener(place, serves.clone()));
        }
        Reach::Served
    }
}

impl Compile for Binding {
    type Object = BindObject;
    type Hint = Hint;
    const PROFILE: Profile = Profile::USERSPACE_BIND;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<BindObject>) {
        match unit {
            Unit::Base(_) => out.push(BindObject::Origins(origins(context))),
            Unit::Service(service) => {
                let start = out.len();
                self.service(context, service, out);
                share(out, start);
            }
        }
    }

    fn hints(&self, key: &BindKey, hints: &mut Vec<Hint>) {
        hint::of_key(key, hints);
    }

    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
        hint::may_want(unit, asked)
    }
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

/// Leaves each of a unit's objects once: its frontends may share an address, and a service port.
fn share(out: &mut Vec<BindObject>, start: usize) {
    let Some(own) = out.get_mut(start..) else { return };
    own.sort_unstable();
    let mut own: Vec<BindObject> = out.drain(start..).collect();
    own.dedup();
    out.append(&mut own);
}
