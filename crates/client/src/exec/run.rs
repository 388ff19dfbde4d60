//! Runs an exec plugin without a terminal, with limits of time and output.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use crate::kubeconfig::Exec;
use crate::platform::ProcessGroup;
use ferry_kernel::children::ChildProcess;
use ferry_kernel::text::in_one_line;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

use ferry_kernel::text::reason;

/// Credentials are a few kilobytes.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// Longest quotation of a plugin's standard error, in bytes.
const MAX_STDERR_BYTES: u64 = 2048;

/// Result of a run.
#[derive(Debug)]
pub(super) enum ExecOutcome {
    /// success; the output is secret
    Printed(Vec<u8>),
    /// the plugin ran and failed
    Failed {
        /// exit code; `None` if it was killed
        code: Option<i32>,
        /// for messages
        reason: String,
    },
    /// the plugin can't be started
    Missing(String),
}

// === impl ExecOutcome ===

impl ExecOutcome {
    /// The labels of upstream's metric: result and exit code, 1 if there is none.
    pub(super) fn status(&self) -> (&'static str, i32) {
        match self {
            Self::Printed(_) => ("no_error", 0),
            Self::Failed { code: Some(code), .. } => ("plugin_execution_error", *code),
            Self::Failed { code: None, .. } => ("client_internal_error", 1),
            Self::Missing(_) => ("plugin_not_found_error", 1),
        }
    }
}

/// Runs a plugin to its end.
pub(super) async fn run(exec: &Exec, about: &str, limit: Duration) -> ExecOutcome {
    let mut command = Command::new(&exec.command);
    command
        .args(&exec.args)
        .envs(exec.env.iter().map(|(name, value)| (name, value)))
        .env("KUBERNETES_EXEC_INFO", about)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    ProcessGroup::prepare(&mut command);
    let _counted = ChildProcess::begin();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return ExecOutcome::Missing(format!("failed to start: {}", reason(&error))),
    };
    let mut group = ProcessGroup::of(&child);
    match tokio::time::timeout(limit, finish(&mut child)).await {
        Ok(Ok((status, printed, complaint))) => {
            group.release();
            let complaint = in_one_line(&String::from_utf8_lossy(&complaint));
            if status.success() && !complaint.is_empty() {
                // Upstream passes it on to its own stderr. The operator needs it: an expired login, a deprecated flag.
                tracing::info!(plugin = exec.command, stderr = complaint, "Exec plugin wrote to its standard error");
            }
            judge(status, printed, &complaint)
        }
        Ok(Err(error)) => ExecOutcome::Failed { code: None, reason: reason(&error) },
        Err(_) => ExecOutcome::Failed { code: None, reason: format!("no result within {} s", limit.as_secs_f32()) },
    }
}

async fn finish(child: &mut Child) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let printed = async {
        let printed = bounded(stdout, MAX_OUTPUT_BYTES + 1).await?;
        if printed.len() as u64 > MAX_OUTPUT_BYTES {
            return Err(io::Error::other(format!("the output exceeds {MAX_OUTPUT_BYTES} bytes")));
        }
        Ok(printed)
    };
    let complaint = async {
        let mut stderr = stderr;
        let complaint = bounded(stderr.as_mut(), MAX_STDERR_BYTES).await?;
        // The rest is discarded, since a full pipe would block the plugin.
        if let Some(stderr) = &mut stderr {
            tokio::io::copy(stderr, &mut tokio::io::sink()).await?;
        }
        Ok(complaint)
    };
    let (printed, complaint) = tokio::try_join!(printed, complaint)?;
    Ok((child.wait().await?, printed, complaint))
}

async fn bounded(pipe: Option<impl AsyncRead + Unpin>, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(limit).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

fn judge(status: ExitStatus, printed: Vec<u8>, complaint: &str) -> ExecOutcome {
    if status.success() {
        return ExecOutcome::Printed(printed);
    }
    let mut reason = match status.code() {
        Some(code) => format!("failed with exit code {code}"),
        None => format!("terminated: {status}"),
    };
    if !complaint.is_empty() {
        reason.push_str(": ");
        reason.push_str(complaint);
    }
    ExecOutcome::Failed { code: status.code(), reason }
}
