//! `cargo xt package`: builds the executable as it is shipped, and the files of a release.

use crate::setup::{self, Use};
use crate::shell::{CargoMetadata, cargo, run as run_command};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package of the executable.
pub(crate) const EXECUTABLE: &str = "ferry-kube-proxy";
/// The largest executable that is released: nodes keep it in memory, and load it over slow lines.
const MOST_BYTES: u64 = 12_000_000;
/// The time of all files in a release, in seconds since 1970.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Builds everything into `target/package`, or the folder of `--out`; with `--dev`, only the executable that tests of images need.
///
/// # Errors
/// If a tool is missing, or a build fails.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let metadata = CargoMetadata::load()?;
    let folder = match arguments {
        [] => metadata.target_directory.join("package"),
        [option] if option == "--dev" => return for_tests(&metadata),
        [option, folder] if option == "--out" => PathBuf::from(folder),
        _ => bail!("unexpected arguments; --out FOLDER and --dev are known"),
    };
    setup::prepare(&[Use::Package], false)?;
    let executables = build_all(&metadata)?;
    executables.iter().try_for_each(|executable| check_size(executable))?;
    let epoch = epoch(&metadata.workspace_root)?;
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "ferry-deploy", "--"]);
    command.args(executables).args([&metadata.workspace_root, &folder]).env(EPOCH, epoch);
    run_command(&mut command)
}

/// Builds a static executable of the development profile, `target/static/kube-proxy`, which the tests run in an image from scratch. Its
/// crates are those of the tests' build.
///
/// # Errors
/// If the build fails.
pub(crate) fn for_tests(metadata: &CargoMetadata) -> Result<()> {
    build_static("dev", &metadata.features_of_workspace(EXECUTABLE))?;
    // A test that ran it under this name would not run what it tests; the next build puts the dynamic one there.
    let folder = metadata.target_directory.join("static");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let (from, to) = (metadata.target_directory.join("debug/kube-proxy"), folder.join("kube-proxy"));
    std::fs::rename(&from, &to).with_context(|| format!("moving {}", from.display()))?;
    Ok(())
}

/// Builds the executable for nodes, the static one for the image from scratch, and the plugin of kubectl.
fn build_all(metadata: &CargoMetadata) -> Result<[PathBuf; 3]> {
    build_static("release", "")?;
    let built = metadata.target_directory.join("release/kube-proxy");
    // The next build replaces the file of this name.
    let fixed = metadata.target_directory.join("release/kube-proxy-static");
    std::fs::copy(&built, &fixed).with_context(|| format!("copying {}", built.display()))?;
    run_command(cargo().args(["build", "--quiet", "--release", "--package", EXECUTABLE, "--bins"]))?;
    Ok([built, fixed, metadata.target_directory.join("release/kubectl-ferry")])
}

fn check_size(executable: &Path) -> Result<()> {
    let bytes = std::fs::metadata(executable).with_context(|| format!("examining {}", executable.display()))?.len();
    ensure!(bytes <= MOST_BYTES, "{} has {bytes} bytes, more than {MOST_BYTES}", executable.display());
    Ok(())
}

/// Builds the executable so that it needs no shared library (docs/decisions/0057-static-executable.md). Only the last step differs from
/// `cargo build`: the C library is linked into it.
fn build_static(profile: &str, features: &str) -> Result<()> {
    let mut command = cargo();
    command.args(["rustc", "--quiet", "--profile", profile, "--package", EXECUTABLE, "--bin", "kube-proxy"]);
    run_command(command.args(["--features", features, "--", "-C", "target-feature=+crt-static"]))
}

/// `SOURCE_DATE_EPOCH`, or the time of the last commit.
fn epoch(workspace: &Path) -> Result<String> {
    if let Ok(epoch) = std::env::var(EPOCH) {
        return Ok(epoch);
    }
    let mut command = Command::new("git");
    command.args(["log", "-1", "--format=%ct"]).current_dir(workspace);
    let output = command.output().with_context(|| format!("starting git; without it, set {EPOCH}"))?;
    ensure!(output.status.success(), "git log: {}; without a history, set {EPOCH}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
