//! `cargo xt test`: runs all checks and tests. The last line of its output is `N passed, N failed`.

use crate::setup::{self, Use};
use crate::shell::{Metadata, last_lines, no_arguments};
use crate::tally::Tally;
use crate::{binaries, check, demo, fuzz, lanes, package, vm, windows};
use anyhow::{Context, Result, ensure};
use std::process::{Child, Command, Stdio};

/// Builds upstream's kube-proxy and an API server: the peer in the test of the hand-over back to upstream.
const PEER: &str = "tests/lanes/kubernetes/kube-api";

/// Duration of each fuzz target, in seconds.
const FUZZ_SECONDS: u32 = 20;

/// Runs everything and prints the counts.
///
/// # Errors
/// If an argument is unknown. A failed test ends the program with status 1, without output after the counts.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let install = arguments.first().is_some_and(|argument| argument == setup::OPTION);
    no_arguments(arguments.get(usize::from(install)..).unwrap_or_default())?;
    let mut tally = Tally::default();
    tally.check("tools and privilege", || setup::prepare(&[Use::Tests, Use::Machines, Use::Windows], install));
    if tally.failed == 0
        && let Err(error) = steps(&mut tally)
    {
        tally.fail(format!("{error:#}"));
    }
    tally.print_steps();
    println!("{} passed, {} failed", tally.passed, tally.failed);
    std::process::exit(i32::from(tally.failed > 0));
}

/// Runs the steps in order: those without the peer first, during its build.
fn steps(tally: &mut Tally) -> Result<()> {
    let metadata = Metadata::load()?;
    let peer = build_peer(&metadata)?;
    let on_windows = windows::start(&metadata)?;
    check::checks(tally);
    tally.check("static executable", || package::for_tests(&metadata));
    let mut built = Vec::new();
    tally.check("build of the tests", || {
        built = binaries::build_workspace()?;
        Ok(())
    });
    tally.step("fuzz", |tally| fuzz::all(&metadata, FUZZ_SECONDS, &[], tally));
    tally.check("upstream's kube-proxy, built meanwhile", || finish_peer(peer, &metadata));
    let mut for_windows = Vec::new();
    tally.check("tests for Windows, built meanwhile", || {
        for_windows = windows::finish(on_windows, &metadata)?;
        Ok(())
    });
    tally.step("tests", |tally| lanes::run(&built, &for_windows, &metadata.target_directory, tally));
    tally.step("other kernels", |tally| vm::all(&metadata, &built, tally));
    tally.check("demo", || demo::run(&[]));
    Ok(())
}

/// Starts building the peer, which takes one to four minutes the first time.
fn build_peer(metadata: &Metadata) -> Result<Child> {
    let log = std::fs::File::create(peer_log(metadata)).context("creating the log of the peer's build")?;
    Command::new("nice")
        .args(["-n", "10", PEER, "build"])
        .current_dir(&metadata.workspace_root)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("starting {PEER}"))
}

fn peer_log(metadata: &Metadata) -> std::path::PathBuf {
    metadata.target_directory.join("kube-api.log")
}

fn finish_peer(mut build: Child, metadata: &Metadata) -> Result<()> {
    let status = build.wait().with_context(|| format!("waiting for {PEER}"))?;
    let log = std::fs::read_to_string(peer_log(metadata)).unwrap_or_default();
    ensure!(status.success(), "{PEER} build: {status}\n{}", last_lines(&log).join("\n"));
    Ok(())
}
