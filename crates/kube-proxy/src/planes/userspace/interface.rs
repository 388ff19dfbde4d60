//! The way `bind` on Windows: addresses of Services on an interface.

use ferry_api::object::Family;
use ferry_model::Profile;
use ferry_plane::{Delta, Kernel as _, Served, SyncEngine};
use ferry_plane_userspace::bind::{self, Binding, ServiceAddresses};

use super::{MODE, Tried, serving};
use crate::planes::{Opened, Opening, RenderedPart, Rendering, RetireError, Retirement, RuleDomain};
use crate::platform::{self, ServiceInterfaces};

/// The addresses of this mode.
pub(super) const ADDRESSES: RuleDomain = RuleDomain { mode: MODE, name: "service addresses", retire: retire_addresses };
const OWN: &[RuleDomain] = &[ADDRESSES];

/// Opens the engines, and starts the relay's threads.
pub(super) fn open(opening: &Opening<'_>) -> anyhow::Result<Tried> {
    let configured = opening.config.ferry.userspace.interface.as_str();
    let binds = platform::can_add_addresses();
    // A configured one is checked in any case.
    let named = if binds || !configured.is_empty() { Some(platform::interface_of_services(configured)?) } else { None };
    let interface = named.filter(|_| binds);
    match &interface {
        Some(interface) => tracing::info!(interface, "Addresses of Services are added to an interface"),
        None => tracing::warn!(
            "This system can't add addresses to interfaces: only node ports, and addresses that interfaces have, are served"
        ),
    }
    let (shared, workers) = serving::relay(opening, None)?;
    let mut added = Vec::new();
    let mut families: Vec<Opened> = Vec::new();
    for &family in opening.families {
        let reports = serving::listener_reports(opening, family);
        let mut engine = match &interface {
            Some(interface) => {
                let addresses = ServiceAddresses::new(platform::service_addresses(interface, family)?);
                added.push(addresses.clone());
                bind::engine_of_interface(family, addresses, &shared, reports)
            }
            None => bind::engine_without_addresses(family, &shared, reports),
        };
        let prepared = engine.kernel_mut().prepare();
        families.push((family, prepared.map(|()| -> Box<dyn SyncEngine> { Box::new(engine) })));
    }
    serving::start(workers, opening.threads)?;
    let at_end = Box::new(move || added.iter().for_each(remove));
    Ok(Tried { families, shared, domains: OWN, profile: Profile::USERSPACE_BIND, at_end })
}

pub(super) fn render(rendering: &Rendering<'_>) -> Vec<RenderedPart> {
    let objects =
        |(family, desired): &(Family, Delta)| bind::render::objects(&desired.compiled(&Binding::new(*family, true)));
    let texts: Vec<String> = rendering.families.iter().map(objects).collect();
    vec![RenderedPart { name: "listeners", loader: None, text: texts.join("\n") }]
}

/// Removes the addresses at the end of the program.
fn remove(addresses: &ServiceAddresses<ServiceInterfaces>) {
    match addresses.clear() {
        Ok(removed) => tracing::info!(removed, "Removed addresses of Services"),
        Err(error) => {
            tracing::warn!(err = %error, "Failed to remove addresses of Services, the next start removes them")
        }
    }
}

/// Removes the addresses that a run has recorded, from whatever interface.
fn retire_addresses(family: Family, retirement: Retirement<'_>, _: &mut Vec<Served>) -> Result<usize, RetireError> {
    let retire = || -> anyhow::Result<usize> {
        if !platform::can_add_addresses() {
            return Ok(0);
        }
        let interface = platform::interface_of_services(&retirement.config.ferry.userspace.interface)?;
        let addresses = ServiceAddresses::new(platform::service_addresses(&interface, family)?);
        Ok(addresses.clear()?)
    };
    retire().map_err(RetireError::Failed)
}
