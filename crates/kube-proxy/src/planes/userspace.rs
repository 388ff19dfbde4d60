//! Mode userspace: opens its engines by one of the ways in which traffic reaches the relay of this process. On Linux there are two, on
//! Windows, where the mode is called winuserspace, one.

#[cfg(target_os = "linux")]
mod bind;
#[cfg(target_os = "linux")]
mod early_demux;
#[cfg(windows)]
mod interface;
mod metrics;
#[cfg(target_os = "linux")]
mod redirect;
mod serving;
#[cfg(target_os = "linux")]
mod ways;

use std::io;
use std::sync::Arc;

use ferry_api::config::KubeProxyConfiguration;
#[cfg(target_os = "linux")]
use ferry_api::config::MODE_USERSPACE as MODE;
#[cfg(windows)]
use ferry_api::config::{MODE_WINUSERSPACE as MODE, WAY_BIND};
use ferry_api::object::Family;
use ferry_model::Profile;
use ferry_plane_userspace::{Readings, SharedRelay};

use self::metrics::{USERSPACE_TABLE, UserspaceMetrics};
use self::serving::OwnRelay;
use super::{Engines, Leftovers, Offline, Opened, Opening, Plane, RuleDomain, Way};

pub(super) const PLANE: Plane = Plane {
    mode: MODE,
    profile: PROFILE,
    paced: false,
    domains: DOMAINS,
    metrics: USERSPACE_TABLE,
    devices: &[],
    open,
    // Opening the engines has set what it needs.
    initialize: |_| Ok(()),
    remove_leftovers,
    // The table and the routes of an earlier run lead to listeners that ended with its process.
    in_use: |_| Ok(false),
    // The way bind serves what it can without.
    needs_net_admin: false,
    offline,
    inspect: None,
};

#[cfg(target_os = "linux")]
const PROFILE: Profile = Profile::USERSPACE;
#[cfg(windows)]
const PROFILE: Profile = Profile::USERSPACE_BIND;

#[cfg(target_os = "linux")]
const DOMAINS: &[RuleDomain] = &[ways::PORTALS, bind::ROUTES];
#[cfg(windows)]
const DOMAINS: &[RuleDomain] = &[interface::ADDRESSES];

/// The engines of one way.
struct Tried {
    families: Vec<Opened>,
    shared: SharedRelay,
    domains: &'static [RuleDomain],
    profile: Profile,
    /// what is done once the relay has ended
    at_end: Box<dyn Fn() + Send + Sync>,
}

#[cfg(target_os = "linux")]
fn open(opening: &Opening<'_>) -> anyhow::Result<Engines> {
    ways::open(opening)
}

#[cfg(windows)]
fn open(opening: &Opening<'_>) -> anyhow::Result<Engines> {
    Ok(engines(opening, interface::open(opening)?, WAY_BIND, None))
}

#[cfg(target_os = "linux")]
fn offline(config: &KubeProxyConfiguration) -> Offline {
    ways::offline(config)
}

#[cfg(windows)]
fn offline(_: &KubeProxyConfiguration) -> Offline {
    Offline { profile: PROFILE, render: interface::render }
}

fn engines(opening: &Opening<'_>, tried: Tried, name: &'static str, why: Option<String>) -> Engines {
    let Tried { families, shared, domains, profile, at_end } = tried;
    let readings = Readings::new(shared.directory.clone(), Arc::clone(&shared.relay));
    let patience = opening.config.ferry.userspace.drain_timeout.to_std();
    Engines {
        families,
        metrics: Box::new(move |registry| UserspaceMetrics::register(readings, name, registry)),
        domains,
        serving: Some(Arc::new(OwnRelay { shared, patience, at_end })),
        way: Some(Way { name, profile, why }),
    }
}

/// Another proxy that has taken over has replaced the table, or deleted it.
fn remove_leftovers(_: Family) -> io::Result<Leftovers> {
    Ok(Leftovers::None)
}
