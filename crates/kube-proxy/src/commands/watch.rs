//! `kube-proxy explain --watch`: polls the running proxy, and prints the explanation again after each change.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;
use ferry_kernel::text::escaped_lines;
use tracing::subscriber::{NoSubscriber, with_default};

use super::inspect::{answer, question};
use super::subject::{Subject, control_socket, offline_flag};
use crate::cli::{Flags, Inspection};
use crate::control::{ProxyLookup, RunningProxy, RunningState};
use crate::planes::Plane;

/// Polling interval. A request for the state takes a few hundred bytes.
const INTERVAL: Duration = Duration::from_millis(500);

/// Least pause after an explanation, as a multiple of its duration: in a cluster that changes all the time, a watch takes a tenth of a core at most.
const PAUSES: u32 = 10;

/// A running watch, with its last output.
struct ExplainWatch<'a> {
    flags: &'a Flags,
    asked: &'a str,
    path: &'a str,
    /// the state of the proxy at the last explanation
    state: Option<RunningState>,
    text: Option<String>,
}

/// Follows the running proxy, over its restarts too, until the output is closed.
///
/// # Errors
/// If the question is malformed, the mode unknown, or a flag names another source than the running proxy.
pub(super) fn follow(flags: &Flags, asked: &str) -> anyhow::Result<()> {
    let path = control_socket(flags);
    if let Some(name) = offline_flag(flags) {
        bail!("--watch follows the running proxy, --{name} names something else: give one");
    }
    if path.is_empty() {
        bail!("--watch follows the running proxy: name its socket by --control-socket");
    }
    question(flags, asked)?;
    if let Some(mode) = flags.path("mode") {
        Plane::named(mode)?;
    }
    let mut watch = ExplainWatch { flags, asked, path, state: None, text: None };
    loop {
        let begun = Instant::now();
        if watch.step().is_err() {
            return Ok(());
        }
        sleep(INTERVAL.max(begun.elapsed() * PAUSES));
    }
}

// === impl ExplainWatch ===

impl ExplainWatch<'_> {
    /// Polls once, and prints changes.
    fn step(&mut self) -> io::Result<()> {
        match RunningProxy::find(Path::new(self.path)) {
            Ok(ProxyLookup::Running(running)) if self.state.as_ref() == Some(&running.state) => Ok(()),
            Ok(ProxyLookup::Running(running)) => self.answer(running),
            Ok(ProxyLookup::NotRunning(error)) => self.wait(&error.into()),
            Err(error) => self.wait(&error),
        }
    }

    fn answer(&mut self, running: Box<RunningProxy>) -> io::Result<()> {
        let state = running.state.clone();
        let answered = || {
            let subject = Subject::of_running(self.flags, running)?;
            answer(Inspection::Explain, self.flags, self.asked, &subject)
        };
        // Warnings about objects are logged with the first explanation only.
        let answered = if self.text.is_none() { answered() } else { with_default(NoSubscriber::new(), answered) };
        match answered {
            Ok((text, _)) => {
                self.state = Some(state);
                self.show(text)
            }
            // A Service that is gone may come back.
            Err(error) => self.fault(super::error_text(&error)),
        }
    }

    fn wait(&mut self, error: &anyhow::Error) -> io::Result<()> {
        self.state = None;
        self.fault(escaped_lines(&format!("Waiting for a running kube-proxy at {} ({error:#})", self.path)))
    }

    /// Prints an error; with `--json` on stderr, so that stdout has JSON alone.
    fn fault(&mut self, text: String) -> io::Result<()> {
        if !self.flags.is_true("json") {
            return self.show(text);
        }
        if self.text.as_ref() != Some(&text) {
            super::print(&mut io::stderr(), &text, ExitCode::SUCCESS);
            self.text = Some(text);
        }
        Ok(())
    }

    fn show(&mut self, text: String) -> io::Result<()> {
        if self.text.as_ref() != Some(&text) {
            print(&text, self.text.is_some() && !self.flags.is_true("json"))?;
            self.text = Some(text);
        }
        Ok(())
    }
}

/// Prints an answer, below a line with the time unless it is the first.
fn print(text: &str, again: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if again {
        writeln!(stdout, "--- {}", jiff::Zoned::now().strftime("%H:%M:%S"))?;
    }
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
