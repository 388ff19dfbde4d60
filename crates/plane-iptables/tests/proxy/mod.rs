//! A proxy of one family without its edges: events in, objects on a kernel in memory out.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, ObjectName};
use ferry_model::{BaseState, Context, Event, Profile, ServiceState, Settings, Store, base, context, resolve};
use ferry_plane::engine::Engine;
use ferry_plane::memory::MemoryKernel;
use ferry_plane::{Compile, Delta, Next, Object, SyncEngine, Unit, UnitId};
use ferry_plane_iptables::{Features, IptObject, Iptables};

/// On a machine that can everything.
pub(crate) const FEATURES: Features = Features {
    random_fully: true,
    counts_invalid: true,
    counts_localhost: true,
    drops_invalid: true,
    guards_loopback: false,
};

/// Decides only what an event makes dirty.
pub(crate) struct Proxy {
    pub(crate) family: Family,
    pub(crate) engine: Engine<Iptables, MemoryKernel<IptObject>>,
    store: Store,
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
            engine: Engine::new(Iptables::new(family, FEATURES), MemoryKernel::default()),
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

    /// What is there and wanted once everything is done that is to be done.
    pub(crate) fn settle(&mut self) -> Vec<IptObject> {
        self.sync();
        for _ in 0..60 {
            self.now += Duration::from_secs(400);
            let outcome = self.engine.tend(self.now);
            if outcome.error.is_none() && outcome.next == Next::Idle && !outcome.worked {
                return self.settled();
            }
        }
        panic!("does not settle");
    }

    fn settled(&self) -> Vec<IptObject> {
        let wanted = self.engine.objects();
        let there = self.engine.kernel().objects.values();
        let there: Vec<IptObject> =
            there.filter(|object| wanted.contains(object) || !object.spare()).cloned().collect();
        assert_eq!(there, wanted, "the kernel holds what is acknowledged");
        there
    }

    /// What is decided now.
    pub(crate) fn decided(&self) -> (Context, BaseState, Vec<ServiceState>) {
        let states = self.store.service_names().filter_map(|name| self.state(name)).collect();
        (self.context.clone(), self.base(), states)
    }

    /// The objects of what is decided now.
    pub(crate) fn compiled(&self) -> Vec<IptObject> {
        let (context, base, states) = self.decided();
        let iptables = Iptables::new(self.family, FEATURES);
        let mut objects = Vec::new();
        for unit in [Unit::Base(base)].into_iter().chain(states.into_iter().map(Unit::Service)) {
            iptables.compile(&context, &unit, &mut objects);
        }
        objects
    }

    fn base(&self) -> BaseState {
        base(&self.settings, &self.context, &self.local_addresses, &self.store, &Profile::IPTABLES, self.family).0
    }

    fn state(&self, name: &ObjectName) -> Option<ServiceState> {
        let objects = self.store.objects(name);
        let (state, _) = resolve(&objects, self.store.claims(), &self.context, &Profile::IPTABLES, self.family);
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
