//! Manifests in JSON: one document, or several one after another. YAML's decoder reads JSON too; this one is faster.

use std::cell::Cell;

use serde::de::DeserializeSeed;
use serde_json::Deserializer;
use serde_json::error::Category;

use super::document::DocumentSeed;
use super::head::{Head, Shape};
use super::{Document, WireError, sentence};

/// Why a text can't be read as JSON.
pub(super) enum Failure {
    /// it is no JSON, but may be YAML
    Syntax(WireError),
    /// it is JSON, but not of a form that we read
    Content(WireError),
}

/// Reads all documents; those without content (null) are left out.
pub(super) fn decode(text: &str) -> Result<Vec<Document>, Failure> {
    let mut heads = Deserializer::from_str(text).into_iter::<Head<'_>>();
    let mut read = Vec::new();
    let mut begin = 0;
    let mut document = 0;
    while let Some(head) = heads.next() {
        document += 1;
        let head = head.map_err(|error| failure(&error, "", text, document, None))?;
        let end = heads.byte_offset();
        if head.shape != Shape::Null {
            let title = Cell::new(None);
            let seed = DocumentSeed { head: &head, in_list: false, listed: None, title: &title, read: &mut read };
            let value = text.get(begin..end).unwrap_or_default();
            seed.deserialize(&mut Deserializer::from_str(value)).map_err(|error| {
                failure(&error, text.get(..begin).unwrap_or_default(), value, document, title.take())
            })?;
        }
        begin = end;
    }
    Ok(read)
}

/// An error in a value of the stream, `before` being what precedes it.
fn failure(error: &serde_json::Error, before: &str, value: &str, document: usize, title: Option<String>) -> Failure {
    let text = error.to_string();
    // The decoder appends the place within the value.
    let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    let (line, column) = match error.line() {
        // It has no place of its own: the value as a whole is meant.
        0 => {
            let blank = value.len() - value.trim_start().len();
            let leading = value.get(..blank).unwrap_or_default();
            (leading.matches('\n').count() + 1, leading.rsplit('\n').next().map_or(0, str::len) + 1)
        }
        line => (line, error.column()),
    };
    let error_at = WireError {
        line: Some(line + before.matches('\n').count()),
        column: Some(column),
        document,
        message: sentence(title, message),
    };
    match error.classify() {
        Category::Data => Failure::Content(error_at),
        Category::Syntax | Category::Eof | Category::Io => Failure::Syntax(error_at),
    }
}
