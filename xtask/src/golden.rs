//! `cargo xt golden`: compares the results of all case folders in `testdata/cases` with their expected files, or writes these.

use crate::layers::is_plane;
use crate::shell::{CargoMetadata, cargo, no_arguments, run as run_command};
use anyhow::Result;

/// The crate whose expected files are the model's decisions; each plane has expected files of its rules.
const MODEL: &str = "ferry-model";

/// Runs the case-folder tests; with `--accept` they write their expected files instead of comparing.
///
/// # Errors
/// If a test fails.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let accept = arguments.first().is_some_and(|argument| argument == "--accept");
    no_arguments(arguments.get(usize::from(accept)..).unwrap_or_default())?;
    let mut command = cargo();
    command.arg("test");
    let metadata = CargoMetadata::load()?;
    let compared = metadata.packages.iter().filter(|package| package.name == MODEL || is_plane(&package.name));
    for package in compared {
        command.args(["--package", &package.name]);
    }
    command.args(["--no-fail-fast", "--test", "suite", "--", "cases::"]);
    if accept {
        command.env("FERRY_ACCEPT", "1");
    }
    run_command(&mut command)?;
    if accept {
        println!("expected files written: read `git diff testdata/cases` like code before it is committed");
    }
    Ok(())
}
