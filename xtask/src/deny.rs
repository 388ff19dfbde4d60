//! `cargo xt deny`: licences, sources and duplicates of all dependencies, as `deny.toml` wants them.

use crate::shell::{cargo, install_subcommand, no_arguments, run as run_command};
use anyhow::Result;

/// Runs cargo-deny, which is built first where it is absent. Its check of advisories is left out: it needs a database from elsewhere.
///
/// # Errors
/// When a dependency is not as `deny.toml` wants it.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    no_arguments(arguments)?;
    install_subcommand("deny")?;
    run_command(cargo().args(["deny", "--log-level", "warn", "check", "licenses", "bans", "sources"]))
}
