//! The choice between the ways of Linux, and upstream's chains of this mode.

use anyhow::bail;
use ferry_api::config::{KubeProxyConfiguration, MODE_USERSPACE, WAY_BIND, WAY_REDIRECT};
use ferry_api::object::Family;
use ferry_model::Profile;
use ferry_plane::{CommitError, Served};

use super::{Tried, bind, engines, redirect};
use crate::planes::{Engines, Offline, Opened, Opening, RetireError, Retirement, RuleDomain};
use crate::platform;

/// The chains of upstream's mode userspace. This mode has none.
pub(super) const PORTALS: RuleDomain =
    RuleDomain { mode: MODE_USERSPACE, name: "iptables chains of mode userspace", retire: retire_portals };

/// The remedy where the configured way `redirect` can't be used.
const REMEDY: &str = "provide that, or configure userspaceWay: bind";

/// Opens the configured way. Without one: `redirect`, or `bind` where the privilege or the kernel's support for that is missing.
pub(super) fn open(opening: &Opening<'_>) -> anyhow::Result<Engines> {
    let configured = opening.config.ferry.userspace.way.as_str();
    if configured == WAY_BIND {
        return Ok(engines(opening, bind::open(opening)?, WAY_BIND, None));
    }
    match open_redirect(opening)? {
        Ok(tried) => Ok(engines(opening, tried, WAY_REDIRECT, None)),
        Err(lacking) if configured == WAY_REDIRECT => {
            bail!("way redirect of mode {MODE_USERSPACE} can't be used on this machine: {lacking}; {REMEDY}")
        }
        Err(lacking) => Ok(engines(opening, bind::open(opening)?, WAY_BIND, Some(lacking))),
    }
}

/// Opens the way `redirect`. The inner error names what the machine or the process lacks for it.
fn open_redirect(opening: &Opening<'_>) -> anyhow::Result<Result<Tried, String>> {
    if let Err(missing) = platform::require_net_admin() {
        return Ok(Err(format!("{missing:#}")));
    }
    let tried = redirect::open(opening)?;
    Ok(match tried.lacking() {
        None => Ok(tried),
        Some(reasons) => {
            Err(format!("nf_tables, and CAP_NET_ADMIN in the user namespace of this network, are needed: {reasons}"))
        }
    })
}

/// By the configured way; without one it is `redirect`.
pub(super) fn offline(config: &KubeProxyConfiguration) -> Offline {
    match config.ferry.userspace.way.as_str() {
        WAY_BIND => Offline { profile: Profile::USERSPACE_BIND, render: bind::render },
        _ => Offline { profile: Profile::USERSPACE, render: redirect::render },
    }
}

// === impl Tried ===

impl Tried {
    /// Why no family can be served now or later; `None` if one can.
    fn lacking(&self) -> Option<String> {
        let reason = |(family, opened): &Opened| match opened {
            Err(error @ CommitError::Unusable(_)) => Some(format!("{family}: {error}")),
            Err(
                CommitError::Busy(_)
                | CommitError::Resources(_)
                | CommitError::Refused(_)
                | CommitError::Drifted { .. },
            )
            | Ok(_) => None,
        };
        let reasons: Option<Vec<String>> = self.families.iter().map(reason).collect();
        reasons.map(|reasons| reasons.join("; "))
    }
}

fn retire_portals(family: Family, _: Retirement<'_>, _: &mut Vec<Served>) -> Result<usize, RetireError> {
    ferry_plane_iptables::retire_of_userspace(family).map_err(|error| {
        RetireError::Failed(anyhow::Error::new(error).context("removing chains of upstream's mode userspace"))
    })
}
