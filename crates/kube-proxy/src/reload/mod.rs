//! Reads the configuration again when one of its files has new content, or SIGHUP asks for it.
//!
//! A valid configuration that differs takes effect by a new run in the same process (`execve(2)`): a restart writes nothing to the
//! kernel that is there already, and a change of mode removes the former rules once the new ones are in force. So every setting can
//! change, in the one way that a start is tested in ([decision 55](../../../docs/decisions/0055-reload-by-a-new-run.md)). Before,
//! what could make the start fail is tried in the run that serves.

mod files;

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use ferry_kernel::process;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use self::files::Files;
use crate::metrics::Metrics;
use crate::platform::{self, supervisor};

/// Reads and tries the configuration.
pub type Check = Box<dyn FnMut() -> Outcome + Send>;

/// The files of the configuration, and the check that reads them.
pub struct Reload {
    /// the files whose content matters
    pub files: Vec<PathBuf>,
    /// reads and tries them
    pub check: Check,
}

/// Result of a check.
#[derive(Debug)]
pub enum Outcome {
    /// it is the running one
    Same,
    /// it differs, and can be used
    Changed {
        /// the settings in which it differs
        changed: Vec<String>,
        /// the content of the configuration file, if there is one
        text: Option<String>,
    },
    /// it can't be used
    Unusable {
        /// the reason
        error: anyhow::Error,
        /// a further file whose content matters from now on
        also: Option<PathBuf>,
    },
}

/// Interval at which what could not be used is tried again: the reason may be a file that is named in it, or a lock.
const RETRY: Duration = Duration::from_secs(30);
/// Longest wait for the end of child processes before the program is replaced.
const CHILDREN: Duration = Duration::from_secs(10);
const LOOK_FOR_CHILDREN: Duration = Duration::from_millis(20);

/// Follows the files and SIGHUP until the program is replaced.
///
/// # Errors
/// If SIGHUP can't be handled, or the program can't be replaced: the next start has the changed configuration.
pub async fn follow(reload: Reload, metrics: Arc<Metrics>) -> anyhow::Result<Infallible> {
    let Reload { files, mut check } = reload;
    let mut files = Files::watch(files).await;
    let mut hang_ups = platform::hang_ups().context("handling SIGHUP")?;
    let mut refused: Option<String> = None;
    loop {
        // For the first time at once: the files may have changed since the start read them.
        let checked = spawn_blocking(move || {
            let outcome = check();
            (check, outcome)
        });
        let outcome;
        (check, outcome) = checked.await.context("reading the configuration again")?;
        metrics.config.read(!matches!(outcome, Outcome::Unusable { .. }));
        match outcome {
            Outcome::Same => refused = None,
            Outcome::Changed { changed, text } => return Err(replace(&changed.join("; "), text.as_deref()).await),
            Outcome::Unusable { error, also } => {
                also.into_iter().for_each(|path| files.add(path));
                let err = format!("{error:#}");
                if refused.as_ref() != Some(&err) {
                    tracing::error!(err, "Changed configuration can't be used, keeping the running one");
                }
                refused = Some(err);
            }
        }
        tokio::select! {
            () = files.changed() => refused = None,
            _ = hang_ups.recv() => {
                tracing::info!("Reading the configuration again, as asked by SIGHUP");
                files.read().await;
                refused = None;
            }
            () = sleep(RETRY), if refused.is_some() => {}
        }
    }
}

/// Replaces the program, and hands it the content that was tried. Returns only an error.
async fn replace(changed: &str, text: Option<&str>) -> anyhow::Error {
    tracing::info!(changed, "Configuration has changed, starting anew with it in this process");
    supervisor::reloading();
    if spawn_blocking(await_children).await.is_err() || platform::is_asked_to_end() {
        return anyhow!("the program ends, and has not started anew");
    }
    let error = process::replace(&std::env::args_os().collect::<Vec<_>>(), text);
    anyhow::Error::new(error).context("the changed configuration needs a restart: the program can't execute itself")
}

/// Waits until no child process runs: after the replacement no thread would wait for a tool or a credential plugin, or enforce its time
/// limit.
fn await_children() {
    let begun = Instant::now();
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while waitid(WaitId::All, options).is_ok() && begun.elapsed() < CHILDREN {
        std::thread::sleep(LOOK_FOR_CHILDREN);
    }
}

// === impl Reload ===

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reload").field("files", &self.files).finish_non_exhaustive()
    }
}
