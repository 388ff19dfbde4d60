//! `kube-proxy explain --watch`: prints the answer again whenever it changes.

use std::io::{self, Write as _};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::bail;

use super::inspect::answer;
use super::subject::{Subject, control_socket};
use crate::cli::{Flags, Inspection};
use crate::control::{Found, Running, RunningState};

/// Interval of the questions to the running proxy, each a few hundred bytes.
const INTERVAL: Duration = Duration::from_millis(500);

/// What was printed last, and for which state of the proxy.
#[derive(Default)]
struct Shown {
    state: Option<RunningState>,
    text: Option<String>,
}

/// Follows the running proxy, over its restarts too, until nobody reads the output.
///
/// # Errors
/// If a flag names another source than the running proxy, or what listens at the control socket isn't a proxy.
pub(super) fn follow(flags: &Flags, asked: &str) -> anyhow::Result<()> {
    let path = control_socket(flags);
    if let Some(name) = super::subject::OFFLINE.into_iter().find(|name| flags.path(name).is_some()) {
        bail!("--watch follows the running proxy, --{name} names something else: give one");
    }
    if path.is_empty() {
        bail!("--watch follows the running proxy: name its socket by --control-socket");
    }
    let mut shown = Shown::default();
    loop {
        let text = match Running::find(Path::new(&path))? {
            Found::Running(running) if shown.state.as_ref() == Some(&running.state) => None,
            Found::Running(running) => {
                shown.state = Some(running.state.clone());
                // A Service that is gone may come back.
                let answered = Subject::of_running(flags, running)
                    .and_then(|subject| answer(Inspection::Explain, flags, asked, &subject));
                Some(answered.map_or_else(|error| format!("Error: {error:#}\n"), |(text, _)| text))
            }
            Found::Nobody(error) => {
                shown.state = None;
                Some(format!("Waiting for a running kube-proxy at {path} ({error})\n"))
            }
        };
        if let Some(text) = text.filter(|text| shown.text.as_ref() != Some(text)) {
            if print(&text, shown.text.is_some() && !flags.is_true("json")).is_err() {
                return Ok(());
            }
            shown.text = Some(text);
        }
        sleep(INTERVAL);
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
