//! Running a plugin: without a terminal, for a limited time, with limited output.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use crate::kubeconfig::Exec;
use ferry_kernel::text::in_one_line;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

use ferry_kernel::text::reason;

/// Credentials are a few kilobytes.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// How much of what it complains about is repeated.
const MAX_STDERR_BYTES: u64 = 2048;

/// How it went.
#[derive(Debug)]
pub(super) enum Outcome {
    /// it ended well; what it printed, which nobody may see
    Printed(Vec<u8>),
    /// it ran and failed
    Failed {
        /// its exit code, where it has one
        code: Option<i32>,
        /// for people
        reason: String,
    },
    /// it can't be started
    Missing(String),
}

/// Its processes, ended when this goes unless it is told that the plugin has ended by itself: what that left behind is
/// meant to stay.
struct Group(Option<Pid>);

// === impl Outcome ===

impl Outcome {
    /// The labels of upstream's metric: how it went and the exit code, 1 where there is none.
    pub(super) fn status(&self) -> (&'static str, i32) {
        match self {
            Self::Printed(_) => ("no_error", 0),
            Self::Failed { code: Some(code), .. } => ("plugin_execution_error", *code),
            Self::Failed { code: None, .. } => ("client_internal_error", 1),
            Self::Missing(_) => ("plugin_not_found_error", 1),
        }
    }
}

// === impl Group ===

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // A shell's children hold its pipes, so that ending it alone isn't enough. They may be gone already.
            let _gone = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// Runs it to its end.
pub(super) async fn run(exec: &Exec, about: &str, limit: Duration) -> Outcome {
    let mut command = Command::new(&exec.command);
    command
        .args(&exec.args)
        .envs(exec.env.iter().map(|(name, value)| (name, value)))
        .env("KUBERNETES_EXEC_INFO", about)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Outcome::Missing(format!("it can't be started: {}", reason(&error))),
    };
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let mut group = Group(pid);
    match tokio::time::timeout(limit, finish(&mut child)).await {
        Ok(Ok((status, printed, complaint))) => {
            group.0 = None;
            let complaint = in_one_line(&String::from_utf8_lossy(&complaint));
            if status.success() && !complaint.is_empty() {
                // Upstream's plugins write to its terminal. An expired login, a deprecated flag: the operator reads it here.
                tracing::info!(plugin = exec.command, stderr = complaint, "Exec plugin wrote to its standard error");
            }
            judge(status, printed, &complaint)
        }
        Ok(Err(error)) => Outcome::Failed { code: None, reason: reason(&error) },
        Err(_) => Outcome::Failed { code: None, reason: format!("it didn't end within {} s", limit.as_secs_f32()) },
    }
}

async fn finish(child: &mut Child) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let printed = async {
        let printed = bounded(stdout, MAX_OUTPUT_BYTES + 1).await?;
        if printed.len() as u64 > MAX_OUTPUT_BYTES {
            return Err(io::Error::other(format!("it printed more than {MAX_OUTPUT_BYTES} bytes")));
        }
        Ok(printed)
    };
    let complaint = async {
        let mut stderr = stderr;
        let complaint = bounded(stderr.as_mut(), MAX_STDERR_BYTES).await?;
        // The rest goes nowhere, but a full pipe would stop it.
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

fn judge(status: ExitStatus, printed: Vec<u8>, complaint: &str) -> Outcome {
    if status.success() {
        return Outcome::Printed(printed);
    }
    let mut reason = match status.code() {
        Some(code) => format!("it ended with exit code {code}"),
        None => format!("it was ended: {status}"),
    };
    if !complaint.is_empty() {
        reason.push_str(": ");
        reason.push_str(complaint);
    }
    Outcome::Failed { code: status.code(), reason }
}
