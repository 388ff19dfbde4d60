//! Manifests in YAML: any number of documents.

use std::cell::Cell;

use serde::de::DeserializeSeed;
use serde_saphyr::DuplicateKeyPolicy;

use super::document::DocumentSeed;
use super::head::{Head, Shape};
use super::{Document, WireError, sentence};
use crate::yaml::{Chunk, documents, options};

/// How deep a document may be nested. Each level costs the decoder about 20 KiB of stack in a build without
/// optimisation (a quarter of it with), and threads have 2 MiB.
const DEPTH: usize = 64;

/// Reads all documents; those without content are left out.
pub(super) fn decode(text: &str) -> Result<Vec<Document>, WireError> {
    let mut read = Vec::new();
    for (i, chunk) in documents(text).into_iter().enumerate() {
        let title = Cell::new(None);
        decode_one(chunk, &title, &mut read).map_err(|error| {
            let fault = chunk.fault(&error);
            let (line, column) = fault.place.unzip();
            WireError { line, column, document: i + 1, message: sentence(title.take(), &fault.message) }
        })?;
    }
    Ok(read)
}

fn decode_one(
    chunk: Chunk<'_>,
    title: &Cell<Option<String>>,
    read: &mut Vec<Document>,
) -> Result<(), serde_saphyr::Error> {
    let options = options(chunk.text.len(), DEPTH, DuplicateKeyPolicy::Error);
    let read_with = |head: &Head<'_>, read: &mut Vec<Document>| {
        let seed = DocumentSeed { head, in_list: false, listed: None, title, read };
        serde_saphyr::with_deserializer_from_str_with_options(chunk.text, options.clone(), |deserializer| {
            seed.deserialize(deserializer)
        })
    };
    // Most documents show what they are. Where that fails for any reason, the slower way has the last word.
    if let Some(guessed) = Head::guess(chunk.text)
        && read_with(&guessed, read).is_ok()
    {
        return Ok(());
    }
    title.take();
    let head: Head<'_> = serde_saphyr::from_str_with_options(chunk.text, options.clone())?;
    if head.shape == Shape::Null { Ok(()) } else { read_with(&head, read) }
}
