//! `cargo xt golden`: the case folders of `testdata/cases` against what they expect.

use crate::shell::{cargo, no_arguments, run as run_command};
use anyhow::Result;

/// Runs the case-folder tests; with `--accept` they write their expected files instead of comparing.
///
/// # Errors
/// When a test fails.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let accept = arguments.first().is_some_and(|argument| argument == "--accept");
    no_arguments(arguments.get(usize::from(accept)..).unwrap_or_default())?;
    let mut command = cargo();
    command.args([
        "test",
        "--package",
        "ferry-model",
        "--package",
        "ferry-plane-nftables",
        "--package",
        "ferry-plane-iptables",
    ]);
    command.args(["--no-fail-fast", "--test", "cases"]);
    if accept {
        command.env("FERRY_ACCEPT", "1");
    }
    run_command(&mut command)?;
    if accept {
        println!("expected files written: read `git diff testdata/cases` like code before it is committed");
    }
    Ok(())
}
