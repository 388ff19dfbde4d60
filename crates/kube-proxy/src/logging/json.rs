//! Formats lines as the JSON of component-base.
//!
//! `{"ts":1732177053714.186,"caller":"app/server.go:445","msg":"…","v":0,"key":"value"}`: milliseconds since 1970, folder, file
//! and line, message, verbosity, fields. Errors have no `v`.

use std::fmt::Write as _;

use ferry_kernel::text::is_printable;

use super::line::{LineHead, LogLine, LogValue, Severity};

/// The line, with the line feed at its end.
pub(super) fn format(head: LineHead<'_>, line: &LogLine) -> String {
    let microseconds = jiff::Timestamp::now().as_microsecond();
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(out, "{{\"ts\":{}.{:03},\"caller\":", microseconds / 1000, microseconds % 1000);
    push_string(&mut out, &format!("{}/{}:{}", head.folder, head.file, head.line));
    out.push_str(",\"msg\":");
    push_string(&mut out, &line.message);
    if head.severity != Severity::Error {
        let _ = write!(out, ",\"v\":{}", head.level);
    }
    for (name, value) in &line.fields {
        out.push(',');
        push_string(&mut out, name);
        out.push(':');
        match value {
            LogValue::Text(text) => push_string(&mut out, text),
            LogValue::Bare(text) => out.push_str(text),
        }
    }
    out.push_str("}\n");
    out
}

/// Appends a string of JSON, in which every character that doesn't print is escaped.
fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if is_printable(character) => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}
