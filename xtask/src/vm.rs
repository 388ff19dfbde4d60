//! `cargo xt vm`: tests that need older kernels, in emulated machines that have them.

use crate::shell::{Metadata, cargo, require};
use crate::tally::Tally;
use crate::test::summary;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

/// Boots a kernel and runs a program on it.
const LANE: &str = "tests/lanes/vm/vm";

/// The kernels: the oldest and the newest that Debian 12 has.
const SERIES: [&str; 2] = ["6.1", "6.12"];

/// What the machines need, and the Debian package it comes with.
pub(crate) const TOOLS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("modprobe", "kmod"),
    ("xz", "xz-utils"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("setpriv", "util-linux"),
];

/// The tests whose outcome depends on the kernel: package and target.
const TESTS: &[(&str, &str)] = &[("ferry-kube-proxy", "churn"), ("ferry-plane-nftables", "kernel")];

/// What a machine that is twenty times slower than usual can do.
const SCALE: &[(&str, &str)] = &[
    ("FERRY_SLOWNESS", "10"),
    ("FERRY_CHURN_SECONDS", "60"),
    ("FERRY_CHURN_CONNECTIONS", "30"),
    ("FERRY_CHURN_CHANGES", "120"),
    ("FERRY_CHURN_ESTABLISHED", "20"),
    ("FERRY_CHURN_RACE_MILLISECONDS", "2000"),
];

/// Runs the tests on all kernels, or one: `--kernel SERIES`; or another program there.
///
/// # Errors
/// When a test fails or a machine does not come up.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (series, program) = match arguments {
        [option, series, rest @ ..] if option == "--kernel" => (vec![series.as_str()], rest),
        rest => (SERIES.to_vec(), rest),
    };
    require(TOOLS)?;
    let metadata = Metadata::load()?;
    if !program.is_empty() {
        for series in series {
            let status =
                machine(&metadata, series).args(program).status().with_context(|| format!("starting {LANE}"))?;
            ensure!(status.success(), "Linux {series}: {status}");
        }
        return Ok(());
    }
    let mut tally = Tally::default();
    on(&metadata, &series, &mut tally)?;
    ensure!(tally.failed == 0, "{} passed, {} failed", tally.passed, tally.failed);
    Ok(())
}

/// Runs the tests on all kernels at once, and counts them.
///
/// # Errors
/// When the tests can't be built, or a kernel can't be fetched.
pub(crate) fn all(metadata: &Metadata, tally: &mut Tally) -> Result<()> {
    on(metadata, &SERIES, tally)
}

fn on(metadata: &Metadata, series: &[&str], tally: &mut Tally) -> Result<()> {
    let tests = TESTS.iter().map(|(package, target)| build(package, target)).collect::<Result<Vec<_>>>()?;
    for series in series {
        let fetched = Command::new(metadata.workspace_root.join(LANE)).args(["fetch", series]).status();
        ensure!(fetched.with_context(|| format!("starting {LANE}"))?.success(), "no kernel {series}");
    }
    let outcomes: Vec<Result<(usize, usize)>> = thread::scope(|scope| {
        let start = |series| {
            let tests = &tests;
            scope.spawn(move || boot(metadata, series, tests))
        };
        let machines: Vec<_> = series.iter().copied().map(start).collect();
        let end = |machine: thread::ScopedJoinHandle<'_, _>| {
            machine.join().unwrap_or_else(|_| bail!("the reader of a machine's output panicked"))
        };
        machines.into_iter().map(end).collect()
    });
    for outcome in outcomes {
        let (passed, failed) = outcome?;
        tally.passed += passed;
        tally.failed += failed;
    }
    Ok(())
}

/// Boots one kernel, runs all tests there one after another, and counts them.
fn boot(metadata: &Metadata, series: &str, tests: &[PathBuf]) -> Result<(usize, usize)> {
    // Mode iptables would take as long again.
    let each =
        "failed=0; for test; do \"$test\" --test-threads 1 --nocapture --skip iptables || failed=1; done; exit $failed";
    let mut command = machine(metadata, series);
    command.args(["bash", "-c", each, "bash"]).args(tests).envs(SCALE.iter().copied());
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting {LANE}"))?;
    let (mut passed, mut failed) = (0, 0);
    for text in BufReader::new(child.stdout.take().context("the output of a machine")?).split(b'\n') {
        let text = String::from_utf8_lossy(&text?).into_owned();
        println!("{series}| {text}");
        if let Some((one, other, _)) = summary(&text) {
            passed += one;
            failed += other;
        }
    }
    let status = child.wait().context("waiting for a machine")?;
    // What crashes or hangs leaves no summary.
    ensure!(status.success() || failed > 0, "Linux {series}: {status}");
    Ok((passed, failed))
}

fn machine(metadata: &Metadata, series: &str) -> Command {
    let mut command = Command::new(metadata.workspace_root.join(LANE));
    command.args(["run", series]).stdin(Stdio::null()).current_dir(&metadata.workspace_root);
    command
}

/// Builds one test binary and says where it is.
fn build(package: &str, target: &str) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["test", "--quiet", "--package", package, "--test", target, "--no-run", "--message-format", "json"]);
    let output = command.stderr(Stdio::inherit()).output().context("starting cargo")?;
    ensure!(output.status.success(), "building {target} of {package}: {}", output.status);
    let text = String::from_utf8(output.stdout).context("what cargo built")?;
    let built = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let is_it = message.pointer("/target/name")?.as_str()? == target;
        is_it.then(|| message.pointer("/executable")?.as_str().map(|path| Path::new(path).to_owned()))?
    });
    built.with_context(|| format!("cargo built no {target}"))
}
