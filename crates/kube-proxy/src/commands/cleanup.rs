//! `--cleanup` and `--cleanup-leftovers`.

use anyhow::bail;
use ferry_api::config::KubeProxyConfiguration;
use ferry_api::object::Family;

use crate::planes::{self, Established, Leftovers, PLANES, RetireError, Retirement, RuleDomain};
use crate::platform;

/// Removes all owned objects of every mode and family. Continues after an error.
pub(super) fn all(config: &KubeProxyConfiguration) -> anyhow::Result<()> {
    platform::require_net_admin()?;
    let retirement = Retirement { established: Established::Ended, config };
    let mut failed = false;
    for domain in planes::domains() {
        for family in Family::ALL {
            failed |= report(domain, family, domain.retire(family, retirement, &mut Vec::new()));
        }
    }
    if failed {
        bail!("encountered an error while tearing down rules");
    }
    Ok(())
}

/// Removes leftovers in tables that another kube-proxy has taken over since. Continues after an error.
pub(super) fn leftovers() -> anyhow::Result<()> {
    platform::require_net_admin()?;
    let mut failed = false;
    for plane in PLANES {
        for family in Family::ALL {
            let mode = plane.mode;
            match plane.remove_leftovers(family) {
                Ok(Leftovers::None) => tracing::info!(mode, %family, "No leftovers found"),
                Ok(Leftovers::InUse) => {
                    tracing::info!(mode, %family, "No other kube-proxy has taken over, keeping the rules: use --cleanup");
                }
                Ok(Leftovers::Adopted) => {
                    tracing::info!(mode, %family, "Another kube-proxy of this mode manages all of these rules, keeping them");
                }
                Ok(Leftovers::Removed(objects)) => tracing::info!(mode, %family, objects, "Removed leftovers"),
                Err(error) => {
                    tracing::error!(mode, %family, err = %error, "Removing leftovers failed");
                    failed = true;
                }
            }
        }
    }
    if failed {
        bail!("encountered an error while removing leftovers");
    }
    Ok(())
}

/// Logs the result; true if it failed.
fn report(domain: RuleDomain, family: Family, result: Result<usize, RetireError>) -> bool {
    let RuleDomain { mode, name: domain, .. } = domain;
    match result {
        Ok(0) => tracing::info!(mode, %family, domain, "Nothing to remove"),
        Ok(objects) => tracing::info!(mode, %family, domain, objects, "Removed rules"),
        Err(RetireError::Absent(error)) => {
            tracing::info!(
                mode,
                %family,
                domain,
                err = %error,
                "Mode is not available here, nothing to remove"
            );
        }
        Err(RetireError::Failed(error) | RetireError::Waits(error)) => {
            tracing::error!(mode, %family, domain, err = format!("{error:#}"), "Cleanup failed");
            return true;
        }
    }
    false
}
