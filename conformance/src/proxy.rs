//! A proxy of one family without I/O: takes events, and writes objects to the kernel in memory.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, ObjectName};
use ferry_model::{
    BaseState, Context, Event, ServiceState, Settings, Store, base, context, node_port_addresses, resolve,
};
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Failing, Fault, MemoryKernel};
use ferry_plane::{Compile, Delta, SyncEngine, Unit, UnitId};

use crate::cluster::Random;
use crate::decided::Decided;
use crate::memory::{MemoryEngine, good, settle, settled};
use crate::mode::{Mode, ObjectOf};

/// Resolves incrementally: only the services that an event makes dirty.
pub struct MemoryProxy<M: Mode> {
    /// the family
    pub family: Family,
    /// the engine with the kernel in memory
    pub engine: MemoryEngine<M>,
    store: Store,
    settings: Settings,
    local_addresses: Vec<IpAddr>,
    context: Context,
    now: Instant,
    /// true if commits were made to fail since the last [`MemoryProxy::settle`]
    troubled: bool,
}

// === impl MemoryProxy ===

impl<M: Mode> MemoryProxy<M> {
    /// A proxy without objects yet.
    pub fn new(family: Family, settings: &Settings, local_addresses: &[IpAddr]) -> Self {
        let mut proxy = Self {
            family,
            engine: Engine::new(M::compiler(family, true), MemoryKernel::default()),
            store: Store::new(&settings.node_name).serving_external_ips(settings.external_ips),
            settings: settings.clone(),
            local_addresses: local_addresses.to_vec(),
            context: context(settings, None, local_addresses, &M::Compiler::PROFILE, family),
            now: Instant::now(),
            troubled: false,
        };
        proxy.place_node_ports();
        proxy.offer(&[], true);
        proxy
    }

    /// Applies an event.
    pub fn apply(&mut self, event: Event) {
        let dirty = self.store.apply(event);
        let mut services: Vec<ObjectName> = dirty.services.into_iter().collect();
        let renewed = dirty.node && self.renew_context();
        if dirty.node {
            services.extend(self.place_node_ports());
        }
        if renewed {
            services.extend(self.store.service_names().cloned());
        }
        self.offer(&services, renewed);
    }

    /// Replaces the node's addresses.
    pub fn readdress(&mut self, local_addresses: &[IpAddr]) {
        self.local_addresses = local_addresses.to_vec();
        let mut services = self.place_node_ports();
        let renewed = self.renew_context();
        if renewed {
            services.extend(self.store.service_names().cloned());
        }
        self.offer(&services, renewed);
    }

    /// Computes the context; true if it has changed.
    fn renew_context(&mut self) -> bool {
        let profile = &M::Compiler::PROFILE;
        let next = context(&self.settings, self.store.node(), &self.local_addresses, profile, self.family);
        let before = std::mem::replace(&mut self.context, next);
        before != self.context
    }

    /// Updates the addresses that serve node ports; returns the services whose claims are affected.
    fn place_node_ports(&mut self) -> Vec<ObjectName> {
        let addresses = node_port_addresses(&self.settings, self.store.node(), &self.local_addresses);
        self.store.serve_node_ports_at(addresses).into_iter().collect()
    }

    /// Makes the next commit fail half-way, and up to two of those that follow.
    pub fn fail_half_way(&mut self, random: &mut Random) {
        self.troubled = true;
        for _ in 0..=random.below(3) {
            // Most batches are short.
            let operations = if random.chance(75) { random.below(12) } else { random.below(200) };
            let fault = Fault::HalfWay { operations, error: random.pick(&Failing::ALL) };
            self.engine.kernel_mut().faults.push_back(fault);
        }
    }

    /// Commits pending changes.
    ///
    /// # Panics
    /// If the commit fails without an injected fault, or if an operation refers to a missing object.
    pub fn sync(&mut self) {
        self.now += Duration::from_millis(300);
        let outcome = self.engine.sync(self.now);
        if !self.troubled {
            good(outcome);
        }
        assert_eq!(self.engine.kernel().violations, Vec::<String>::new());
    }

    /// The kernel's comparable objects once no work is left.
    pub fn settle(&mut self) -> Vec<ObjectOf<M>> {
        self.sync();
        self.now = settle(&mut self.engine, self.now);
        self.troubled = false;
        assert_eq!(self.engine.kernel().violations, Vec::<String>::new());
        settled::<M>(&self.engine)
    }

    /// The current desired state.
    pub fn decided(&self) -> Decided {
        let states = self.store.service_names().filter_map(|name| self.state(name)).collect();
        Decided { family: self.family, context: self.context.clone(), base: self.base(), states }
    }

    fn base(&self) -> BaseState {
        let profile = &M::Compiler::PROFILE;
        base(&self.settings, &self.context, &self.local_addresses, &self.store, profile, self.family).0
    }

    fn state(&self, name: &ObjectName) -> Option<ServiceState> {
        let objects = self.store.objects(name);
        let (state, _) = resolve(&objects, self.store.claims(), &self.context, &M::Compiler::PROFILE, self.family);
        (!state.ports.is_empty()).then_some(state)
    }

    fn offer(&mut self, services: &[ObjectName], with_context: bool) {
        let units = services
            .iter()
            .map(|name| (UnitId::Service(name.clone()), self.state(name).map(|state| Arc::new(Unit::Service(state)))));
        let base = (UnitId::Base, Some(Arc::new(Unit::Base(self.base()))));
        let context = with_context.then(|| Arc::new(self.context.clone()));
        let delta = Delta { context, units: units.chain([base]).collect() };
        self.engine.offer(delta);
    }
}
