//! A proxy of one family without its edges: events in, objects on a kernel in memory out.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, ObjectName};
use ferry_model::{BaseState, Context, Event, Profile, ServiceState, Settings, Store, base, context, resolve};
use ferry_plane::engine::Engine;
use ferry_plane::memory::MemoryKernel;
use ferry_plane::{Delta, SyncEngine, Unit, UnitId};
use ferry_plane_nftables::Nftables;

use crate::settled::{TestEngine, settle, settled};

/// Decides only what an event makes dirty.
pub(crate) struct Proxy {
    pub(crate) family: Family,
    pub(crate) store: Store,
    pub(crate) engine: TestEngine,
    settings: Settings,
    local_addresses: Vec<IpAddr>,
    context: Context,
    now: Instant,
}

// === impl Proxy ===

impl Proxy {
    pub(crate) fn new(family: Family, settings: &Settings, local_addresses: &[IpAddr]) -> Self {
        let mut proxy = Self {
            family,
            store: Store::new(&settings.node_name).serving_external_ips(settings.external_ips),
            engine: Engine::new(Nftables::new(family), MemoryKernel::default()),
            settings: settings.clone(),
            local_addresses: local_addresses.to_vec(),
            context: context(settings, None),
            now: Instant::now(),
        };
        proxy.offer(&[], true);
        proxy
    }

    pub(crate) fn apply(&mut self, event: Event) {
        let dirty = self.store.apply(event);
        let mut services: Vec<ObjectName> = dirty.services.into_iter().collect();
        if dirty.node {
            services = self.store.service_names().chain(&services).cloned().collect();
            self.context = context(&self.settings, self.store.node());
        }
        self.offer(&services, dirty.node);
    }

    /// The node gets other addresses.
    pub(crate) fn readdress(&mut self, local_addresses: &[IpAddr]) {
        self.local_addresses = local_addresses.to_vec();
        self.offer(&[], false);
    }

    pub(crate) fn sync(&mut self) {
        self.now += Duration::from_millis(300);
        let outcome = self.engine.sync(self.now);
        assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{outcome:?}");
        assert_eq!(self.engine.kernel().violations, Vec::<String>::new());
    }

    /// Everything that is to be done is done.
    pub(crate) fn settle(&mut self) -> Vec<String> {
        self.sync();
        self.now = settle(&mut self.engine, self.now);
        settled(&self.engine)
    }

    /// What is decided now.
    pub(crate) fn decided(&self) -> (Context, BaseState, Vec<ServiceState>) {
        let states = self.store.service_names().filter_map(|name| self.state(name)).collect();
        (self.context.clone(), self.base(), states)
    }

    fn base(&self) -> BaseState {
        base(&self.settings, &self.context, &self.local_addresses, &self.store, &Profile::NFTABLES, self.family).0
    }

    fn state(&self, name: &ObjectName) -> Option<ServiceState> {
        let objects = self.store.objects(name);
        let (state, _) = resolve(&objects, self.store.claims(), &self.context, &Profile::NFTABLES, self.family);
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
