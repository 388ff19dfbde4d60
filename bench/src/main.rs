//! From objects to the kernel, measured: `ferry-bench [--upstream KUBE-PROXY] [SERVICES …]`. Needs root; works in network
//! namespaces of its own. Prints and never judges: quote ratios and processor time, machines are noisy.
//!
//! Every part of every size is measured in a process of its own, so that memory is that size's.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

mod api;
mod flows;
mod objects;
mod pipeline;
mod process;
mod stats;

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use ferry_kernel::netns::Namespace;

/// Sizes when none are given.
const SIZES: [&str; 3] = ["1000", "5000", "10000"];

/// Flows that the kernel remembers.
const FLOWS: &str = "30000";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--pipeline", services] => inside(size(services)?, pipeline::run),
        ["--flows", flows] => inside(size(flows)?, flows::run),
        ["--process", services] => inside(size(services)?, process::run),
        // Has a namespace for each of its runs.
        ["--api", services] => api::run(size(services)?, None),
        ["--api", services, upstream] => api::run(size(services)?, Some(Path::new(upstream))),
        ["--upstream", upstream, sizes @ ..] => parts(sizes, Some(upstream)),
        sizes => parts(sizes, None),
    }
}

fn size(text: &str) -> anyhow::Result<usize> {
    text.parse().context("a size is a number")
}

fn inside(services: usize, part: fn(usize) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let namespace = Namespace::new().context("a network namespace needs root")?;
    namespace.raise_loopback()?;
    namespace.run(|| part(services))?
}

/// Measures each size in processes of its own.
fn parts(sizes: &[&str], upstream: Option<&str>) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    for size in if sizes.is_empty() { &SIZES } else { sizes } {
        println!("\n== {size} services x {} endpoints, one family", objects::ENDPOINTS);
        for part in ["--pipeline", "--process", "--api"] {
            let upstream = upstream.filter(|_| part == "--api");
            let status = Command::new(&program).args([part, size]).args(upstream).status()?;
            anyhow::ensure!(status.success(), "{part} {size}: {status}");
        }
    }
    println!("\n== {FLOWS} flows in the connection table");
    let status = Command::new(&program).args(["--flows", FLOWS]).status()?;
    anyhow::ensure!(status.success(), "--flows: {status}");
    Ok(())
}
