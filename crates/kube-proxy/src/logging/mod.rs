//! Writes log lines as component-base does: klog's text format or JSON, to stderr or split over both streams.
//!
//! Levels of `-v`: informational messages and above always appear, those of [`V1`] from 1, debug messages from 2, traces from 4
//! (object by object), those of [`V6`] from 6 (decision by decision). Control and bidirectional characters are escaped
//! everywhere, so that no text of a tenant, a tool or a plugin can forge or hide a line.

mod json;
mod line;
mod output;
#[cfg(test)]
mod tests;
mod text;
mod verbosity;

use std::sync::OnceLock;

use ferry_api::config::Logging;
use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;

use line::{LineHead, LogLine, Severity};
use output::{Formatter, Output};
use verbosity::Verbosity;
pub use verbosity::{V1, V6};

/// Changes what is logged.
type Filter = reload::Handle<Verbosity, Registry>;

/// Logging has not been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("logging has not been started")]
pub struct NotStarted;

/// Format and streams since [`start`].
static OUTPUT: OnceLock<Output> = OnceLock::new();
/// The filter of the running log.
static FILTER: OnceLock<Filter> = OnceLock::new();

/// Starts logging. Calling it a second time has no effect.
pub fn start(logging: &Logging) {
    start_with(logging, Verbosity::new(logging.verbosity, &logging.vmodule));
}

/// The same for a command whose output is another: at verbosity 0 it logs warnings and errors alone.
pub fn start_terse(logging: &Logging) {
    start_with(logging, Verbosity::terse(logging.verbosity, &logging.vmodule));
}

fn start_with(logging: &Logging, verbosity: Verbosity) {
    let output = *OUTPUT.get_or_init(|| Output::of(logging));
    let (subscriber, filter) = subscriber(verbosity, output.format, output);
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _is_first = FILTER.set(filter);
    }
}

/// Changes the verbosity of the running log, `-v`; `--vmodule` stays.
///
/// # Errors
/// If logging has not been started.
pub fn set_verbosity(verbosity: u32) -> Result<(), NotStarted> {
    let filter = FILTER.get().ok_or(NotStarted)?;
    filter.modify(|running| running.set_level(verbosity)).map_err(|_| NotStarted)
}

/// Logs the fatal error: `"command failed" err="…"`, attributed as upstream does, so that scripts find it.
pub fn command_failed(error: &str) {
    let mut line = LogLine::new("command failed");
    line.push_text("err", error);
    write(LineHead { severity: Severity::Error, level: 0, folder: "cli", file: "run.go", line: 72 }, &line);
}

/// Logs an unstructured line of level 1, attributed to a source file of upstream.
pub fn plain(folder: &str, file: &str, line: u32, text: &str) {
    write(LineHead { severity: Severity::Info, level: 1, folder, file, line }, &LogLine::unstructured(text));
}

/// Writes a line that no macro writes, at once. Before [`start`] it is text.
fn write(head: LineHead<'_>, line: &LogLine) {
    OUTPUT.get().copied().unwrap_or_default().write(head, line);
}

fn subscriber<W>(verbosity: Verbosity, format: output::Format, writer: W) -> (impl Subscriber + Send + Sync, Filter)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().event_format(Formatter::new(format)).with_writer(writer);
    let (verbosity, filter) = reload::Layer::new(verbosity);
    (Registry::default().with(layer.with_filter(verbosity)), filter)
}

/// The log of an action at this verbosity.
#[cfg(test)]
pub(crate) fn logged(verbosity: u32, log: impl FnOnce()) -> String {
    tests::logged_as(Verbosity::new(verbosity, &[]), output::Format::Text, log)
}
