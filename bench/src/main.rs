//! From manifests to the kernel, measured: `ferry-bench [SERVICES …]`. Needs root; works in network namespaces of its
//! own. Prints and never judges: quote ratios and processor time, machines are noisy.
//!
//! Every size is measured in a process of its own, so that memory is that size's.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

mod objects;
mod pipeline;
mod process;
mod stats;

use std::process::Command;

use anyhow::Context as _;
use ferry_kernel::netns::Namespace;

/// Sizes when none are given.
const SIZES: [&str; 3] = ["1000", "5000", "10000"];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--pipeline", size] => inside(size, pipeline::run),
        ["--process", size] => inside(size, process::run),
        [] => parts(&SIZES),
        sizes => parts(sizes),
    }
}

fn inside(size: &str, part: fn(usize) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let size = size.parse().context("a size is a number of services")?;
    let namespace = Namespace::new().context("a network namespace needs root")?;
    namespace.raise_loopback()?;
    namespace.run(|| part(size))?
}

/// Measures each size in processes of its own.
fn parts(sizes: &[&str]) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    for size in sizes {
        println!("\n== {size} services x {} endpoints, one family", objects::ENDPOINTS);
        for part in ["--pipeline", "--process"] {
            let status = Command::new(&program).args([part, size]).status()?;
            anyhow::ensure!(status.success(), "{part} {size}: {status}");
        }
    }
    Ok(())
}
