//! `cargo xt mutants [--crate CRATE] [--file GLOB]`: runs the mutation tests of `ferry-mutants`, and installs cargo-mutants first if
//! absent, which lists the mutants.

use crate::shell::{cargo, install_subcommand, run as run_command};
use anyhow::Result;

/// Builds the program and runs it with these arguments.
///
/// # Errors
/// If the build or the program fails.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    install_subcommand("mutants")?;
    run_command(cargo().args(["run", "--quiet", "--package", "ferry-mutants", "--"]).args(arguments))
}
