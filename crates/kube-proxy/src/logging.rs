//! Writes log lines in klog's text format to stderr.
//!
//! `I1121 08:17:33.714186   25767 server.go:445] "message" key="value" n=3`: severity, month and day, local time in
//! microseconds, process id right-aligned in 7, file and line. A value of several lines is printed as `key=<`, its
//! lines indented by a tab, ` >`. Control and bidirectional characters are escaped everywhere, so that no text of a tenant, a
//! tool or a plugin can forge or hide a line.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use ferry_kernel::text::push_escaped;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// Formats events as klog does.
#[derive(Debug)]
struct Klog {
    pid: u32,
}

/// Sorts the fields of one event into the message and `key=value` pairs.
#[derive(Debug, Default)]
struct Line {
    message: String,
    pairs: String,
}

/// Starts logging to stderr. `verbosity` is klog's `-v`: informational messages always appear, debug messages from 2,
/// traces from 4. Calling it a second time has no effect.
pub fn start(verbosity: u32) {
    let _already_started = tracing::subscriber::set_global_default(subscriber(verbosity, std::io::stderr));
}

/// Logs the fatal error: `"command failed" err="…"`, attributed as upstream does, so that scripts find it.
pub fn command_failed(error: &str) {
    let mut text = "\"command failed\"".to_owned();
    push_pair(&mut text, "err", error);
    write_line(Level::ERROR, "run.go", 72, &text);
}

/// Logs an unstructured informational line, attributed to a source file of upstream.
pub fn plain(file: &str, line: u32, text: &str) {
    let mut escaped = String::with_capacity(text.len());
    push_escaped(&mut escaped, text);
    write_line(Level::INFO, file, line, &escaped);
}

fn write_line(level: Level, file: &str, line: u32, text: &str) {
    let mut out = String::new();
    // Writing to a String cannot fail, and a failure to write to stderr can't be reported.
    let _ = head(&mut out, level, file, line, std::process::id());
    out.push_str(text);
    out.push('\n');
    let _ = std::io::stderr().write_all(out.as_bytes());
}

/// Prefix of Ferry's crate names.
const OURS: &str = "ferry_";

fn subscriber<W>(verbosity: u32, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // Libraries' own messages below warnings are of no use to operators.
    let targets = Targets::new().with_default(LevelFilter::WARN).with_target(OURS, level(verbosity));
    let layer = tracing_subscriber::fmt::layer().event_format(Klog { pid: std::process::id() }).with_writer(writer);
    Registry::default().with(layer.with_filter(targets))
}

fn level(verbosity: u32) -> LevelFilter {
    match verbosity {
        0 | 1 => LevelFilter::INFO,
        2 | 3 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Everything up to and including `] `.
fn head(out: &mut impl fmt::Write, level: Level, file: &str, line: u32, pid: u32) -> fmt::Result {
    let severity = match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let now = jiff::Zoned::now();
    write!(
        out,
        "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {pid:7} {file}:{line}] ",
        now.month(),
        now.day(),
        now.hour(),
        now.minute(),
        now.second(),
        now.subsec_nanosecond() / 1000,
    )
}

/// Appends ` key="value"`, or the multi-line form.
fn push_pair(out: &mut String, key: &str, value: &str) {
    out.push(' ');
    out.push_str(key);
    if value.contains('\n') {
        out.push_str("=<");
        for line in value.trim_end_matches('\n').split('\n') {
            out.push_str("\n\t");
            push_escaped(out, line);
        }
        out.push_str("\n >");
    } else {
        out.push('=');
        push_quoted(out, value);
    }
}

/// Quotes like Go's `%q`.
fn push_quoted(out: &mut String, value: &str) {
    out.push('"');
    for piece in value.split_inclusive(['"', '\\']) {
        let text = piece.trim_end_matches(['"', '\\']);
        push_escaped(out, text);
        for special in piece.chars().skip(text.chars().count()) {
            out.extend(['\\', special]);
        }
    }
    out.push('"');
}

// === impl Klog ===

impl<S, N> FormatEvent<S, N> for Klog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let file = metadata.file().unwrap_or("unknown");
        let file = file.rsplit_once('/').map_or(file, |(_, name)| name);
        let mut line = Line::default();
        event.record(&mut line);
        let mut message = String::with_capacity(line.message.len() + 2);
        push_quoted(&mut message, &line.message);
        head(&mut out, *metadata.level(), file, metadata.line().unwrap_or(0), self.pid)?;
        writeln!(out, "{message}{}", line.pairs)
    }
}

// === impl Line ===

impl Line {
    fn push_bare(&mut self, field: &Field, value: impl fmt::Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.pairs, " {}={value}", field.name());
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            push_pair(&mut self.pairs, field.name(), value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push_bare(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push_bare(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push_bare(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push_bare(field, value);
    }
}

/// The log of an action at this verbosity.
#[cfg(test)]
pub(crate) fn logged(verbosity: u32, log: impl FnOnce()) -> String {
    let buffer = tests::Buffer::default();
    let writer = buffer.clone();
    tracing::subscriber::with_default(subscriber(verbosity, move || writer.clone()), log);
    let bytes = buffer.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    pub(super) struct Buffer(pub(super) Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The severity and the message of a line, after a check of the header's format.
    fn body(line: &str) -> (char, &str) {
        let (head, body) = line.split_once("] ").unwrap();
        let digits: String = head.chars().skip(1).map(|c| if c.is_ascii_digit() { '0' } else { c }).take(20).collect();
        assert_eq!(digits, "0000 00:00:00.000000", "{head}");
        assert_eq!(head.as_bytes()[21], b' ');
        let pid: &str = &head[22..29];
        assert_eq!(pid.trim_start(), std::process::id().to_string());
        assert!(head[30..].starts_with("logging.rs:"), "{head}");
        (head.chars().next().unwrap(), body)
    }

    #[test]
    fn lines_look_like_klog() {
        let text = logged(0, || {
            tracing::info!(service = "a/b", n = 3, ok = true, "hello \"you\"");
            tracing::warn!(err = %"no\nway", "twice");
            tracing::error!("end");
        });
        let mut lines = text.splitn(2, '\n');
        assert_eq!(body(lines.next().unwrap()), ('I', "\"hello \\\"you\\\"\" service=\"a/b\" n=3 ok=true"));
        let rest = lines.next().unwrap();
        let (warning, error) = rest.split_once("\n >\n").unwrap();
        assert_eq!(body(warning), ('W', "\"twice\" err=<\n\tno\n\tway"));
        assert_eq!(body(error.trim_end()), ('E', "\"end\""));
    }

    #[test]
    fn verbosity_opens_levels() {
        let log = || {
            tracing::info!("i");
            tracing::debug!("d");
            tracing::trace!("t");
        };
        let counts: Vec<usize> = [0, 1, 2, 3, 4, 9].map(|v| logged(v, log).lines().count()).into();
        assert_eq!(counts, [1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn control_characters_are_escaped() {
        let mut out = String::new();
        push_quoted(&mut out, "a\u{1b}[31m\\");
        assert_eq!(out, "\"a\\x1b[31m\\\\\"");
    }

    /// Untrusted texts everywhere: in the message, in a value, in a multi-line value.
    #[test]
    fn nothing_in_a_value_can_forge_a_line() {
        let forged =
            "x\r\u{1b}[1A\u{9b}2KE1121 08:17:33.714186   25767 run.go:72] \"command failed\"\u{202e}\u{85}\u{2028}";
        let text = logged(0, || {
            tracing::info!(service = forged, shown = %forged, debug = ?forged, "{forged}");
            tracing::warn!(err = %format!("first\n{forged}\n >\n{forged}"), "twice");
        });
        assert!(
            text.chars()
                .all(|character| matches!(character, '\n' | '\t') || ferry_kernel::text::is_printable(character))
        );
        let heads = text.split('\n').filter(|line| !line.starts_with('\t') && *line != " >" && !line.is_empty());
        assert_eq!(heads.count(), 2, "{text}");
        assert_eq!(text.matches("\\x1b[1A\\u009b2KE1121").count(), 5, "{text}");
        assert_eq!(text.matches("\\r").count(), 6, "{text}");
    }
}
