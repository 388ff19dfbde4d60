//! `cargo xt bench [--mode MODE] [--upstream KUBE-PROXY] [SERVICES ...]`: builds what is shipped and measures it, upstream's
//! executable beside it where one is given; `cargo xt bench fleet [OPTION ...]`: what many proxies cost an API server. Prints;
//! never fails by a number.

use crate::shell::{cargo, run as run_command};
use anyhow::Result;

/// Builds the shipped profile and runs the benchmark program with the arguments given.
///
/// # Errors
/// When the build or the program fails.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    // As one is used to pass arguments through cargo.
    let arguments = arguments.strip_prefix(&["--".to_owned()]).unwrap_or(arguments);
    // Apart, so that no feature of a library that only the benchmark needs gets into what is measured.
    run_command(cargo().args(["build", "--release", "--package", "ferry-kube-proxy"]))?;
    run_command(cargo().args(["run", "--quiet", "--release", "--package", "ferry-bench", "--"]).args(arguments))
}
