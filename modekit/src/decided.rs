//! A case in a mode: what the model decides, and the objects that do it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_api::object::Family;
use ferry_model::{BaseState, Context, Packet, Profile, ServiceState, Verdict, facts, resolve};
use ferry_plane::{Compile, Delta, Unit, UnitId};

use crate::case::Case;
use crate::mode::{Mode, ObjectOf};

/// A case in one family, decided.
pub struct Decided {
    /// the family
    pub family: Family,
    /// what every unit is compiled with
    pub context: Context,
    /// what belongs to no service
    pub base: BaseState,
    /// the services that have anything to be served, by name
    pub states: Vec<ServiceState>,
}

// === impl Decided ===

impl Decided {
    /// What is decided of a case in this mode.
    pub fn of<M: Mode>(case: &Case, family: Family) -> Self {
        let profile = &M::Compiler::PROFILE;
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

    /// What is to become of a packet in a mode with this profile.
    pub fn decide(&self, packet: &Packet, profile: &Profile) -> Verdict {
        ferry_model::decide(&self.states, &self.base, packet, &self.context, profile)
    }

    /// The objects on a machine that can everything, those of the base first.
    pub fn compiled<M: Mode>(&self) -> Vec<ObjectOf<M>> {
        self.compiled_by(&M::compiler(self.family, self.base.localhost))
    }

    /// The objects on the machine of this compiler.
    pub fn compiled_by<C: Compile>(&self, compiler: &C) -> Vec<C::Object> {
        let mut objects = Vec::new();
        compiler.compile(&self.context, &Unit::Base(self.base.clone()), &mut objects);
        for state in &self.states {
            compiler.compile(&self.context, &Unit::Service(state.clone()), &mut objects);
        }
        objects
    }

    /// What makes this of what was offered before: services that are not there any more go.
    pub fn delta(&self, before: &Delta) -> Delta {
        let mut units: BTreeMap<UnitId, Option<Arc<Unit>>> = before.units.keys().map(|id| (id.clone(), None)).collect();
        units.insert(UnitId::Base, Some(Arc::new(Unit::Base(self.base.clone()))));
        for state in &self.states {
            units.insert(UnitId::Service(state.name.clone()), Some(Arc::new(Unit::Service(state.clone()))));
        }
        Delta { context: Some(Arc::new(self.context.clone())), units }
    }
}
