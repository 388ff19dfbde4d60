//! The benchmark: `ferry-bench [--mode MODE] [--upstream KUBE-PROXY] [SERVICES …]` measures the path from objects to the
//! kernel. MODE is a row of [`Mode::ALL`]. Needs root; creates its own network namespaces. Prints figures without judging them: quote
//! ratios and CPU time, machines are noisy.
//!
//! `ferry-bench [--mode MODE] --start|--spread|--events|--insight|--wide|--ranges SERVICES` (and `--flows ENTRIES`) runs one measurement
//! alone, to be repeated side by side with another build. `--mode MODE --churn SERVICES [KUBE-PROXY]` measures only the staleness of
//! rules under endless changes.
//!
//! `ferry-bench --figures FILE --upstream KUBE-PROXY SERVICES` measures only what both proxies have in common, and writes it to a
//! file; `ferry-bench --chart FILE` draws that as an SVG beside it, see [`chart`].
//!
//! `ferry-bench --relay [WAY …]` compares the relay of mode userspace with a direct connection and with HAProxy, see [`relay`].
//!
//! `ferry-bench --gate [SERVICES]` compares its gate with a listener for each service, see [`relay::gate`].
//!
//! `ferry-bench fleet [OPTION …]` measures the load of many proxies on an API server, see [`fleet`].
//!
//! Every part of every size is measured in a separate process, so that its memory is that of the size alone.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

mod api;
mod chart;
mod figures;
mod fleet;
mod flows;
mod neighbour;
mod network;
mod objects;
mod pipeline;
mod process;
mod ranges;
mod relay;
mod stats;
mod wide;

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use ferry_kernel::netns::Namespace;
use ferry_lab::Mode;

/// Default sizes, in services.
const SIZES: [&str; 3] = ["1000", "5000", "10000"];

/// Number of services of the churn measurement.
const CHURNING: &str = "300";

/// Number of conntrack entries.
const FLOWS: &str = "30000";

/// Number of services besides the very large one.
const OTHER_SERVICES: &str = "1000";

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
        ["--flows", flows] => inside(size(flows)?, |flows| flows::run(mode, flows)),
        ["--process", services] => inside(size(services)?, process::run),
        // Creates a namespace for each of its runs.
        ["--start", services] => api::start(mode, size(services)?),
        ["--spread", services] => api::spread(mode, size(services)?),
        ["--events", services] => api::events::run(mode, size(services)?),
        ["--insight", services] => api::insight::run(mode, size(services)?),
        ["--api", services] => api::run(mode, size(services)?, None),
        ["--api", services, upstream] => api::run(mode, size(services)?, Some(Path::new(upstream))),
        ["--figures", file, "--upstream", upstream, services] => {
            api::compare(mode, size(services)?, Path::new(upstream))?.write(Path::new(file))
        }
        ["--chart", file] => chart::run(Path::new(file)),
        ["--churn", services] => churn(mode, services, None),
        ["--churn", services, upstream] => churn(mode, services, Some(Path::new(upstream))),
        ["--relay", names @ ..] => relay::run(names),
        ["--gate", services @ ..] => relay::gate::run(services.first().copied()),
        ["--gate-process", shape, services] => relay::gate::process(shape, services),
        ["--relay-server"] => relay::server(),
        ["--relay-process", address] => relay::relay_process(address),
        ["fleet", options @ ..] => fleet::run(options),
        ["--fleet-in", folder, options @ ..] => fleet::run_in(Path::new(folder), options),
        ["--upstream", upstream, sizes @ ..] => parts(mode, sizes, Some(upstream)),
        sizes => parts(mode, sizes, None),
    }
}

fn size(text: &str) -> anyhow::Result<usize> {
    text.parse().context("the number of services or flows")
}

fn inside(services: usize, part: impl FnOnce(usize) -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    let namespace = Namespace::new().context("creating a network namespace, which needs root")?;
    namespace.raise_loopback()?;
    namespace.run(|| part(services))?
}

fn churn(mode: Mode, services: &str, upstream: Option<&Path>) -> anyhow::Result<()> {
    anyhow::ensure!(mode.backend.is_some(), "--churn is measured in modes that run a tool");
    api::churn::run(mode, size(services)?, upstream)
}

/// Runs each part of each size in a separate process.
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
            println!("\n== {part}, {OTHER_SERVICES} other services");
            let status = Command::new(&program).args([part, OTHER_SERVICES]).status()?;
            anyhow::ensure!(status.success(), "{part}: {status}");
        }
        println!("\n== {FLOWS} flows in the connection table");
        let status = Command::new(&program).args(["--flows", FLOWS]).status()?;
        anyhow::ensure!(status.success(), "--flows: {status}");
    }
    Ok(())
}
