//! What is known of each family: the context, the base state and the Services that are served.

use std::sync::Arc;

use anyhow::Context as _;
use ferry_api::object::Family;
use ferry_model::{BaseState, Context, PerFamily, ServiceState};
use ferry_plane::{Delta, Unit};

use super::desired::Desired;

/// One family.
#[derive(Debug)]
pub(super) struct InFamily<'a> {
    pub(super) family: Family,
    pub(super) context: Arc<Context>,
    pub(super) base: &'a BaseState,
    pub(super) services: Vec<&'a ServiceState>,
}

/// Both families.
///
/// # Errors
/// If a family has no state, for which [`desired`](crate::inspect::desired()) waits.
pub(super) fn families(desired: &Desired) -> anyhow::Result<PerFamily<InFamily<'_>>> {
    let of = |wanted: Family| {
        let delta = desired.families.iter().find(|(family, _)| *family == wanted).map(|(_, delta)| delta);
        delta.and_then(|delta| InFamily::of(wanted, delta)).with_context(|| format!("nothing is known of {wanted}"))
    };
    Ok(PerFamily { v4: of(Family::V4)?, v6: of(Family::V6)? })
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
