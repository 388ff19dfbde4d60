//! One log line: where it comes from, its message and its fields, apart from the format.

use std::fmt;

use tracing::Metadata;
use tracing::field::{Field, Visit};

use super::verbosity::level_of;

/// Severity of a line in klog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Info,
    Warning,
    Error,
}

/// Everything of a line that its call site determines.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineHead<'a> {
    pub(super) severity: Severity,
    /// the `-v` from which it appears
    pub(super) level: u32,
    /// folder of the source file; the crate's name for its outermost files
    pub(super) folder: &'a str,
    pub(super) file: &'a str,
    pub(super) line: u32,
}

/// Message and fields of a line.
#[derive(Debug, Default)]
pub(super) struct LogLine {
    pub(super) message: String,
    pub(super) fields: Vec<(&'static str, LogValue)>,
    /// the message is printed without quotes in text
    pub(super) is_unstructured: bool,
}

/// A field's value.
#[derive(Debug)]
pub(super) enum LogValue {
    /// quoted
    Text(String),
    /// a number or a boolean, as it is written in every format
    Bare(String),
}

// === impl LineHead ===

impl<'a> LineHead<'a> {
    pub(super) fn of(metadata: &Metadata<'a>) -> Self {
        let severity = match *metadata.level() {
            tracing::Level::ERROR => Severity::Error,
            tracing::Level::WARN => Severity::Warning,
            tracing::Level::INFO | tracing::Level::DEBUG | tracing::Level::TRACE => Severity::Info,
        };
        let path = metadata.file().unwrap_or("unknown");
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        // Every crate's outermost folder is called src.
        let folder = folder.strip_suffix("/src").unwrap_or(folder);
        let folder = folder.rsplit_once('/').map_or(folder, |(_, name)| name);
        Self { severity, level: level_of(metadata), folder, file, line: metadata.line().unwrap_or(0) }
    }
}

// === impl LogLine ===

impl LogLine {
    pub(super) fn new(message: &str) -> Self {
        Self { message: message.to_owned(), ..Self::default() }
    }

    pub(super) fn unstructured(message: &str) -> Self {
        Self { message: message.to_owned(), is_unstructured: true, ..Self::default() }
    }

    pub(super) fn push_text(&mut self, name: &'static str, text: &str) {
        self.fields.push((name, LogValue::Text(text.to_owned())));
    }

    fn push_bare(&mut self, field: &Field, value: impl fmt::Display) {
        self.fields.push((field.name(), LogValue::Bare(value.to_string())));
    }
}

impl Visit for LogLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.push_text(field.name(), value);
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
        // JSON has no infinity and no NaN.
        if value.is_finite() { self.push_bare(field, value) } else { self.push_text(field.name(), &value.to_string()) }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push_bare(field, value);
    }
}
