//! Runs kubectl.

use std::ffi::OsString;
use std::io;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, bail};
use ferry_kernel::text::in_one_line;

use crate::platform;

/// The kubectl that asks the API server: its kubeconfig, contexts and credentials apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kubectl {
    program: OsString,
    flags: Vec<String>,
}

/// The variable with the program, where it isn't `kubectl` in `PATH`.
const PROGRAM: &str = "KUBECTL";
/// Time limit of its requests: that of a trace, and some seconds.
const TIME_LIMIT: &str = "--request-timeout=90s";

// === impl Kubectl ===

impl Kubectl {
    /// The kubectl of the environment, with these global flags.
    pub(super) fn with_flags(flags: Vec<String>) -> Self {
        let named = std::env::var_os(PROGRAM).filter(|program| !program.is_empty());
        Self { program: named.unwrap_or_else(|| "kubectl".into()), flags }
    }

    #[cfg(test)]
    pub(super) fn at(program: &str) -> Self {
        Self { program: program.into(), flags: Vec::new() }
    }

    #[cfg(test)]
    pub(super) fn flags(&self) -> &[String] {
        &self.flags
    }

    /// A command with these arguments, which ends with this program.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.flags).args(arguments);
        platform::end_with_thread(&mut command);
        command
    }

    /// The standard output of a command.
    ///
    /// # Errors
    /// If kubectl is missing, or fails: its standard error.
    pub(super) fn output(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.command(&[arguments, &[TIME_LIMIT]].concat());
        // A plugin for credentials may ask its user.
        let output = command.stdin(Stdio::inherit()).output().map_err(|error| self.failed_to_start(&error))?;
        let Output { status, stdout, stderr } = output;
        if !status.success() {
            let complaint = complaint(&String::from_utf8_lossy(&stderr));
            bail!(
                "kubectl {}: {}",
                arguments.join(" "),
                if complaint.is_empty() { status.to_string() } else { complaint }
            );
        }
        String::from_utf8(stdout).with_context(|| format!("kubectl {}: the output is no text", arguments.join(" ")))
    }

    /// The error of a program that can't be started.
    pub(super) fn failed_to_start(&self, error: &io::Error) -> anyhow::Error {
        let program = self.program.to_string_lossy();
        anyhow::anyhow!("starting {program}: {error}: kubectl must be in PATH, or named by the variable {PROGRAM}")
    }
}

/// The standard error of kubectl in one line, without those of its log, which repeat the error with details.
pub(super) fn complaint(stderr: &str) -> String {
    let is_logged = |line: &str| {
        line.strip_prefix(['I', 'W', 'E', 'F'])
            .is_some_and(|rest| rest.bytes().take(4).all(|byte| byte.is_ascii_digit()))
    };
    let said: Vec<&str> = stderr.lines().filter(|line| !is_logged(line)).collect();
    let text = in_one_line(&said.join("\n"));
    if text.is_empty() { in_one_line(stderr) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_kubectl_is_left_out() {
        let log = "E1127 23:10:14.326629   27925 memcache.go:265] \"Unhandled Error\" err=\"refused\"\n";
        assert_eq!(
            complaint(&format!("{log}{log}The connection was refused\nError: 1\n")),
            "The connection was refused; Error: 1"
        );
        assert_eq!(complaint(log), log.trim());
        assert_eq!(complaint(""), "");
    }
}
