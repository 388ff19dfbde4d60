//! `cargo xt deny`: checks licences, sources and duplicates of all dependencies against `deny.toml`.

use crate::shell::{cargo, install_subcommand, no_arguments, run as run_command};
use anyhow::Result;

/// Runs cargo-deny, and installs it first if absent. Its check of advisories is left out, since it needs to download a
/// database.
///
/// # Errors
/// If a dependency violates `deny.toml`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    no_arguments(arguments)?;
    install_subcommand("deny")?;
    run_command(cargo().args(["deny", "--log-level", "warn", "check", "licenses", "bans", "sources"]))
}
