//! Format and streams of the log.

use std::fmt;
use std::io::{self, Write};

use ferry_api::config::Logging;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use super::line::{LineHead, LogLine, Severity};
use super::{json, text};

/// logging.format
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    #[default]
    Text,
    Json,
}

/// Where lines go, and their format.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Output {
    pub(super) format: Format,
    /// informational lines go to stdout
    pub(super) is_split: bool,
}

/// Formats the events of one subscriber.
#[derive(Debug)]
pub(super) struct Formatter {
    format: Format,
}

/// One of the two standard streams.
#[derive(Debug)]
pub(super) enum StandardStream {
    Stdout(io::Stdout),
    Stderr(io::Stderr),
}

// === impl Format ===

impl Format {
    fn line(self, head: LineHead<'_>, line: &LogLine) -> String {
        match self {
            Self::Text => text::format(head, line),
            Self::Json => json::format(head, line),
        }
    }
}

// === impl Output ===

impl Output {
    /// Of a valid configuration.
    pub(super) fn of(logging: &Logging) -> Self {
        if logging.format == "json" {
            Self { format: Format::Json, is_split: logging.json.split_stream }
        } else {
            Self { format: Format::Text, is_split: logging.text.split_stream }
        }
    }

    /// Writes a line at once.
    pub(super) fn write(self, head: LineHead<'_>, line: &LogLine) {
        // A failure to write the log can't be reported.
        let _ = self.stream(head.severity).write_all(self.format.line(head, line).as_bytes());
    }

    /// Upstream's JSON logger has no warnings: they are informational lines there.
    pub(super) fn is_for_stdout(self, severity: Severity) -> bool {
        self.is_split
            && match severity {
                Severity::Info => true,
                Severity::Warning => self.format == Format::Json,
                Severity::Error => false,
            }
    }

    fn stream(self, severity: Severity) -> StandardStream {
        if self.is_for_stdout(severity) {
            StandardStream::Stdout(io::stdout())
        } else {
            StandardStream::Stderr(io::stderr())
        }
    }
}

impl<'w> MakeWriter<'w> for Output {
    type Writer = StandardStream;

    fn make_writer(&'w self) -> StandardStream {
        self.stream(Severity::Error)
    }

    fn make_writer_for(&'w self, metadata: &Metadata<'_>) -> StandardStream {
        self.stream(LineHead::of(metadata).severity)
    }
}

// === impl Formatter ===

impl Formatter {
    pub(super) fn new(format: Format) -> Self {
        Self { format }
    }
}

impl<S, N> FormatEvent<S, N> for Formatter
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = LogLine::default();
        event.record(&mut line);
        out.write_str(&self.format.line(LineHead::of(event.metadata()), &line))
    }
}

// === impl StandardStream ===

impl Write for StandardStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(stream) => stream.write(bytes),
            Self::Stderr(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(stream) => stream.flush(),
            Self::Stderr(stream) => stream.flush(),
        }
    }
}
