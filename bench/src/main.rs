//! From objects to the kernel, measured: `ferry-bench [--mode MODE] [--upstream KUBE-PROXY] [SERVICES …]`. Needs root; works
//! in network namespaces of its own. `--mode MODE --churn SERVICES [KUBE-PROXY]` measures only how stale rules are while changes never
//! end. MODE is `nftables`, `iptables` (over nf_tables) or `iptables-legacy`. Prints and never judges: quote ratios and processor time,
//! machines are noisy.
//!
//! `ferry-bench [--mode MODE] --start|--spread|--wide|--ranges SERVICES` measures one thing alone, to be repeated side by side with another build.
//!
//! `ferry-bench fleet [OPTION …]` measures what many proxies cost an API server, see [`fleet`].
//!
//! Every part of every size is measured in a process of its own, so that memory is that size's.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

mod api;
mod fleet;
mod flows;
mod objects;
mod pipeline;
mod process;
mod ranges;
mod stats;
mod wide;

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use ferry_kernel::netns::Namespace;
use ferry_testkit::Mode;

/// Sizes when none are given.
const SIZES: [&str; 3] = ["1000", "5000", "10000"];

/// Services that change without a pause.
const CHURNING: &str = "300";

/// Flows that the kernel remembers.
const FLOWS: &str = "30000";

/// Services beside the one that is very large.
const BESIDE: &str = "1000";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (mode, rest) = match arguments.as_slice() {
        ["--mode", mode, rest @ ..] => (mode.parse()?, rest),
        rest => (Mode::NFTABLES, rest),
    };
    match rest {
        ["--pipeline", services] => inside(size(services)?, pipeline::run),
        ["--wide", services] => inside(size(services)?, |services| wide::run(mode, services)),
        ["--ranges", services] => inside(size(services)?, |services| ranges::run(mode, services)),
        ["--flows", flows] => inside(size(flows)?, flows::run),
        ["--process", services] => inside(size(services)?, process::run),
        // Has a namespace for each of its runs.
        ["--start", services] => api::start(mode, size(services)?),
        ["--spread", services] => api::spread(mode, size(services)?),
        ["--api", services] => api::run(mode, size(services)?, None),
        ["--api", services, upstream] => api::run(mode, size(services)?, Some(Path::new(upstream))),
        ["--churn", services] => churn(mode, services, None),
        ["--churn", services, upstream] => churn(mode, services, Some(Path::new(upstream))),
        ["fleet", options @ ..] => fleet::run(options),
        ["--fleet-in", folder, options @ ..] => fleet::run_in(Path::new(folder), options),
        ["--upstream", upstream, sizes @ ..] => parts(mode, sizes, Some(upstream)),
        sizes => parts(mode, sizes, None),
    }
}

fn size(text: &str) -> anyhow::Result<usize> {
    text.parse().context("a size is a number")
}

fn inside(services: usize, part: impl FnOnce(usize) -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    let namespace = Namespace::new().context("a network namespace needs root")?;
    namespace.raise_loopback()?;
    namespace.run(|| part(services))?
}

fn churn(mode: Mode, services: &str, upstream: Option<&Path>) -> anyhow::Result<()> {
    anyhow::ensure!(mode.backend.is_some(), "--churn is measured in modes that run a tool");
    api::churn::run(mode, size(services)?, upstream)
}

/// Measures each size in processes of its own.
fn parts(mode: Mode, sizes: &[&str], upstream: Option<&str>) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let parts: &[&str] = if mode == Mode::NFTABLES { &["--pipeline", "--process", "--api"] } else { &["--api"] };
    for size in if sizes.is_empty() { &SIZES } else { sizes } {
        println!("\n== {size} services x {} endpoints, one family", objects::ENDPOINTS);
        for part in parts {
            let upstream = upstream.filter(|_| *part == "--api");
            let mut command = Command::new(&program);
            let status = command.args(["--mode", &mode.to_string(), part, size]).args(upstream).status()?;
            anyhow::ensure!(status.success(), "{part} {size}: {status}");
        }
    }
    if mode.backend.is_some() {
        let mut command = Command::new(&program);
        let status = command.args(["--mode", &mode.to_string(), "--churn", CHURNING]).args(upstream).status()?;
        anyhow::ensure!(status.success(), "--churn {CHURNING}: {status}");
    }
    if mode == Mode::NFTABLES {
        for part in ["--wide", "--ranges"] {
            println!("\n== {part}, {BESIDE} other services");
            let status = Command::new(&program).args([part, BESIDE]).status()?;
            anyhow::ensure!(status.success(), "{part}: {status}");
        }
        println!("\n== {FLOWS} flows in the connection table");
        let status = Command::new(&program).args(["--flows", FLOWS]).status()?;
        anyhow::ensure!(status.success(), "--flows: {status}");
    }
    Ok(())
}
