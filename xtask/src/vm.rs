//! `cargo xt vm`: runs the tests that depend on the kernel in emulated machines with older kernels.

use crate::binaries::{self, Binary};
use crate::setup::{self, Use};
use crate::shell::Metadata;
use crate::tally::{Counts, Tally};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

/// The script that boots a kernel and runs a program on it.
const LANE: &str = "tests/lanes/vm/vm";

/// The kernels: Debian 12's oldest and newest.
const SERIES: [&str; 2] = ["6.1", "6.12"];

/// The tests whose outcome depends on the kernel: folder of the package and target.
const TESTS: &[(&str, &str)] = &[("crates/kube-proxy", "churn"), ("crates/plane-nftables", "kernel")];

/// Options of `cargo test` that select [`TESTS`].
const SELECTION: &[&str] =
    &["--package", "ferry-kube-proxy", "--package", "ferry-plane-nftables", "--test", "churn", "--test", "kernel"];

/// Scales the tests to a machine that is twenty times slower.
const SCALE: &[(&str, &str)] = &[
    ("FERRY_SLOWNESS", "10"),
    ("FERRY_CHURN_SECONDS", "60"),
    ("FERRY_CHURN_CONNECTIONS", "30"),
    ("FERRY_CHURN_CHANGES", "120"),
    ("FERRY_CHURN_ESTABLISHED", "20"),
    ("FERRY_CHURN_RACE_MILLISECONDS", "2000"),
];

/// Runs the tests, or another program, on all kernels, or on one with `--kernel SERIES`.
///
/// # Errors
/// If a test fails, or a machine doesn't boot.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (series, program) = match arguments {
        [option, series, rest @ ..] if option == "--kernel" => (vec![series.as_str()], rest),
        rest => (SERIES.to_vec(), rest),
    };
    setup::prepare(&[Use::Machines], false)?;
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
    on(&metadata, &series, &binaries::build(SELECTION)?, &mut tally)?;
    ensure!(tally.failed == 0, "{} passed, {} failed", tally.passed, tally.failed);
    Ok(())
}

/// Runs the tests, taken from these binaries, on all kernels concurrently, and counts them.
///
/// # Errors
/// If a test wasn't built, or a kernel can't be fetched.
pub(crate) fn all(metadata: &Metadata, built: &[Binary], tally: &mut Tally) -> Result<()> {
    on(metadata, &SERIES, built, tally)
}

fn on(metadata: &Metadata, series: &[&str], built: &[Binary], tally: &mut Tally) -> Result<()> {
    let find = |&name: &(&str, &str)| {
        let binary = built.iter().find(|binary| binary.is(name));
        binary.map(Binary::executable).with_context(|| format!("cargo built no test {} of {}", name.1, name.0))
    };
    let tests = TESTS.iter().map(find).collect::<Result<Vec<_>>>()?;
    for series in series {
        let fetched = Command::new(metadata.workspace_root.join(LANE)).args(["fetch", series]).status();
        ensure!(fetched.with_context(|| format!("starting {LANE}"))?.success(), "no kernel {series}");
    }
    let outcomes: Vec<Result<Counts>> = thread::scope(|scope| {
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
        let counts = outcome?;
        tally.passed += counts.passed;
        tally.failed += counts.failed;
    }
    Ok(())
}

/// Boots one kernel, runs all tests on it one after another, and counts them.
fn boot(metadata: &Metadata, series: &str, tests: &[&Path]) -> Result<Counts> {
    // Without mode iptables, which would double the time.
    let each =
        "failed=0; for test; do \"$test\" --test-threads 1 --nocapture --skip iptables || failed=1; done; exit $failed";
    let mut command = machine(metadata, series);
    command.args(["bash", "-c", each, "bash"]).args(tests).envs(SCALE.iter().copied());
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting {LANE}"))?;
    let mut summaries = Vec::new();
    for text in BufReader::new(child.stdout.take().context("the output of a machine")?).split(b'\n') {
        let text = String::from_utf8_lossy(&text?).into_owned();
        println!("{series}| {text}");
        summaries.extend(Counts::of_summary(&text));
    }
    let counts: Counts = summaries.into_iter().sum();
    let status = child.wait().context("waiting for a machine")?;
    // A test that crashes or hangs prints no summary.
    ensure!(status.success() || counts.failed > 0, "Linux {series}: {status}");
    Ok(counts)
}

fn machine(metadata: &Metadata, series: &str) -> Command {
    let mut command = Command::new(metadata.workspace_root.join(LANE));
    command.args(["run", series]).stdin(Stdio::null()).current_dir(&metadata.workspace_root);
    command
}
