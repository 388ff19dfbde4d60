//! `--cleanup` and `--cleanup-leftovers`.

use anyhow::bail;
use ferry_api::object::Family;
use ferry_kernel::capability;
use ferry_plane::CommitError;

use crate::planes::{Leftovers, PLANES};

/// Removes everything that is ours, of every mode and family. Goes on after an error.
pub(super) fn all() -> anyhow::Result<()> {
    let mut failed = !may_change_the_network();
    for plane in PLANES {
        for (family, engine) in plane.engines_to_retire() {
            let errors = match engine {
                Ok(engine) => engine.retire().err().unwrap_or_default(),
                Err(error) => vec![error],
            };
            failed |= report(plane.mode, family, errors);
        }
    }
    if failed {
        bail!("encountered an error while tearing down rules");
    }
    Ok(())
}

/// Removes what we left in places that another kube-proxy has taken over since. Goes on after an error.
pub(super) fn leftovers() -> anyhow::Result<()> {
    let mut failed = !may_change_the_network();
    for plane in PLANES {
        for family in Family::ALL {
            let mode = plane.mode;
            match plane.remove_leftovers(family) {
                Ok(Leftovers::None) => tracing::info!(mode, %family, "There is nothing of ours"),
                Ok(Leftovers::InUse) => {
                    tracing::info!(mode, %family, "Nobody has taken over, it stays; --cleanup would remove it");
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

fn may_change_the_network() -> bool {
    let may = capability::net_admin().unwrap_or(false);
    if !may {
        tracing::error!("The capability CAP_NET_ADMIN is missing");
    }
    may
}

/// Logs errors; whether there were any that count. Where a mode can't be used there is nothing of it.
fn report(mode: &str, family: Family, errors: Vec<CommitError>) -> bool {
    let mut failed = false;
    for error in errors {
        match error {
            CommitError::Unusable(error) => {
                tracing::info!(mode, %family, err = %error, "The mode can't be used here, so there is nothing to remove");
            }
            CommitError::Drifted { .. } | CommitError::Refused(_) | CommitError::Busy(_) => {
                tracing::error!(mode, %family, err = %error, "Cleaning up failed");
                failed = true;
            }
        }
    }
    failed
}
