//! Decodes manifests in JSON: one document, or several one after another. YAML's decoder reads JSON too, but more slowly.

use serde::de::DeserializeSeed;
use serde_json::Deserializer;

use super::document::read_document;
use super::head::{DocumentHead, Shape};
use super::{DecodedText, WireError, sentence};

/// Reads all documents; those without content (null) are left out. What is no JSON is the last that can be read.
pub(super) fn decode(text: &str) -> DecodedText {
    let mut heads = Deserializer::from_str(text).into_iter::<DocumentHead<'_>>();
    let mut decoded = DecodedText::default();
    let mut begin = 0;
    let mut document = 0;
    while let Some(head) = heads.next() {
        document += 1;
        let head = match head {
            Ok(head) => head,
            Err(error) => {
                decoded.unreadable(failure(&error, "", text, document, None));
                break;
            }
        };
        let end = heads.byte_offset();
        if head.shape != Shape::Null {
            let (before, value) = (text.get(..begin).unwrap_or_default(), text.get(begin..end).unwrap_or_default());
            read_document(
                &head,
                &mut decoded.documents,
                |seed| seed.deserialize(&mut Deserializer::from_str(value)),
                |error, title| failure(error, before, value, document, title),
            );
        }
        begin = end;
    }
    decoded
}

/// An error in a value of the stream, `before` being what precedes it.
fn failure(error: &serde_json::Error, before: &str, value: &str, document: usize, title: Option<String>) -> WireError {
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
    WireError {
        line: Some(line + before.matches('\n').count()),
        column: Some(column),
        document,
        object: None,
        misnamed: false,
        message: sentence(title, message),
    }
}
