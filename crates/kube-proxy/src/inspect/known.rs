//! What is known of each family: the context, the base state and the Services that are served.

use std::sync::Arc;

use anyhow::Context as _;
use ferry_api::object::{Family, ObjectName};
use ferry_model::{
    BaseState, Context, Diagnostic, PerFamily, PortReasons, Profile, ServiceState, Store, reasons, resolve,
};
use ferry_plane::{Delta, Unit};

use super::desired::Desired;
use crate::control::Quarantined;

/// Everything that answers are made of.
#[derive(Debug)]
pub(super) struct Known<'a> {
    pub(super) desired: &'a Desired,
    pub(super) profile: Profile,
    /// units that the kernel refuses
    quarantined: &'a [Quarantined],
    families: PerFamily<InFamily<'a>>,
}

/// One family.
#[derive(Debug)]
pub(super) struct InFamily<'a> {
    pub(super) family: Family,
    pub(super) context: Arc<Context>,
    pub(super) base: &'a BaseState,
    pub(super) services: Vec<&'a ServiceState>,
}

/// A Service in one family.
#[derive(Debug)]
pub(super) struct Resolved<'a> {
    pub(super) state: ServiceState,
    pub(super) diagnostics: Vec<Diagnostic>,
    pub(super) ports: Vec<PortReasons<'a>>,
}

// === impl Known ===

impl<'a> Known<'a> {
    /// # Errors
    /// If a family has no state, for which [`desired`](crate::inspect::desired()) waits.
    pub(super) fn of(desired: &'a Desired, profile: Profile) -> anyhow::Result<Self> {
        let of = |wanted: Family| {
            let delta = desired.families.iter().find(|(family, _)| *family == wanted).map(|(_, delta)| delta);
            let known = delta.and_then(|delta| InFamily::of(wanted, delta));
            known.with_context(|| format!("nothing is known of {wanted}"))
        };
        let families = PerFamily { v4: of(Family::V4)?, v6: of(Family::V6)? };
        Ok(Self { desired, profile, quarantined: &[], families })
    }

    /// The same with the units that the kernel refuses, as the running proxy has said.
    pub(super) fn with_quarantined(self, quarantined: &'a [Quarantined]) -> Self {
        Self { quarantined, ..self }
    }

    /// The units of a Service in a family that the kernel refuses: one, or none.
    pub(super) fn quarantined(&self, name: &ObjectName, family: Family) -> Option<&'a Quarantined> {
        let name = name.to_string();
        self.quarantined.iter().find(|one| one.is_of(family) && one.service.as_ref() == Some(&name))
    }

    /// What all Services share, in each family in which the kernel refuses it.
    pub(super) fn quarantined_base(&self) -> impl Iterator<Item = &'a Quarantined> {
        self.quarantined.iter().filter(|one| one.service.is_none())
    }

    pub(super) fn store(&self) -> &'a Store {
        self.desired.store()
    }

    pub(super) fn family(&self, family: Family) -> &InFamily<'a> {
        self.families.of(family)
    }

    /// A Service as the model resolves it, with its reasons.
    pub(super) fn resolved(&self, name: &ObjectName, known: &InFamily<'a>) -> Resolved<'a> {
        let (store, objects) = (self.store(), self.store().objects(name));
        let (state, diagnostics) = resolve(&objects, store.claims(), &known.context, &self.profile, known.family);
        Resolved { state, diagnostics, ports: reasons(&objects, &known.context, known.family) }
    }
}

// === impl InFamily ===

impl<'a> InFamily<'a> {
    fn of(family: Family, delta: &'a Delta) -> Option<Self> {
        let (mut base, mut services) = (None, Vec::new());
        for unit in delta.units.values().flatten() {
            match &**unit {
                Unit::Base(state) => base = Some(state),
                Unit::Service(state) => services.push(state),
            }
        }
        Some(Self { family, context: Arc::clone(delta.context.as_ref()?), base: base?, services })
    }
}
