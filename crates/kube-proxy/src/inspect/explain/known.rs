//! Input of an explanation: the core's state, and the units in quarantine.

use ferry_api::object::{Family, ObjectName};
use ferry_model::{Diagnostic, PortReasons, ServiceState, Store, reasons};

use crate::control::Quarantined;
use crate::core::{FamilyView, View};

/// The input of an explanation.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownState<'a> {
    pub(super) view: View<'a>,
    /// units in quarantine
    quarantined: &'a [Quarantined],
}

/// A Service in one family.
#[derive(Debug)]
pub(super) struct Resolved<'a> {
    pub(super) state: ServiceState,
    pub(super) diagnostics: Vec<Diagnostic>,
    pub(super) ports: Vec<PortReasons<'a>>,
}

// === impl KnownState ===

impl<'a> KnownState<'a> {
    pub(super) fn new(view: View<'a>, quarantined: &'a [Quarantined]) -> Self {
        Self { view, quarantined }
    }

    pub(super) fn store(&self) -> &'a Store {
        self.view.store
    }

    /// A Service as the model resolves it, with its reasons.
    pub(super) fn resolved(&self, name: &ObjectName, of: &FamilyView<'_>) -> Resolved<'a> {
        let (state, diagnostics) = self.view.resolved(name, of);
        Resolved { state, diagnostics, ports: reasons(&self.store().objects(name), of.context, of.family) }
    }

    /// The quarantine of a Service in a family; `None` if the kernel accepted its state.
    pub(super) fn quarantined(&self, name: &ObjectName, family: Family) -> Option<&'a Quarantined> {
        let name = name.to_string();
        self.quarantined.iter().find(|one| one.is_of(family) && one.service.as_ref() == Some(&name))
    }

    /// The quarantine of the base state, in each family.
    pub(super) fn quarantined_base(&self) -> impl Iterator<Item = &'a Quarantined> {
        self.quarantined.iter().filter(|one| one.service.is_none())
    }
}
