//! Runs the tools that build a package.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// If it can't be started or fails, with its standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {name}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}\n{}", output.status, complaint.trim_end());
    String::from_utf8(output.stdout).with_context(|| format!("the output of {name}"))
}
