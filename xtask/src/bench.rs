//! `cargo xt bench [--mode MODE] [--upstream KUBE-PROXY] [SERVICES ...]`: builds the release and measures it, with upstream's
//! executable for comparison if given; `cargo xt bench fleet [OPTION ...]`: measures the load of many proxies on an API server;
//! `cargo xt bench --chart [FILE]`: draws the chart of figures that a run has written.
//! Prints figures and never fails because of one.

use crate::shell::{cargo, run as run_command};
use anyhow::Result;

/// The figures whose chart the README shows.
const FIGURES: &str = "docs/measured.json";

/// Builds the release profile and runs the benchmark program with these arguments.
///
/// # Errors
/// If the build or the program fails.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    // Accepts the customary `--` between cargo's arguments and the program's.
    let arguments = arguments.strip_prefix(&["--".to_owned()]).unwrap_or(arguments);
    let chart = ["run", "--quiet", "--package", "ferry-bench", "--", "--chart"];
    match arguments {
        [first] if first == "--chart" => return run_command(cargo().args(chart).arg(FIGURES)),
        [first, files @ ..] if first == "--chart" => return run_command(cargo().args(chart).args(files)),
        _ => {} // a measurement
    }
    // A separate build, so that the measured executable has no library features that only the benchmark needs.
    run_command(cargo().args(["build", "--release", "--package", "ferry-kube-proxy"]))?;
    run_command(cargo().args(["run", "--quiet", "--release", "--package", "ferry-bench", "--"]).args(arguments))
}
