//! Runs `kube-proxy trace` for clients without a shell on the node.
//!
//! A child process of the same program asks the running one by its control socket, and reads the kernel's objects: reading back ten thousand
//! Services would grow the memory of the running proxy, and a fault in it would end that.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use ferry_kernel::children::ChildProcess;
use ferry_kernel::text::in_one_line;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::PageSetup;
use super::json::{JsonForm, VERSION};
use super::question::parsed;
use crate::inspect::Connection;
use crate::platform;
use crate::serve::http::HttpResponse;

/// Answer of a trace: what the subcommand has printed. Decoders ignore unknown fields, so that fields can be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceAnswer {
    /// the version of the schema, 1
    pub version: u32,
    /// the subcommand's exit code: 0, 2 if something differs, 1 if the connection's family can't be traced
    pub exit_code: u8,
    /// its standard output: the JSON of `trace --json`, or the text
    pub output: Value,
    /// its standard error
    pub log: String,
}

/// Time limit of the child process.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest output of the child, in bytes: that of some ten thousand endpoints.
const MOST_BYTES: u64 = 8 << 20;
/// Longest standard error of the child that is kept, in bytes.
const MOST_LOG_BYTES: u64 = 8 << 10;

/// Traces the first packet of a connection; waits for the child.
pub(super) fn answer(setup: &PageSetup, asked: &str, is_text: bool, form: JsonForm) -> HttpResponse {
    // The child's arguments are built from the parsed question: no text of a client can be a flag.
    let connection: Connection = match parsed(asked) {
        Ok(connection) => connection,
        Err(error) => return form.failure(StatusCode::BAD_REQUEST, &format!("{error:#}")),
    };
    match traced(&connection, &setup.control_socket, is_text) {
        Ok(answer) => form.object(&answer),
        Err(error) => form.failure(StatusCode::SERVICE_UNAVAILABLE, &format!("{error:#}")),
    }
}

fn traced(connection: &Connection, socket: &str, is_text: bool) -> anyhow::Result<TraceAnswer> {
    let program = platform::own_program()?;
    if socket.is_empty() {
        bail!(
            "a trace is made by a process of its own, which asks this one by its control socket, and controlSocket is empty"
        );
    }
    let mut command = Command::new(program);
    command
        .arg("trace")
        .args((!is_text).then_some("--json"))
        .args(["--control-socket", socket, "--"])
        .arg(connection.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    platform::end_with_thread(command.as_std_mut());
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (status, output, log) = runtime.block_on(async {
        let _counted = ChildProcess::begin();
        let mut child = command.spawn().context("starting the process that traces")?;
        if let Some(process) = child.id() {
            platform::expose_to_oom_killer(process);
        }
        let late = || format!("the trace takes more than {} s: run kube-proxy trace on the node", LIMIT.as_secs());
        let ended = timeout(LIMIT, finished(&mut child)).await.with_context(late).and_then(|ended| ended);
        if ended.is_err() {
            // Waits for it, too, so that no zombie is left. One that has ended can't be killed, and that is as good.
            let _ = child.kill().await;
        }
        ended
    })?;
    if output.is_empty() {
        bail!("kube-proxy trace failed: {}", in_one_line(&log));
    }
    let output = if is_text { Value::String(output) } else { serde_json::from_str(&output)? };
    let code = status.code().with_context(|| format!("kube-proxy trace was ended: {status}"))?;
    Ok(TraceAnswer { version: VERSION, exit_code: u8::try_from(code)?, output, log })
}

/// Waits for the end of the child; returns its status, output and standard error.
async fn finished(child: &mut Child) -> anyhow::Result<(ExitStatus, String, String)> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (output, log) = tokio::try_join!(read(stdout, MOST_BYTES + 1), read(stderr, MOST_LOG_BYTES))?;
    if output.len() as u64 > MOST_BYTES {
        bail!("the trace has more than {MOST_BYTES} bytes: run kube-proxy trace on the node");
    }
    Ok((child.wait().await?, output, log))
}

/// The begin of what a pipe has. A child that writes more gets an error.
async fn read(pipe: Option<impl AsyncRead + Unpin>, most_bytes: u64) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(most_bytes).read_to_end(&mut bytes).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of_script(script: &str) -> anyhow::Result<(ExitStatus, String, String)> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        finished(&mut command.spawn().unwrap()).await
    }

    #[tokio::test]
    async fn outputs_of_the_child_are_bounded() {
        let (status, output, log) = of_script("head -c 100000 /dev/zero >&2; echo it differs; exit 2").await.unwrap();
        assert_eq!((status.code(), output.as_str(), log.len() as u64), (Some(2), "it differs\n", MOST_LOG_BYTES));
        let error = of_script("exec cat /dev/zero").await.unwrap_err().to_string();
        assert_eq!(error, "the trace has more than 8388608 bytes: run kube-proxy trace on the node");
    }
}
