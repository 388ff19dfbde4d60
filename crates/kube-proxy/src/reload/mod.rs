//! Reads the configuration again when one of its files has new content, or SIGHUP asks for it.
//!
//! A valid configuration that differs takes effect by a new run in the same process (`execve(2)`): a restart writes nothing to the
//! kernel that is there already, and a change of mode removes the former rules once the new ones are in force. So every setting can
//! change, in the one way that a start is tested in ([decision 55](../../../docs/decisions/0055-reload-by-a-new-run.md)). Before,
//! what could make the start fail is tried in the run that serves.

mod files;

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use ferry_api::object::Family;
use ferry_kernel::children::NoChildren;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use self::files::Files;
use crate::metrics::Metrics;
use crate::planes::Serving;
use crate::platform::{self, HandedOver, OpenSocket, supervisor};
use crate::snapshot::{LastObjects, ObjectHandOver};

/// Reads and tries the configuration.
pub type Check = Box<dyn FnMut() -> ReloadOutcome + Send>;

/// The files of the configuration, and the check that reads them.
pub struct Reload {
    /// the files whose content matters
    pub files: Vec<PathBuf>,
    /// reads and tries them
    pub check: Check,
    /// the IP families that the running program serves, which the check compares; unknown until it serves
    pub served: Arc<OnceLock<Vec<Family>>>,
}

/// Result of a check.
#[derive(Debug)]
pub enum ReloadOutcome {
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

/// The program at rest, until this is dropped: what changed after the copy of its objects would be undone by the next run.
struct Rest<'a> {
    /// the objects, if they are an API server's
    objects: Option<LastObjects<'a>>,
    _no_children: NoChildren,
}

/// Interval at which what could not be used is tried again: the reason may be a file that is named in it, or a lock.
const RETRY: Duration = Duration::from_secs(30);
/// Longest wait for the end of child processes before the program is replaced.
const CHILDREN: Duration = Duration::from_secs(10);
/// Longest wait for the core, which a change occupies for milliseconds.
const CORE: Duration = Duration::from_secs(1);
/// Time in which a short connection ends that this process serves; new ones wait as long.
const SHORT: Duration = Duration::from_millis(250);
const BUSY: &str = "the running program is busy with a child process";

/// Follows the files and SIGHUP until the program is replaced; the next run gets the objects of this one, if they are an API
/// server's.
///
/// # Errors
/// If SIGHUP can't be handled, or the program can't be replaced: the next start has the changed configuration.
pub async fn follow(
    reload: Reload,
    metrics: Arc<Metrics>,
    (objects, serving): (Option<ObjectHandOver>, Option<Arc<dyn Serving>>),
) -> anyhow::Result<Infallible> {
    let Reload { files, mut check, .. } = reload;
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
        match outcome {
            ReloadOutcome::Same => {
                metrics.config.read(true);
                refused = None;
            }
            ReloadOutcome::Changed { changed, .. } if !platform::IS_REPLACEABLE => {
                metrics.config.read(false);
                refused = None;
                let changed = changed.join("; ");
                tracing::warn!(changed, "Configuration has changed, it takes effect when the program is started again");
            }
            ReloadOutcome::Changed { changed, text } => {
                if let Some(rest) = Rest::of(objects.as_ref()).await? {
                    let sockets = end_serving(serving).await;
                    return Err(replace(&changed.join("; "), text.as_deref(), &rest, sockets));
                }
                metrics.config.read(false);
                if refused.as_deref() != Some(BUSY) {
                    let interval = RETRY.as_secs();
                    tracing::warn!(
                        interval,
                        "Configuration has changed, but {BUSY}, keeping the running one and trying again"
                    );
                }
                refused = Some(BUSY.to_owned());
            }
            ReloadOutcome::Unusable { error, also } => {
                metrics.config.read(false);
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

/// Stops to accept connections, which wait for the next run from now on, and gives short ones time to end. Returns the sockets.
async fn end_serving(serving: Option<Arc<dyn Serving>>) -> Vec<(String, OpenSocket)> {
    let Some(serving) = serving else { return Vec::new() };
    let sockets = serving.sockets().unwrap_or_else(|error| {
        tracing::warn!(err = %error, "Can't hand over the listening sockets");
        Vec::new()
    });
    match spawn_blocking(move || serving.end(SHORT)).await {
        Ok(0) | Err(_) => {}
        Ok(connections) => tracing::warn!(connections, "Resetting established connections, which end with this run"),
    }
    sockets
}

/// Replaces the program, and hands it the content that was tried, the objects and the sockets. Returns only an error.
fn replace(changed: &str, text: Option<&str>, rest: &Rest<'_>, sockets: Vec<(String, OpenSocket)>) -> anyhow::Error {
    tracing::info!(changed, "Configuration has changed, starting anew with it in this process");
    supervisor::reloading();
    if platform::is_asked_to_end() {
        return anyhow!("the program ends, and has not started anew");
    }
    let error = match handed_over(text, rest.objects.as_ref(), sockets) {
        Ok(handed) => {
            let error = platform::replace_program(&std::env::args_os().collect::<Vec<_>>(), &handed);
            supervisor::keep(&handed.sockets);
            error
        }
        Err(error) => error,
    };
    anyhow::Error::new(error).context("the changed configuration needs a restart: the program can't execute itself")
}

/// The content for the next run, which can do without the objects, and not without the configuration.
fn handed_over(
    text: Option<&str>,
    last: Option<&LastObjects<'_>>,
    sockets: Vec<(String, OpenSocket)>,
) -> io::Result<HandedOver> {
    let configuration = text.map(in_memory).transpose()?;
    let objects = last.map_or(Ok(None), LastObjects::encode).unwrap_or_else(|error| {
        tracing::warn!(err = %error, "Can't hand over the objects, the next run waits for those of the API server");
        None
    });
    Ok(HandedOver { configuration, objects, sockets })
}

fn in_memory(text: &str) -> io::Result<File> {
    let mut memory = platform::hand_over_memory()?;
    memory.write_all(text.as_bytes())?;
    Ok(memory)
}

// === impl Rest ===

impl<'a> Rest<'a> {
    /// Stops everything; `None` if the program is too busy.
    async fn of(objects: Option<&'a ObjectHandOver>) -> anyhow::Result<Option<Self>> {
        let none = spawn_blocking(|| NoChildren::within(CHILDREN)).await.context("awaiting child processes")?;
        let Some(none) = none else { return Ok(None) };
        let objects = match objects {
            None => None,
            // The core may be what waits to start a child process.
            Some(objects) => match objects.freeze(CORE) {
                Some(last) => Some(last),
                None => return Ok(None),
            },
        };
        Ok(Some(Self { objects, _no_children: none }))
    }
}

// === impl Reload ===

impl Reload {
    /// Tells the check which families the running program serves.
    pub fn serves(&self, families: &[Family]) {
        // A program begins to serve once.
        let _ = self.served.set(families.to_vec());
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reload").field("files", &self.files).finish_non_exhaustive()
    }
}
