//! The way `bind`: the relay listens at the addresses of Services, which are made this machine's, without netfilter.

use anyhow::anyhow;
use ferry_api::config::MODE_USERSPACE;
use ferry_api::object::Family;
use ferry_model::Profile;
use ferry_plane::{CommitError, Kernel as _, Served, SyncEngine};
use ferry_plane_userspace::bind::{self, Binding};
use ferry_plane_userspace::is_gate;

use super::Tried;
use super::serving;
use crate::planes::{Established, Opened, Opening, RenderedPart, Rendering, RetireError, Retirement, RuleDomain};
use crate::platform;
use crate::threads::STACK_BYTES;

/// The local routes of this way.
pub(super) const ROUTES: RuleDomain =
    RuleDomain { mode: MODE_USERSPACE, name: "local routes to Services", retire: retire_routes };
const OWN: &[RuleDomain] = &[ROUTES];

/// Opens the engines, and starts their threads if one can be used.
pub(super) fn open(opening: &Opening<'_>) -> anyhow::Result<Tried> {
    let binds = platform::require_net_admin().is_ok();
    if !binds {
        tracing::warn!(
            "Missing capability CAP_NET_ADMIN: cluster IPs are not served, only node ports and addresses that interfaces have. Grant it to the \
             systemd unit or container to serve all"
        );
    }
    let (shared, workers) = serving::relay(opening, None)?;
    let mut listeners = Vec::new();
    let mut open = |family| -> Result<Box<dyn SyncEngine>, CommitError> {
        let reports = serving::listener_reports(opening, family);
        if !binds {
            return Ok(Box::new(bind::engine_without_addresses(family, &shared, reports)));
        }
        let (mut engine, listener) = bind::engine(family, &shared, reports).map_err(CommitError::Unusable)?;
        engine.kernel_mut().prepare()?;
        listeners.push((family, listener));
        Ok(Box::new(engine))
    };
    let families: Vec<Opened> = opening.families.iter().map(|family| (*family, open(*family))).collect();
    for (family, listen) in listeners {
        let failed = opening.threads.clone();
        opening.threads.spawn(thread_name(family), STACK_BYTES, move || {
            failed.fail(anyhow::Error::new(listen()).context("waiting for notifications of routes"));
        })?;
    }
    if families.iter().any(|(_, opened)| opened.is_ok()) {
        serving::start(workers, opening.threads)?;
        shared.inheritance.add(opening.sockets.take_where(|name| !is_gate(name)));
    }
    Ok(Tried { families, shared, domains: OWN, profile: Profile::USERSPACE_BIND, at_end: Box::new(|| {}) })
}

pub(super) fn render(rendering: &Rendering<'_>) -> Vec<RenderedPart> {
    let (mut routes, mut listeners) = (String::new(), Vec::new());
    for (family, desired) in rendering.families {
        let objects = desired.compiled(&Binding::new(*family, true));
        routes += &bind::routes(&objects);
        listeners.push(bind::render::objects(&objects));
    }
    vec![
        RenderedPart { name: "routes", loader: Some("ip -batch -"), text: routes },
        RenderedPart { name: "listeners", loader: None, text: listeners.join("\n") },
    ]
}

/// The name of the thread that waits for foreign changes of a family's routes.
const fn thread_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "routes-v4",
        Family::V6 => "routes-v6",
    }
}

fn retire_routes(family: Family, retirement: Retirement<'_>, _: &mut Vec<Served>) -> Result<usize, RetireError> {
    match bind::retire(family, retirement.established == Established::Spared) {
        Ok(Some(routes)) => Ok(routes),
        Ok(None) => Err(RetireError::Waits(anyhow!("connections to addresses of Services are open"))),
        Err(error) => {
            Err(RetireError::Failed(anyhow::Error::new(error).context("removing local routes of mode userspace")))
        }
    }
}
