//! Builds the test binaries of the workspace, and runs them like cargo, in the package's folder.

use crate::shell::cargo;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The test binary in which the lab starts the executable under its seccomp profile, and that profile's path from its folder.
const CONFINED: ((&str, &str), &str) = (("crates/kube-proxy", "traffic"), "../../deploy/seccomp/kube-proxy.json");

/// One test binary that cargo built.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    /// The folder of its package, its working directory.
    folder: PathBuf,
    /// The name of the target, such as `churn` for `tests/e2e/churn/main.rs`.
    target: String,
    /// True for an integration test in `tests`; false for the unit tests of a library or a program.
    is_test: bool,
    executable: PathBuf,
    /// The lane that runs it, where it is a program of another system.
    lane: Option<PathBuf>,
}

/// Builds all test binaries of the workspace.
///
/// # Errors
/// If cargo fails, or its messages can't be parsed.
pub(crate) fn build_workspace() -> Result<Vec<Binary>> {
    build(&["--workspace"])
}

/// Builds the test binaries that these options of `cargo test` select. Sorted by package, unit tests first, and by name, since
/// cargo reports them in the order in which their builds end.
///
/// # Errors
/// If cargo fails, or its messages can't be parsed.
pub(crate) fn build(selection: &[&str]) -> Result<Vec<Binary>> {
    build_by(cargo(), selection)
}

/// The same with another cargo.
///
/// # Errors
/// If cargo fails, or its messages can't be parsed.
pub(crate) fn build_by(mut command: Command, selection: &[&str]) -> Result<Vec<Binary>> {
    command.args(["test", "--quiet", "--no-run", "--message-format", "json"]).args(selection);
    let output = command.stderr(Stdio::inherit()).output().context("starting cargo")?;
    let text = String::from_utf8(output.stdout).context("the messages of cargo")?;
    let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for rendered in messages.iter().filter_map(|message| message.pointer("/message/rendered")?.as_str()) {
        print!("{rendered}");
    }
    ensure!(output.status.success(), "cargo test --no-run {}: {}", selection.join(" "), output.status);
    let mut built: Vec<_> = messages.iter().filter_map(Binary::of_message).collect();
    built.sort_by(|one, other| one.place().cmp(&other.place()));
    Ok(built)
}

// === impl Binary ===

impl Binary {
    /// The test binary that a message of cargo reports, if any.
    fn of_message(message: &Value) -> Option<Self> {
        let text = |pointer: &str| message.pointer(pointer)?.as_str();
        if !message.pointer("/profile/test")?.as_bool()? {
            return None;
        }
        Some(Self {
            folder: Path::new(text("/manifest_path")?).parent()?.to_owned(),
            target: text("/target/name")?.to_owned(),
            is_test: message.pointer("/target/kind/0")?.as_str()? == "test",
            executable: text("/executable")?.into(),
            lane: None,
        })
    }

    /// The sort key of binaries.
    fn place(&self) -> (&Path, bool, &str) {
        (&self.folder, self.is_test, &self.target)
    }

    /// True for the binary of this file in `tests` of the package in this folder of the workspace.
    pub(crate) fn is(&self, (package, target): (&str, &str)) -> bool {
        self.is_test && self.target == target && self.folder.ends_with(package)
    }

    /// Package folder and target, for messages.
    pub(crate) fn name(&self) -> String {
        let package = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let system = if self.lane.is_some() { " on Windows" } else { "" };
        format!("{package}, {} {}{system}", if self.is_test { "test" } else { "unit tests of" }, self.target)
    }

    /// The same, run by the lane of another system.
    pub(crate) fn run_by(self, lane: &Path) -> Self {
        Self { lane: Some(lane.to_owned()), ..self }
    }

    pub(crate) fn executable(&self) -> &Path {
        &self.executable
    }

    /// A command that runs it, with a time limit such as `10m`.
    pub(crate) fn command(&self, limit: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10s", limit]);
        if let Some(lane) = &self.lane {
            command.arg(lane).arg("run");
        }
        command
            .arg(&self.executable)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null());
        let (binary, profile) = CONFINED;
        if self.is(binary) {
            command.env("FERRY_SECCOMP", self.folder.join(profile));
        }
        command
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A test binary of this package that is another executable.
    pub(crate) fn binary(folder: &str, target: &str, executable: &str) -> Binary {
        Binary {
            folder: folder.into(),
            target: target.into(),
            is_test: true,
            executable: executable.into(),
            lane: None,
        }
    }

    fn message(kind: &str, name: &str, test: bool) -> Value {
        serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/x/crates/kube-proxy/Cargo.toml",
            "target": {"kind": [kind], "name": name},
            "profile": {"test": test},
            "executable": if kind == "lib" && !test { Value::Null } else { "/x/target/debug/deps/churn-1".into() },
        })
    }

    #[test]
    fn messages_of_cargo_are_test_binaries_or_others() {
        let churn = Binary::of_message(&message("test", "churn", true)).unwrap();
        assert!(churn.is(("crates/kube-proxy", "churn")));
        assert!(!churn.is(("crates/kernel", "churn")));
        assert!(!churn.is(("crates/kube-proxy", "traffic")));
        assert_eq!(churn.name(), "kube-proxy, test churn");
        let unit = Binary::of_message(&message("lib", "churn", true)).unwrap();
        assert!(!unit.is(("crates/kube-proxy", "churn")));
        assert_eq!(unit.name(), "kube-proxy, unit tests of churn");
        assert!(unit.place() < churn.place(), "unit tests come first");
        for other in [message("lib", "ferry", false), message("bin", "kube-proxy", false), serde_json::json!({})] {
            assert_eq!(Binary::of_message(&other), None);
        }
    }

    #[test]
    fn one_binary_runs_the_executable_under_its_profile() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let profile = |folder: &str, target: &str| {
            let command = binary(root.join(folder).to_str().unwrap(), target, "/bin/true").command("10s");
            let mut variables = command.get_envs().filter(|(name, _)| *name == "FERRY_SECCOMP");
            variables.next().and_then(|(_, value)| Some(PathBuf::from(value?)))
        };
        let ((folder, target), _) = CONFINED;
        assert!(profile(folder, target).is_some_and(|profile| profile.is_file()));
        assert_eq!(profile(folder, "peer"), None, "upstream's executable has no profile");
    }

    #[test]
    fn a_binary_of_another_system_is_run_by_its_lane() {
        let binary = binary("/proc", "relay", "/x/relay.exe").run_by(Path::new("/bin/echo"));
        assert_eq!(binary.name(), "proc, test relay on Windows");
        assert_eq!(binary.command("10s").output().unwrap().stdout, b"run /x/relay.exe\n");
    }

    #[test]
    fn a_binary_runs_in_its_package_and_is_ended_when_its_time_is_up() {
        let output = binary("/proc", "pwd", "/bin/pwd").command("10s").output().unwrap();
        assert_eq!(output.stdout, b"/proc\n");
        let status = binary("/", "yes", "/usr/bin/yes").command("0.1s").stdout(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(124));
    }
}
