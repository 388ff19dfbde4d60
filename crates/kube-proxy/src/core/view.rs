//! What the core knows and has decided last, for those who explain it.

use std::net::IpAddr;

use ferry_api::object::{Family, ObjectName};
use ferry_model::{BaseState, Context, Diagnostic, Profile, ServiceState, Store, resolve};

use super::{Core, EngineHandle};

/// The objects, and what the families' engines were given last.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// all objects
    pub store: &'a Store,
    /// the mode's capabilities
    pub profile: &'a Profile,
    /// the addresses of the machine's interfaces
    pub addresses: &'a [IpAddr],
    engines: &'a [EngineHandle],
}

/// One family.
#[derive(Clone, Copy, Debug)]
pub struct FamilyView<'a> {
    /// the family
    pub family: Family,
    /// the facts by which its Services are resolved
    pub context: &'a Context,
    /// what all Services share
    pub base: &'a BaseState,
}

// === impl Core ===

impl Core {
    /// Everything, without copies.
    pub fn view(&self) -> View<'_> {
        View { store: &self.store, profile: &self.profile, addresses: &self.addresses, engines: &self.engines }
    }
}

// === impl View ===

impl<'a> View<'a> {
    /// A family; `None` for one that isn't served, and before the first hand-over.
    pub fn family(&self, wanted: Family) -> Option<FamilyView<'a>> {
        let engine = self.engines.iter().find(|engine| engine.family == wanted)?;
        Some(FamilyView { family: wanted, context: engine.context.as_deref()?, base: engine.base.as_ref()? })
    }

    /// The families that are served.
    pub fn families(&self) -> impl Iterator<Item = FamilyView<'a>> {
        let view = *self;
        Family::ALL.into_iter().filter_map(move |family| view.family(family))
    }

    /// A Service as it is decided for a family, with what is wrong about it.
    pub fn resolved(&self, name: &ObjectName, of: &FamilyView<'_>) -> (ServiceState, Vec<Diagnostic>) {
        resolve(&self.store.objects(name), self.store.claims(), of.context, self.profile, of.family)
    }
}
