//! Compiles a service's state into the objects that serve it. Holds no policy: the model has decided the treatment, and this
//! module selects the chains that implement it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_model::{
    Context, Frontend, FrontendAddr, FrontendKind, Pool, PortState, Profile, Scope, ServiceState, SourceRanges,
};
use ferry_plane::{Before, Compile, Unit};

use crate::chains::Chains;
use crate::hint::{self, Hint};
use crate::names::{ChainName, FixedChain, LOCAL_SLOTS, Pick, PortId, SetName};
use crate::object::{ElementKey, NftKey, NftObject, NodePortMap, Value, VipMap};
use crate::restrictions::{Restriction, Restrictions};
use crate::shape::{Shape, count, first_of_scope, is_pooled};
use crate::{base, place};

/// Compiler of this mode for one IP family.
#[derive(Debug)]
pub struct Nftables {
    chains: Chains,
}

/// Writes the objects of one port of one service.
struct PortWriter<'a> {
    chains: &'a Chains,
    context: &'a Context,
    state: &'a PortState,
    /// the id of its affinity maps, if it has session affinity
    affinity: Option<PortId>,
    /// the id of its pool, if its frontends share one
    pool: Option<PortId>,
    /// the kinds of chains that draw from the pool
    used: BTreeSet<(Pick, Scope)>,
    restrictions: &'a mut Restrictions,
    out: &'a mut Vec<NftObject>,
}

/// Address part of the keys of a frontend's elements.
#[derive(Clone, Copy)]
struct FrontendKey {
    at: FrontendAddr,
    protocol: Protocol,
}

// === impl Nftables ===

impl Nftables {
    /// A compiler for this family.
    pub fn new(family: Family) -> Self {
        Self { chains: Chains::new(family) }
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.chains.family
    }

    /// Compiles a service. Leaves out the frontends with a pool that `other`, the other side of a change, has too.
    fn service(
        &self,
        context: &Context,
        service: &ServiceState,
        other: Option<&ServiceState>,
        restrictions: &mut Restrictions,
        out: &mut Vec<NftObject>,
    ) {
        for (index, state) in service.ports.iter().enumerate() {
            let id = || PortId::new(&service.name, state.protocol, &state.name);
            let pool = is_pooled(state).then(id);
            let other = other.and_then(|other| other.ports.get(index)).filter(|_| pool.is_some());
            let mut writer = PortWriter {
                chains: &self.chains,
                context,
                state,
                affinity: state.affinity.map(|_| id()),
                pool,
                used: BTreeSet::new(),
                restrictions: &mut *restrictions,
                out,
            };
            writer.write(other.is_some_and(|other| leads_alike(state, other)));
        }
    }
}

impl Compile for Nftables {
    type Object = NftObject;
    type Hint = Hint;
    const PROFILE: Profile = Profile::NFTABLES;
    const PLACES: bool = true;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<NftObject>) {
        let service = match unit {
            Unit::Base(base) => return base::compile(self.family(), context, base, out),
            Unit::Service(service) => service,
        };
        self.service(context, service, None, &mut Restrictions::default(), out);
    }

    /// Leaves out unchanged frontends of a pool on both sides, since they don't depend on its endpoints.
    fn compile_change(
        &self,
        context: &Context,
        units: (&Unit, &Unit),
        before: &mut Vec<NftObject>,
        after: &mut Vec<NftObject>,
    ) {
        if let (Unit::Service(old), Unit::Service(new)) = units {
            let mut restrictions = Restrictions::default();
            self.service(context, old, Some(new), &mut restrictions, before);
            self.service(context, new, Some(old), &mut restrictions, after);
        } else {
            self.compile(context, units.0, before);
            self.compile(context, units.1, after);
        }
    }

    fn hints(&self, key: &NftKey, hints: &mut Vec<Hint>) {
        hint::of_key(key, hints);
    }

    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
        hint::may_want(unit, asked)
    }

    fn place(&self, next: &mut Unit, before: Before<'_, NftObject>) {
        if let Unit::Service(service) = next {
            place::place(service, before);
        }
    }
}

/// True if the frontends of two states of a port with a pool compile to the same objects.
fn leads_alike(one: &PortState, other: &PortState) -> bool {
    let named = |port: &PortState| (port.protocol, port.affinity, port.frontends.len());
    named(one) == named(other) && one.name == other.name && one.frontends == other.frontends
}

// === impl PortWriter ===

impl PortWriter<'_> {
    /// Writes the port. If its frontends are `known`, they are compiled only to collect the chains that they use.
    fn write(&mut self, known: bool) {
        let start = self.out.len();
        for frontend in &self.state.frontends {
            self.frontend(frontend);
        }
        if known {
            self.out.truncate(start);
        }
        let used = |scope: &Scope| self.state.frontends.iter().any(|frontend| Shape::of(frontend).uses(*scope));
        let scopes: Vec<Scope> = [Scope::Cluster, Scope::Local].into_iter().filter(used).collect();
        self.affinity_maps(&scopes);
        self.pool(&scopes);
    }

    fn frontend(&mut self, frontend: &Frontend) {
        let at = FrontendKey { at: frontend.at, protocol: self.state.protocol };
        if let (FrontendKind::ClusterIp, FrontendAddr::Vip(vip, _)) = (frontend.kind, frontend.at) {
            self.out.push(NftObject::Element(ElementKey::ClusterIp(vip), Value::None));
        }
        let verdict = match Shape::of(frontend) {
            Shape::Pass => return,
            Shape::Refuse(verdict) => verdict,
            Shape::One(pick, scope) => {
                self.slots(at, scope, 0);
                self.record_affinity(at);
                self.forward(at, pick, scope, NodePortMap::AffinityPick)
            }
            Shape::Split { served } => {
                self.record_affinity(at);
                self.split(at, served)
            }
        };
        match &frontend.sources {
            SourceRanges::Any => self.out.push(at.verdict(NodePortMap::Services, verdict)),
            // All sources are dropped: no lookup of the source.
            SourceRanges::Only(ranges) if ranges.is_empty() => {
                self.out.push(at.verdict(NodePortMap::Services, verdict));
            }
            SourceRanges::Only(ranges) => {
                let FrontendAddr::Vip(vip, port) = frontend.at else {
                    debug_assert!(false, "a nodePort has no source ranges");
                    return;
                };
                let entry = self.restrict(ranges);
                self.out.push(at.verdict(NodePortMap::Services, entry));
                let key = ElementKey::Vip { map: VipMap::Restricted, vip, protocol: self.state.protocol, port };
                self.out.push(NftObject::Element(key, verdict));
            }
        }
    }

    /// Writes the set and the chain of these source ranges; returns the verdict that leads there.
    fn restrict(&mut self, ranges: &Arc<[IpNet]>) -> Value {
        let Restriction { id, ranges, rules, .. } = self.restrictions.of(ranges, self.chains);
        self.out.push(NftObject::Ranges(id, ranges));
        let chain = ChainName::Restricted(id);
        self.out.push(NftObject::Chain(chain, rules));
        Value::Goto(chain)
    }

    fn split(&mut self, at: FrontendKey, served: bool) -> Value {
        let (all, local, chain) = match at.at {
            FrontendAddr::Vip(..) => (Pick::Forward, Pick::Local, FixedChain::ExternalLocal),
            FrontendAddr::NodePort(_) => (Pick::NodePortForward, Pick::NodePortLocal, FixedChain::NodePortLocal),
        };
        self.slots(at, Scope::Cluster, 0);
        let verdict = self.forward(at, all, Scope::Cluster, NodePortMap::AffinityPick);
        self.out.push(at.verdict(NodePortMap::ClusterPolicy, verdict));
        let mut verdict = Value::Drop;
        if served {
            self.slots(at, Scope::Local, LOCAL_SLOTS);
            verdict = self.forward(at, local, Scope::Local, NodePortMap::AffinityPickLocal);
        }
        self.out.push(at.verdict(NodePortMap::Local, verdict));
        Value::Goto(ChainName::Fixed(chain))
    }

    /// Writes the slots of a frontend, unless it uses the port's pool.
    fn slots(&mut self, at: FrontendKey, scope: Scope, first: u32) {
        if self.pool.is_none() {
            let keys = (first..first + LOCAL_SLOTS).map(|slot| at.slot(slot));
            fill(self.state.pool(scope), keys, self.out);
        }
    }

    fn count(&self, scope: Scope) -> u32 {
        count(self.state.pool(scope))
    }

    /// Writes the chains that draw an endpoint, with session affinity after a lookup of the client; returns the verdict that
    /// leads there.
    fn forward(&mut self, at: FrontendKey, pick: Pick, scope: Scope, unrecorded: NodePortMap) -> Value {
        if let Some(pool) = self.pool {
            let pick = pick.of_pool();
            self.used.insert((pick, scope));
            let chain = |affinity| ChainName::Affinity(pick, scope, affinity);
            return Value::Goto(self.affinity.map_or(ChainName::Pool(pick, scope, pool), chain));
        }
        let count = self.count(scope);
        let Some(id) = self.affinity else { return self.pick(pick, count) };
        // The affinity chain has set the mark already.
        let verdict = self.pick(pick.without_mark(), count);
        self.out.push(at.verdict(unrecorded, verdict));
        let name = ChainName::Affinity(pick, scope, id);
        let rules = self.chains.affinity(self.context, self.state.protocol, pick, (id, scope), None);
        self.out.push(NftObject::Chain(name, rules));
        Value::Goto(name)
    }

    fn pick(&mut self, pick: Pick, count: u32) -> Value {
        let name = ChainName::Pick(pick, count);
        self.out.push(NftObject::Chain(name, self.chains.pick(self.context, pick, count)));
        Value::Goto(name)
    }

    fn record_affinity(&mut self, at: FrontendKey) {
        if let Some(id) = self.affinity {
            self.out.push(at.recorder(id));
        }
    }

    /// Writes the pool that all frontends share, with its chains. A changed endpoint is one changed element, however many
    /// frontends there are, and a changed number of endpoints one changed rule.
    fn pool(&mut self, scopes: &[Scope]) {
        let Some(pool) = self.pool.filter(|_| !scopes.is_empty()) else { return };
        self.out.push(NftObject::Set(SetName::Pool(pool)));
        for scope in scopes.iter().copied() {
            let keys = (first_of_scope(scope)..).map(|slot| ElementKey::PoolSlot { id: pool, slot });
            fill(self.state.pool(scope), keys, self.out);
        }
        let used = std::mem::take(&mut self.used);
        let mut picks: BTreeSet<(Pick, Scope)> = used.iter().map(|(_, scope)| (Pick::Forward, *scope)).collect();
        match self.affinity {
            Some(affinity) => self.out.extend(used.into_iter().map(|(pick, scope)| {
                let protocol = self.state.protocol;
                let rules = self.chains.affinity(self.context, protocol, pick, (affinity, scope), Some(pool));
                NftObject::Chain(ChainName::Affinity(pick, scope, affinity), rules)
            })),
            None => picks.extend(used),
        }
        for (pick, scope) in picks {
            let rules = self.chains.pool(self.context, self.state.protocol, pick, (pool, scope), self.count(scope));
            self.out.push(NftObject::Chain(ChainName::Pool(pick, scope, pool), rules));
        }
    }

    /// Writes the affinity maps of a port with session affinity: one for each scope that some frontend uses.
    fn affinity_maps(&mut self, scopes: &[Scope]) {
        let (Some(id), Some(settings)) = (self.affinity, self.state.affinity) else { return };
        if scopes.is_empty() {
            return;
        }
        for scope in scopes.iter().copied() {
            self.out.push(NftObject::Set(SetName::Affinity(id, scope)));
            self.out.push(NftObject::Set(SetName::Members(id, scope)));
            self.out.extend(self.state.pool(scope).0.iter().map(|endpoint| {
                NftObject::Element(ElementKey::Member { id, scope, endpoint: *endpoint }, Value::None)
            }));
        }
        self.out.push(NftObject::Chain(ChainName::Record(id), self.chains.record(id, scopes, settings)));
    }
}

/// Puts the endpoints of a pool into slots. A pool has at most [`LOCAL_SLOTS`] endpoints.
fn fill(pool: &Pool, slots: impl Iterator<Item = ElementKey>, out: &mut Vec<NftObject>) {
    out.extend(pool.0.iter().zip(slots).map(|(endpoint, key)| NftObject::Element(key, Value::Endpoint(*endpoint))));
}

// === impl FrontendKey ===

impl FrontendKey {
    /// Key of a slot of this frontend.
    fn slot(self, slot: u32) -> ElementKey {
        let protocol = self.protocol;
        match self.at {
            FrontendAddr::Vip(vip, port) => ElementKey::Slot { vip, protocol, port, slot },
            FrontendAddr::NodePort(port) => ElementKey::NodePortSlot { protocol, port, slot },
        }
    }

    /// The element of the verdict map for this kind of address.
    fn verdict(self, map: NodePortMap, verdict: Value) -> NftObject {
        let protocol = self.protocol;
        let key = match self.at {
            FrontendAddr::Vip(vip, port) => ElementKey::Vip { map: map.of_vips(), vip, protocol, port },
            FrontendAddr::NodePort(port) => ElementKey::NodePort { map, protocol, port },
        };
        NftObject::Element(key, verdict)
    }

    fn recorder(self, id: PortId) -> NftObject {
        let protocol = self.protocol;
        let key = match self.at {
            FrontendAddr::Vip(vip, port) => ElementKey::Record { protocol, vip, port },
            FrontendAddr::NodePort(port) => ElementKey::RecordNodePort { protocol, port },
        };
        NftObject::Element(key, Value::Goto(ChainName::Record(id)))
    }
}

#[cfg(test)]
mod tests;
