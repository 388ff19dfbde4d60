//! `cargo xt check`: runs the static checks, which need no privilege and no test run.

use crate::shell::{cargo, no_arguments, run as run_command};
use crate::tally::CheckTally;
use crate::{deny, layers};
use anyhow::{Result, ensure};

/// Runs all checks and prints every failure.
///
/// # Errors
/// If a check failed.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    no_arguments(arguments)?;
    let mut tally = CheckTally::default();
    checks(&mut tally);
    tally.print_steps();
    ensure!(tally.failed == 0, "{} of {} checks failed", tally.failed, tally.passed + tally.failed);
    Ok(())
}

/// Runs the checks one by one, the fast ones first.
pub(crate) fn checks(tally: &mut CheckTally) {
    tally.check("fmt", || {
        run_command(cargo().args(["fmt", "--all", "--check"]))?;
        run_command(cargo().args(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]))
    });
    tally.check("layers", || layers::run(&[]));
    tally.check("deny", || deny::run(&[]));
    tally.check("clippy", || {
        run_command(cargo().args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    });
    tally.check("doc", || {
        let mut doc = cargo();
        doc.env("RUSTDOCFLAGS", "-D warnings").args([
            "doc",
            "--quiet",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ]);
        run_command(&mut doc)
    });
}
