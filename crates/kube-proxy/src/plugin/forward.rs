//! A port-forward to a pod.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::kubectl::{Kubectl, complaint};

/// A running `kubectl port-forward`, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct PortForward {
    child: Child,
    /// the port at 127.0.0.1
    pub(super) port: u16,
    complaint: Receiver<String>,
}

/// Time limit of its start: a plugin for credentials may ask its user.
const START: Duration = Duration::from_secs(60);
/// Wait for the standard error of a process that has ended: another one may hold it.
const COMPLAINT: Duration = Duration::from_secs(1);
/// Longest standard error that is kept, in bytes.
const MOST_BYTES: usize = 8 << 10;

// === impl PortForward ===

impl PortForward {
    /// Forwards a free port to the port of a pod.
    ///
    /// # Errors
    /// If kubectl is missing, ends, or doesn't forward in time.
    pub(super) fn start(kubectl: &Kubectl, namespace: &str, pod: &str, port: u16) -> anyhow::Result<Self> {
        let (namespace, pod, ports) = (format!("--namespace={namespace}"), format!("pod/{pod}"), format!(":{port}"));
        let mut command = kubectl.command(&["port-forward", "--address=127.0.0.1", &namespace, &pod, &ports]);
        command.stdin(Stdio::inherit()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| kubectl.failed_to_start(&error))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let complaint = collected(stderr);
        // From here on the child ends with this.
        let mut forward = Self { child, port: 0, complaint };
        match forwarded_port(stdout).recv_timeout(START) {
            Ok(local) => forward.port = local,
            Err(RecvTimeoutError::Timeout) => {
                bail!("kubectl port-forward {pod} doesn't begin within {} s", START.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("kubectl port-forward {pod}: {}", forward.complaint().context("it ended without output")?)
            }
        }
        Ok(forward)
    }

    /// Its standard error so far, once it has ended.
    pub(super) fn complaint(&mut self) -> Option<String> {
        self.end();
        let text = self.complaint.recv_timeout(COMPLAINT).ok()?;
        Some(complaint(&text)).filter(|text| !text.is_empty())
    }

    fn end(&mut self) {
        // One that has ended already can't be killed, and that is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for PortForward {
    fn drop(&mut self) {
        self.end();
    }
}

/// Receives the local port once it is forwarded. The rest is read and discarded, since a full pipe would block kubectl.
fn forwarded_port(stdout: Option<impl Read + Send + 'static>) -> Receiver<u16> {
    let (found, port) = channel();
    thread::spawn(move || {
        let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines()).map_while(Result::ok);
        for port in lines.filter_map(|line| local_port(&line)) {
            // Nobody waits for a second one.
            let _ = found.send(port);
        }
    });
    port
}

/// The local port of `Forwarding from 127.0.0.1:PORT -> 10249`.
fn local_port(line: &str) -> Option<u16> {
    line.strip_prefix("Forwarding from 127.0.0.1:")?.split_once(" -> ")?.0.parse().ok()
}

/// Receives the begin of all that a pipe has had, at its end.
fn collected(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (ended, text) = channel();
    thread::spawn(move || {
        let (mut kept, mut buffer) = (Vec::new(), [0; 1024]);
        let mut pipe = pipe;
        while let Some(Ok(length @ 1..)) = pipe.as_mut().map(|pipe| pipe.read(&mut buffer)) {
            let room = MOST_BYTES.saturating_sub(kept.len());
            kept.extend(buffer.iter().take(length.min(room)));
        }
        // It may not be asked for.
        let _ = ended.send(String::from_utf8_lossy(&kept).into_owned());
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_port_is_read() {
        assert_eq!(local_port("Forwarding from 127.0.0.1:40123 -> 10249"), Some(40123));
        for line in [
            "Forwarding from [::1]:40123 -> 10249",
            "Handling connection for 40123",
            "",
            "Forwarding from 127.0.0.1:x -> 1",
        ] {
            assert_eq!(local_port(line), None, "{line}");
        }
        let received = forwarded_port(Some(&b"a notice\nForwarding from 127.0.0.1:7 -> 10249\n"[..]));
        assert_eq!(received.recv(), Ok(7));
        assert!(forwarded_port(Some(&b""[..])).recv().is_err());
    }

    #[test]
    fn standard_error_is_kept_in_part() {
        let long: &'static [u8] = vec![b'x'; 2 * MOST_BYTES].leak();
        assert_eq!(collected(Some(long)).recv().unwrap().len(), MOST_BYTES);
    }
}
