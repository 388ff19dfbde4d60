//! A small mode: frontends that refer to a pick chain per count, and host entries shared by services.

pub(crate) mod world;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ferry_api::object::{ObjectName, Protocol};
use ferry_model::{
    Action, BaseState, Context, Endpoint, Frontend, FrontendAddr, FrontendKind, MissingSchedulers, NodePortAddresses,
    Pool, PortState, Profile, Scheduler, Scope, ServiceState, Snat, SourceRanges, Treatment,
};
use ferry_plane::memory::Refers;
use ferry_plane::{Before, Compile, Object, Served, Unit};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Toy {
    Base,
    /// what another program has put in its place; it serves [`OTHER_VIP`]
    OtherBase,
    /// what stays at clean-up
    Guard,
    Pick {
        count: usize,
        mark: u32,
    },
    Host(u8),
    Frontend {
        vip: u8,
        slots: Vec<u8>,
    },
}

/// The frontend that [`Toy::OtherBase`] serves.
pub(crate) const OTHER_VIP: u8 = 250;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ToyKey {
    Base,
    Guard,
    Pick(usize),
    Host(u8),
    Frontend(u8),
}

#[derive(Debug)]
pub(crate) struct ToyCompile;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ToyHint {
    Base,
    Endpoints(usize),
    Endpoint(u8),
    Vip(u8),
}

impl Toy {
    pub(crate) fn is_pick(&self) -> bool {
        matches!(self, Self::Pick { .. })
    }

    pub(crate) fn slots(&self) -> &[u8] {
        match self {
            Self::Frontend { slots, .. } => slots,
            other => panic!("{other} has no slots"),
        }
    }

    pub(crate) fn sorted(mut self) -> Self {
        if let Self::Frontend { slots, .. } = &mut self {
            slots.sort_unstable();
        }
        self
    }

    pub(crate) fn foreign(vip: u8) -> Self {
        Self::Frontend { vip, slots: vec![99] }
    }
}

impl Object for Toy {
    type Key = ToyKey;
    type Shared = ToyKey;

    fn key(&self) -> ToyKey {
        match self {
            Self::Base | Self::OtherBase => ToyKey::Base,
            Self::Guard => ToyKey::Guard,
            Self::Pick { count, .. } => ToyKey::Pick(*count),
            Self::Host(host) => ToyKey::Host(*host),
            Self::Frontend { vip, .. } => ToyKey::Frontend(*vip),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Base | Self::OtherBase | Self::Guard => 0,
            Self::Pick { .. } | Self::Host(_) => 1,
            Self::Frontend { .. } => 2,
        }
    }

    fn shared(&self) -> Option<ToyKey> {
        matches!(self, Self::Pick { .. } | Self::Host(_)).then(|| self.key())
    }

    fn spare(&self) -> bool {
        self.is_pick()
    }

    fn stays(&self) -> bool {
        *self == Self::Guard
    }

    fn serves(&self) -> Option<Served> {
        match self {
            Self::Frontend { vip, .. } => Some(served(*vip)),
            Self::OtherBase => Some(served(OTHER_VIP)),
            Self::Base | Self::Guard | Self::Pick { .. } | Self::Host(_) => None,
        }
    }
}

impl Refers for Toy {
    fn refers_to(&self) -> Vec<ToyKey> {
        match self {
            Self::Base | Self::OtherBase | Self::Guard => vec![],
            Self::Pick { .. } | Self::Host(_) => vec![ToyKey::Base],
            Self::Frontend { slots, .. } => {
                let hosts = slots.iter().filter(|host| **host != 99).map(|host| ToyKey::Host(*host));
                let pick = (slots != &[99]).then_some(ToyKey::Pick(slots.len()));
                hosts.chain(pick).collect()
            }
        }
    }
}

impl fmt::Display for Toy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl fmt::Display for ToyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Compile for ToyCompile {
    type Object = Toy;
    type Hint = ToyHint;
    const PROFILE: Profile = Profile::NFTABLES;
    const PLACES: bool = true;

    fn hints(&self, key: &ToyKey, hints: &mut Vec<ToyHint>) {
        hints.push(match *key {
            ToyKey::Base | ToyKey::Guard => ToyHint::Base,
            ToyKey::Pick(count) => ToyHint::Endpoints(count),
            ToyKey::Host(host) => ToyHint::Endpoint(host),
            ToyKey::Frontend(vip) => ToyHint::Vip(vip),
        });
    }

    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&ToyHint) -> bool) -> bool {
        let Unit::Service(state) = unit else { return asked(&ToyHint::Base) };
        state.ports.iter().any(|port| {
            let mut endpoints = port.cluster.0.iter().map(|endpoint| last_byte(endpoint.address));
            asked(&ToyHint::Endpoints(port.cluster.len()))
                || endpoints.any(|host| asked(&ToyHint::Endpoint(host)))
                || port.frontends.iter().any(|frontend| match frontend.at {
                    FrontendAddr::Vip(vip, _) => asked(&ToyHint::Vip(last_byte(vip))),
                    FrontendAddr::NodePort(_) => panic!("no node ports here"),
                })
        })
    }

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<Toy>) {
        let Unit::Service(state) = unit else { return out.push(Toy::Base) };
        for port in &state.ports {
            let slots: Vec<u8> = port.cluster.0.iter().map(|endpoint| last_byte(endpoint.address)).collect();
            out.extend(slots.iter().map(|host| Toy::Host(*host)));
            for frontend in &port.frontends {
                let FrontendAddr::Vip(vip, _) = frontend.at else { panic!("no node ports here") };
                out.push(Toy::Pick { count: slots.len(), mark: context.masquerade_mark });
                out.push(Toy::Frontend { vip: last_byte(vip), slots: slots.clone() });
            }
        }
    }

    /// Endpoints that stay keep their order, new ones follow.
    fn place(&self, next: &mut Unit, before: Before<'_, Toy>) {
        let Unit::Service(state) = next else { return };
        for port in &mut state.ports {
            let known: Vec<u8> = match before {
                Before::Nothing | Before::Unit(Unit::Base(_)) => return,
                Before::Unit(Unit::Service(old)) => {
                    old.ports.iter().flat_map(|old| old.cluster.0.iter().map(|e| last_byte(e.address))).collect()
                }
                Before::Objects(objects) => objects
                    .iter()
                    .find_map(|object| match object {
                        Toy::Frontend { vip, slots } if has_vip(port, *vip) => Some(slots.clone()),
                        _ => None,
                    })
                    .unwrap_or_default(),
            };
            let mut pool = port.cluster.0.to_vec();
            let position = |e: &Endpoint| known.iter().position(|host| *host == last_byte(e.address));
            pool.sort_by_key(|endpoint| position(endpoint).unwrap_or(usize::MAX));
            port.cluster = Pool::new(pool);
        }
    }
}

fn has_vip(port: &PortState, vip: u8) -> bool {
    port.frontends.iter().any(|frontend| frontend.at == FrontendAddr::Vip(address(96, vip), 80))
}

pub(crate) fn served(vip: u8) -> Served {
    Served::Frontend(Protocol::Tcp, FrontendAddr::Vip(address(96, vip), 80))
}

fn address(net: u8, last: u8) -> IpAddr {
    Ipv4Addr::new(10, net, 0, last).into()
}

fn last_byte(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    }
}

pub(crate) fn base() -> Unit {
    Unit::Base(BaseState {
        node_ports: NodePortAddresses::All,
        localhost: false,
        service_cidrs: vec![],
        affinity: false,
    })
}

pub(crate) fn context(mark: u32) -> Context {
    Context {
        node_name: "node-a".into(),
        zone: None,
        node_ip: None,
        node_addresses: [].into(),
        local_addresses: [].into(),
        relay_address: None,
        local: None,
        masquerade_all: false,
        masquerade_mark: mark,
        scheduler: Scheduler::default(),
        missing_schedulers: MissingSchedulers::new(),
    }
}

/// A service with these VIPs, all of one port; `None` without VIPs.
pub(crate) fn service(index: u8, vips: &[u8], endpoints: &[u8]) -> (ObjectName, Option<Unit>) {
    let name = ObjectName::new("default", &format!("service-{index}"));
    let mut pool: Vec<Endpoint> =
        endpoints.iter().map(|last| Endpoint { address: address(244, *last), port: 80 }).collect();
    pool.sort_unstable();
    pool.dedup();
    let treatment = Treatment::all(Action::Forward { to: Scope::Cluster, snat: Snat::Keep });
    let frontend = |vip: &u8| Frontend {
        kind: FrontendKind::ClusterIp,
        at: FrontendAddr::Vip(address(96, *vip), 80),
        sources: SourceRanges::Any,
        treatment,
    };
    let port = PortState {
        name: "http".into(),
        protocol: Protocol::Tcp,
        affinity: None,
        cluster: Pool::new(pool),
        local: Pool::new([]),
        lingering: Pool::default(),
        balance: None,
        shadowed: None,
        frontends: vips.iter().map(frontend).collect(),
    };
    let unit = Unit::Service(ServiceState { name: name.clone(), ports: vec![port], health_check: None });
    (name, (!vips.is_empty()).then_some(unit))
}
