//! Formats lines as klog does.
//!
//! `I1121 08:17:33.714186   25767 server.go:445] "message" key="value" n=3`: severity, month and day, local time in
//! microseconds, process id right-aligned in 7, file and line. A value of several lines is printed as `key=<`, its
//! lines indented by a tab, ` >`.

use std::fmt::Write as _;

use ferry_kernel::text::push_escaped;

use super::line::{LineHead, LogLine, LogValue, Severity};

/// The line, with the line feed at its end.
pub(super) fn format(head: LineHead<'_>, line: &LogLine) -> String {
    let mut out = start(head);
    if line.is_unstructured {
        push_escaped(&mut out, &line.message);
    } else {
        push_quoted(&mut out, &line.message);
    }
    for (name, value) in &line.fields {
        match value {
            LogValue::Text(text) => push_pair(&mut out, name, text),
            LogValue::Bare(text) => out.extend([" ", name, "=", text]),
        }
    }
    out.push('\n');
    out
}

/// Everything up to and including `] `.
fn start(head: LineHead<'_>) -> String {
    let severity = match head.severity {
        Severity::Error => 'E',
        Severity::Warning => 'W',
        Severity::Info => 'I',
    };
    let now = jiff::Zoned::now();
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:7} {}:{}] ",
        now.month(),
        now.day(),
        now.hour(),
        now.minute(),
        now.second(),
        now.subsec_nanosecond() / 1000,
        std::process::id(),
        head.file,
        head.line,
    );
    out
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
pub(super) fn push_quoted(out: &mut String, value: &str) {
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
