//! A case in this mode: what the model decides, and the objects that do it.

use std::fs;

use ferry_api::object::Family;
use ferry_model::{BaseState, Context, Profile, ServiceState, facts, resolve};
use ferry_plane::{Compile, Unit};
use ferry_plane_iptables::{Features, IptObject, Iptables};

use crate::case::Case;

/// A case in one family, decided.
pub(crate) struct Decided {
    pub(crate) family: Family,
    pub(crate) context: Context,
    pub(crate) base: BaseState,
    pub(crate) states: Vec<ServiceState>,
}

/// All cases, as they are with their configuration in this mode.
pub(crate) fn cases() -> Vec<Case> {
    let in_this_mode = |case: Case| {
        let config = fs::read_to_string(case.folder.join("config.yaml")).unwrap();
        let settings = Case::of(&case.name, &of_this_mode(&config), &[]).settings;
        Case { settings, ..case }
    };
    Case::all().into_iter().map(in_this_mode).collect()
}

/// A configuration with another mode, for which it says what it said for the first.
pub(crate) fn of_this_mode(config: &str) -> String {
    assert!(config.contains("mode: nftables") && !(config.contains("\nnftables:") && config.contains("\niptables:")));
    config.replace("mode: nftables", "mode: iptables").replace("\nnftables:", "\niptables:")
}

// === impl Decided ===

impl Decided {
    pub(crate) fn new(case: &Case, family: Family) -> Self {
        let profile = &Profile::IPTABLES;
        let context = facts::context(&case.settings, case.store.node());
        let (base, _) = facts::base(&case.settings, &context, &case.local_addresses, &case.store, profile, family);
        let resolved = case
            .store
            .service_names()
            .map(|name| resolve(&case.store.objects(name), case.store.claims(), &context, profile, family).0);
        let states = resolved.filter(|state| !state.ports.is_empty()).collect();
        Self { family, context, base, states }
    }

    /// The objects on a machine that can everything, those of the base first.
    pub(crate) fn compiled(&self) -> Vec<IptObject> {
        self.compiled_with(Features {
            random_fully: true,
            counts_invalid: true,
            counts_localhost: self.base.localhost,
            drops_invalid: true,
            guards_loopback: false,
        })
    }

    /// The objects on this machine.
    pub(crate) fn compiled_with(&self, features: Features) -> Vec<IptObject> {
        let iptables = Iptables::new(self.family, features);
        let mut objects = Vec::new();
        iptables.compile(&self.context, &Unit::Base(self.base.clone()), &mut objects);
        for state in &self.states {
            iptables.compile(&self.context, &Unit::Service(state.clone()), &mut objects);
        }
        objects
    }
}
