//! `cargo xt windows`: builds for Windows, and runs its tests under Wine.

use crate::binaries::{self, Binary};
use crate::lanes;
use crate::meanwhile::{Build, WHEN_IDLE};
use crate::setup::{self, Use};
use crate::shell::CargoMetadata;
use crate::tally::CheckTally;
use anyhow::{Result, ensure};
use std::path::PathBuf;
use std::process::Command;

/// The script that builds and runs Windows programs.
const LANE: &str = "tests/lanes/windows/windows";

/// The test binaries, in as many runs of cargo as their options need. The unit tests of `kube-proxy`, and the tests of other crates, need
/// Linux.
const SELECTIONS: [&[&str]; 3] = [
    &["--lib", "--package=ferry-family", "--package=ferry-api", "--package=ferry-kernel"],
    &["--package=ferry-relay"],
    &["--package=ferry-kube-proxy", "--test=windows"],
];

/// Dependencies and debug information as cheap as possible: the tests run for seconds, and half of the build's processor time was these.
const CHEAP: [&str; 2] = [r#"--config=profile.dev.package."*".opt-level=0"#, "--config=profile.dev.debug=0"];

/// Builds the tests, and runs them.
///
/// # Errors
/// If a tool is missing, the build fails, or a test fails.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let install = arguments.first().is_some_and(|argument| argument == setup::OPTION);
    crate::shell::no_arguments(arguments.get(usize::from(install)..).unwrap_or_default())?;
    setup::prepare(&[Use::Windows], install)?;
    let metadata = CargoMetadata::load()?;
    let built = tests(&metadata)?;
    let mut tally = CheckTally::default();
    lanes::side_by_side(&built.iter().collect::<Vec<_>>(), &metadata.target_directory, &mut tally)?;
    tally.print_steps();
    ensure!(tally.failed == 0, "{} passed, {} failed", tally.passed, tally.failed);
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(())
}

/// Starts building the tests beside other steps, with time that nothing else wants: some five minutes of processor time the first time.
///
/// # Errors
/// If the build can't be started.
pub(crate) fn start(metadata: &CargoMetadata) -> Result<Build> {
    let cargo =
        |selection: &&[&str]| format!("{LANE} cargo test --no-run '{}' {}", CHEAP.join("' '"), selection.join(" "));
    let commands: Vec<String> = SELECTIONS.iter().map(cargo).collect();
    let folder = format!("CARGO_TARGET_DIR={}", folder(metadata).display());
    let build = ["env", &folder, "sh", "-e", "-c", &commands.join("\n")];
    Build::start("build for Windows", &[WHEN_IDLE, &build].concat(), metadata)
}

/// Waits for a build that was started, and returns its test binaries.
///
/// # Errors
/// If it has failed: the end of its output.
pub(crate) fn finish(build: Build, metadata: &CargoMetadata) -> Result<Vec<Binary>> {
    build.finish()?;
    tests(metadata)
}

/// Builds the tests.
fn tests(metadata: &CargoMetadata) -> Result<Vec<Binary>> {
    let lane = metadata.workspace_root.join(LANE);
    let mut built = Vec::new();
    for selection in SELECTIONS {
        let mut command = Command::new(&lane);
        command.arg("cargo").env("CARGO_TARGET_DIR", folder(metadata)).current_dir(&metadata.workspace_root);
        let binaries = binaries::build_by(command, &[&CHEAP, selection].concat())?;
        built.extend(binaries.into_iter().map(|binary| binary.run_by(&lane)));
    }
    Ok(built)
}

/// The target folder of this system: cargo locks a folder for as long as a build takes.
fn folder(metadata: &CargoMetadata) -> PathBuf {
    metadata.target_directory.join("windows")
}
