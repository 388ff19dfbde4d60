//! `--cleanup` and `--cleanup-leftovers`.

use std::io;

use anyhow::bail;
use ferry_api::object::Family;
use ferry_plane::CommitError;

use crate::planes::{Leftovers, PLANES};
use crate::platform;

/// Removes everything that is ours, of every mode and family. Goes on after an error.
pub(super) fn all() -> anyhow::Result<()> {
    platform::require_net_admin()?;
    let mut failed = false;
    for plane in PLANES {
        for (family, errors) in plane.retire(&Family::ALL) {
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
    platform::require_net_admin()?;
    let mut failed = false;
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

/// Logs errors; whether there were any that count. Where a mode can't be used there is nothing of it.
fn report(mode: &str, family: Family, errors: Vec<CommitError>) -> bool {
    let mut failed = false;
    for error in errors {
        match error {
            // What may not be touched may be there all the same.
            CommitError::Unusable(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                tracing::info!(mode, %family, err = %error, "The mode can't be used here, so there is nothing to remove");
            }
            CommitError::Unusable(_) | CommitError::Drifted { .. } | CommitError::Refused(_) | CommitError::Busy(_) => {
                tracing::error!(mode, %family, err = %error, "Cleaning up failed");
                failed = true;
            }
        }
    }
    failed
}
