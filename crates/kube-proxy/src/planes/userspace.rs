//! Mode userspace: opens its engines by one of two ways in which traffic reaches the relay of this process; removes upstream's chains of
//! this mode.

mod bind;
mod metrics;
mod redirect;
mod serving;

use std::io;
use std::sync::Arc;

use ferry_api::config::{MODE_USERSPACE, WAY_BIND, WAY_REDIRECT};
use ferry_api::object::Family;
use ferry_model::Profile;
use ferry_plane::{CommitError, Served};
use ferry_plane_userspace::{Readings, SharedRelay};

use self::bind::ROUTES;
use self::metrics::{USERSPACE_TABLE, UserspaceMetrics};
use self::serving::OwnRelay;
use super::{Engines, Leftovers, Opened, Opening, Plane, RetireError, Retirement, RuleDomain, Way};

pub(super) const PLANE: Plane = Plane {
    mode: MODE_USERSPACE,
    profile: Profile::USERSPACE,
    paced: false,
    domains: &[PORTALS, ROUTES],
    metrics: USERSPACE_TABLE,
    devices: &[],
    open,
    // It needs none.
    initialize: |_| Ok(()),
    remove_leftovers,
    // What an earlier run has left leads to listeners that have ended with it.
    in_use: |_| Ok(false),
    // The way bind serves what it can without.
    needs_net_admin: false,
};

/// The chains of upstream's mode userspace. This mode has none.
const PORTALS: RuleDomain =
    RuleDomain { mode: MODE_USERSPACE, name: "iptables chains of mode userspace", retire: retire_portals };

/// The engines of one way.
struct Tried {
    families: Vec<Opened>,
    shared: SharedRelay,
    domains: &'static [RuleDomain],
    profile: Profile,
}

/// Opens the configured way. Without one: `redirect`, or `bind` where the machine lacks what that needs.
fn open(opening: &Opening<'_>) -> anyhow::Result<Engines> {
    match opening.config.ferry.userspace.way.as_str() {
        WAY_BIND => Ok(engines(opening, bind::open(opening)?, WAY_BIND, None)),
        WAY_REDIRECT => Ok(engines(opening, redirect::open(opening)?, WAY_REDIRECT, None)),
        _ => {
            let lacks = match redirect::open(opening) {
                Ok(tried) => match tried.lacks() {
                    None => return Ok(engines(opening, tried, WAY_REDIRECT, None)),
                    Some(lacks) => lacks,
                },
                Err(error) => format!("{error:#}"),
            };
            Ok(engines(opening, bind::open(opening)?, WAY_BIND, Some(lacks)))
        }
    }
}

fn engines(opening: &Opening<'_>, tried: Tried, name: &'static str, why: Option<String>) -> Engines {
    let Tried { families, shared, domains, profile } = tried;
    let readings = Readings::new(shared.directory.clone(), Arc::clone(&shared.relay));
    let patience = opening.config.ferry.userspace.drain_timeout.to_std();
    Engines {
        families,
        metrics: Box::new(move |registry| UserspaceMetrics::register(readings, name, registry)),
        domains,
        serving: Some(Arc::new(OwnRelay { shared, patience })),
        way: Some(Way { name, profile, why }),
    }
}

// === impl Tried ===

impl Tried {
    /// What the machine lacks for every family, if none can be served and none may be later.
    fn lacks(&self) -> Option<String> {
        let lacks = |(family, opened): &Opened| match opened {
            Err(error @ CommitError::Unusable(_)) => Some(format!("{family}: {error}")),
            Err(
                CommitError::Busy(_)
                | CommitError::Resources(_)
                | CommitError::Refused(_)
                | CommitError::Drifted { .. },
            )
            | Ok(_) => None,
        };
        let lacking: Option<Vec<String>> = self.families.iter().map(lacks).collect();
        lacking.map(|reasons| reasons.join("; "))
    }
}

fn retire_portals(family: Family, _: Retirement<'_>, _: &mut Vec<Served>) -> Result<usize, RetireError> {
    ferry_plane_iptables::retire_of_userspace(family).map_err(|error| {
        RetireError::Failed(anyhow::Error::new(error).context("removing chains of upstream's mode userspace"))
    })
}

/// Another proxy that has taken over has replaced the table, or deleted it.
fn remove_leftovers(_: Family) -> io::Result<Leftovers> {
    Ok(Leftovers::None)
}
