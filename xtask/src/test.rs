//! `cargo xt test`: runs all checks and tests. The last line of its output is `N passed, N failed`.

use crate::meanwhile::Build;
use crate::setup::{self, Use};
use crate::shell::{CargoMetadata, no_arguments};
use crate::tally::CheckTally;
use crate::{binaries, check, demo, fuzz, lanes, package, vm, windows};
use anyhow::Result;

/// Runs everything and prints the counts.
///
/// # Errors
/// If an argument is unknown. A failed test ends the program with status 1, without output after the counts.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let install = arguments.first().is_some_and(|argument| argument == setup::OPTION);
    no_arguments(arguments.get(usize::from(install)..).unwrap_or_default())?;
    let mut tally = CheckTally::default();
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

/// Runs the steps in order. Three builds run beside the first ones, until something needs what they make. That for Windows has only the time
/// that other programs leave; so has fuzzing behind it, mostly while churn and the virtual machines wait.
fn steps(tally: &mut CheckTally) -> Result<()> {
    let metadata = CargoMetadata::load()?;
    let peer = Build::start("upstream's kube-proxy", &[vm::PEER, "build"], &metadata)?;
    let on_windows = windows::start(&metadata)?;
    let kernels = vm::build_kernels(&metadata)?;
    check::checks(tally);
    tally.check("static executable", || package::for_tests(&metadata));
    let mut built = Vec::new();
    tally.check("build of the tests", || {
        built = binaries::build_workspace()?;
        Ok(())
    });
    tally.check("upstream's kube-proxy, built meanwhile", || peer.finish());
    let (waiting, alone) = lanes::split(&built);
    tally.step("tests that wait", |tally| lanes::side_by_side(&waiting, &metadata.target_directory, tally));
    let fuzzing = fuzz::start(&metadata)?;
    tally.step("other tests", |tally| lanes::one_by_one(&alone, &metadata.target_directory, tally));
    let mut for_windows = Vec::new();
    tally.check("tests for Windows, built meanwhile", || {
        for_windows = windows::finish(on_windows, &metadata)?;
        Ok(())
    });
    let for_windows: Vec<_> = for_windows.iter().collect();
    tally.step("tests on Windows", |tally| lanes::side_by_side(&for_windows, &metadata.target_directory, tally));
    tally.check("user-mode Linux, built meanwhile", || kernels.finish());
    tally.step("other kernels", |tally| vm::all(&metadata, &built, tally));
    tally.step("fuzz, begun before", |tally| fuzz::finish(fuzzing, &metadata, tally));
    tally.check("demo", || demo::run(&[]));
    Ok(())
}
