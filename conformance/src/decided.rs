//! A case in a mode: the desired state that the model resolves, and the compiled objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_api::object::Family;
use ferry_model::{BaseState, Context, Packet, Profile, ServiceState, Verdict, facts, resolve};
use ferry_plane::{Compile, Delta, Unit, UnitId};

use crate::case::Case;
use crate::mode::{Mode, ObjectOf};

/// The desired state of a case in one family.
pub struct Decided {
    /// the family
    pub family: Family,
    /// the context of every unit's compilation
    pub context: Context,
    /// the base state, outside of services
    pub base: BaseState,
    /// the services with ports to serve, sorted by name
    pub states: Vec<ServiceState>,
}

// === impl Decided ===

impl Decided {
    /// Resolves a case with this mode's profile.
    pub fn of<M: Mode>(case: &Case, family: Family) -> Self {
        Self::by(case, family, &M::Compiler::PROFILE)
    }

    /// Resolves a case with this profile.
    pub fn by(case: &Case, family: Family, profile: &Profile) -> Self {
        let context = facts::context(&case.settings, case.store.node(), &case.local_addresses, profile, family);
        let mut store = case.store.clone();
        store.serve_node_ports_at(facts::node_port_addresses(&case.settings, case.store.node(), &case.local_addresses));
        let (base, _) = facts::base(&case.settings, &context, &case.local_addresses, &store, profile, family);
        let resolved = store
            .service_names()
            .map(|name| resolve(&store.objects(name), store.claims(), &context, profile, family).0);
        let states = resolved.filter(|state| !state.ports.is_empty()).collect();
        Self { family, context, base, states }
    }

    /// The model's verdict on a packet in a mode with this profile.
    pub fn decide(&self, packet: &Packet, profile: &Profile) -> Verdict {
        ferry_model::decide(&self.states, &self.base, packet, &self.context, profile)
    }

    /// The compiled objects on a machine with every capability, those of the base state first.
    pub fn compiled<M: Mode>(&self) -> Vec<ObjectOf<M>> {
        self.compiled_by(&M::compiler(self.family, self.base.localhost))
    }

    /// The objects that this compiler makes.
    pub fn compiled_by<C: Compile>(&self, compiler: &C) -> Vec<C::Object> {
        self.delta(&Delta::default()).compiled(compiler)
    }

    /// The delta from the previously offered one to this state, with removals of missing services.
    pub fn delta(&self, before: &Delta) -> Delta {
        let mut units: BTreeMap<UnitId, Option<Arc<Unit>>> = before.units.keys().map(|id| (id.clone(), None)).collect();
        units.insert(UnitId::Base, Some(Arc::new(Unit::Base(self.base.clone()))));
        for state in &self.states {
            units.insert(UnitId::Service(state.name.clone()), Some(Arc::new(Unit::Service(state.clone()))));
        }
        Delta { context: Some(Arc::new(self.context.clone())), units }
    }
}
