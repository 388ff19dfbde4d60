//! Helpers of all commands: runs child processes and reads `cargo metadata`.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The used part of `cargo metadata`.
#[derive(Debug, Deserialize)]
pub(crate) struct CargoMetadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) target_directory: PathBuf,
    pub(crate) workspace_root: PathBuf,
}

/// One package of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<PackageTarget>,
}

/// A library, a program or a program of tests of a package.
#[derive(Debug, Deserialize)]
pub(crate) struct PackageTarget {
    /// its first file
    pub(crate) src_path: PathBuf,
}

/// One dependency in a manifest.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub(crate) kind: Option<String>,
    /// Set for a package of this workspace.
    pub(crate) path: Option<PathBuf>,
    pub(crate) features: Vec<String>,
}

// === impl CargoMetadata ===

impl CargoMetadata {
    /// Reads the workspace's own packages, without network access.
    ///
    /// # Errors
    /// If cargo fails, with its exit status.
    pub(crate) fn load() -> Result<Self> {
        let output = cargo()
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .stderr(Stdio::inherit())
            .output()
            .context("starting cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata: {}", output.status);
        serde_json::from_slice(&output.stdout).context("reading the output of cargo metadata")
    }

    /// The features with which a build of the whole workspace compiles the direct dependencies of a package, as `--features` takes them.
    /// A build of this package alone with them finds what the workspace's build left, instead of compiling most crates once more.
    pub(crate) fn features_of_workspace(&self, package: &str) -> String {
        let normal = |dependency: &&Dependency| dependency.kind.is_none();
        let own = self.packages.iter().filter(|one| one.name == package).flat_map(|one| &one.dependencies);
        let direct: BTreeSet<&str> = own.filter(normal).map(|dependency| dependency.name.as_str()).collect();
        let all = self.packages.iter().flat_map(|package| &package.dependencies);
        let features = all
            .filter(|dependency| direct.contains(dependency.name.as_str()))
            .flat_map(|dependency| dependency.features.iter().map(|feature| format!("{}/{feature}", dependency.name)));
        features.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",")
    }
}

// === impl Package ===

impl Package {
    /// The folder of the package.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("."))
    }
}

/// The cargo that started this program, without standard input.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.stdin(Stdio::null());
    command
}

/// A command line as text, for messages.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program).chain(command.get_args()).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs a command to its end; it inherits this program's output.
///
/// # Errors
/// If it can't be started or fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {}", line(command)))?;
    ensure!(status.success(), "{}: {status}", line(command));
    Ok(())
}

/// Runs a command to its end; prints the last lines of its output only if it fails.
///
/// # Errors
/// If it can't be started or fails.
pub(crate) fn run_quietly(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("starting {}", line(command)))?;
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    ensure!(output.status.success(), "{}: {}\n{}", line(command), output.status, last_lines(&printed).join("\n"));
    Ok(())
}

/// The last 20 lines of a text: in a tool's output they contain the error.
pub(crate) fn last_lines(text: &str) -> Vec<&str> {
    let lines: Vec<_> = text.lines().collect();
    lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().to_vec()
}

/// Installs `cargo-NAME` if absent. As a debug build, which takes half the time, since it runs only for a second.
///
/// # Errors
/// If it can't be installed.
pub(crate) fn install_subcommand(name: &str) -> Result<()> {
    let mut probe = cargo();
    let present = probe.args([name, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if present.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    println!("installing cargo-{name}");
    let mut install = cargo();
    install.args(["install", "--quiet", "--locked", "--debug", &format!("cargo-{name}")]);
    // Its debug information would be a sixth of the build.
    run(install.env("CARGO_PROFILE_DEV_DEBUG", "none"))
}

/// Refuses arguments where a command takes none.
///
/// # Errors
/// If there is one.
pub(crate) fn no_arguments(arguments: &[String]) -> Result<()> {
    match arguments.first() {
        Some(argument) => bail!("unexpected argument {argument}"),
        None => Ok(()),
    }
}

/// True if an executable of this name is in a folder of PATH or in the administrator's folders.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packages that cargo compiles for the executable, each with its features.
    fn compiled(selection: &[&str]) -> BTreeSet<String> {
        let mut command = cargo();
        command.args(["tree", "--prefix", "none", "--no-dedupe", "--format", "{p} {f}"]).args(selection);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(Into::into).collect()
    }

    #[test]
    fn the_executable_alone_is_compiled_as_in_the_whole_workspace() {
        let package = crate::package::EXECUTABLE;
        let features = CargoMetadata::load().unwrap().features_of_workspace(package);
        let alone = compiled(&["--package", package, "--edges", "normal,build", "--features", &features]);
        let all = compiled(&["--workspace", "--edges", "normal,build,dev"]);
        let again: Vec<_> = alone.difference(&all).collect();
        assert!(again.is_empty(), "compiled once more: {again:?}");
    }
}
