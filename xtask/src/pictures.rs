//! `cargo xt pictures`: takes the documentation's pictures of the status page anew, by the test that looks at it in a browser.

use crate::shell::{cargo, no_arguments, run as run_command};
use anyhow::Result;

/// Runs the test, which writes `docs/status-page.png` and `docs/status-page-explain.png`.
///
/// # Errors
/// If it fails.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    no_arguments(arguments)?;
    let mut command = cargo();
    command.args(["test", "--package", "ferry-kube-proxy", "--test", "outside", "pictures::"]);
    run_command(command.env("FERRY_PICTURES", "1"))?;
    println!("look at docs/status-page.png and docs/status-page-explain.png before they are committed");
    Ok(())
}
