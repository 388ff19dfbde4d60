//! The desired state of a history: services of every kind that change.

use std::sync::Arc;

use ferry_api::object::Family;
use ferry_model::{Affinity, Context, LocalDetector, Profile, ServiceState};
use ferry_plane::{Delta, Unit, UnitId};

use crate::states::{base, context_for, everything_for, pool};

/// Number of contexts, numbered from 0.
pub const CONTEXTS: u8 = 4;

/// The context of a number. Consecutive ones differ in one fact only: the mark, then the detector of pods.
fn context_number(family: Family, profile: &Profile, number: u8) -> Context {
    let plain = context_for(family, profile);
    let marked = Context { masquerade_mark: 0x8000, ..plain.clone() };
    let detector = match number {
        0 => return plain,
        1 => return marked,
        2 => Some(LocalDetector::InterfacePrefix("veth".into())),
        _ => Some(LocalDetector::Bridge("cni0".into())),
    };
    Context { local: detector, ..marked }
}

/// The desired state so far.
#[derive(Clone, Debug)]
pub struct World {
    /// the family
    pub family: Family,
    profile: Profile,
    /// number of the context, below [`CONTEXTS`]
    pub context: u8,
    /// each service with its current state, if present, and its initial one
    pub services: Vec<(UnitId, Option<ServiceState>, ServiceState)>,
}

impl World {
    /// The initial state, with all services, in a mode of this profile.
    pub fn new(family: Family, profile: Profile) -> Self {
        let services =
            everything_for(family, &profile).units.into_iter().filter_map(|(id, unit)| match unit.as_deref() {
                Some(Unit::Service(state)) => Some((id, Some(state.clone()), state.clone())),
                Some(Unit::Base(_)) | None => None,
            });
        Self { family, profile, context: 0, services: services.collect() }
    }

    /// Gives a service endpoints with these last bytes of addresses, in each pool that initially had some, and sets its affinity.
    pub fn change(&mut self, service: usize, cluster: &[u8], local: &[u8], sticky: bool) {
        let Some((_, state, original)) = self.services.get_mut(service) else { return };
        let mut next = original.clone();
        for port in &mut next.ports {
            if !port.cluster.is_empty() {
                port.cluster = pool(self.family, cluster);
            }
            if !port.local.is_empty() {
                port.local = pool(self.family, local);
            }
            port.affinity = Affinity::new(60).filter(|_| sticky);
        }
        *state = Some(next);
    }

    /// The whole state as one delta.
    pub fn delta(&self) -> Delta {
        let units = self
            .services
            .iter()
            .map(|(id, state, _)| (id.clone(), state.clone().map(|state| Arc::new(Unit::Service(state)))));
        let affinity = self.services.iter().filter_map(|(_, state, _)| state.as_ref());
        let affinity = affinity.flat_map(|state| &state.ports).any(|port| port.affinity.is_some());
        let base = Unit::Base(base(self.family, affinity));
        let units = units.chain([(UnitId::Base, Some(Arc::new(base)))]).collect();
        Delta { context: Some(Arc::new(context_number(self.family, &self.profile, self.context))), units }
    }
}
