//! Decodes manifests in YAML: any number of documents, separated by `---`.

use serde::de::DeserializeSeed;
use serde_saphyr::{DuplicateKeyPolicy, Error};

use super::document::{DocumentSeed, read_document, try_document};
use super::head::{DocumentHead, Shape};
use super::{DecodedText, WireError, sentence};
use crate::yaml::{Chunk, documents, options};

/// Deepest nesting of a document. Each level costs the decoder about 20 KiB of stack in a build without optimisation (a quarter
/// of it with), and threads have 2 MiB.
const DEPTH: usize = 64;

/// Reads all documents; those without content are left out. What one document has wrong leaves the others alone: the
/// markers between them can't stand within any.
pub(super) fn decode(text: &str) -> DecodedText {
    let mut decoded = DecodedText::default();
    for (i, chunk) in documents(text).into_iter().enumerate() {
        decode_one(chunk, i + 1, &mut decoded);
    }
    decoded
}

fn decode_one(chunk: Chunk<'_>, document: usize, decoded: &mut DecodedText) {
    let options = |keys| options(chunk.text.len(), DEPTH, keys);
    let decode_with = |seed: DocumentSeed<'_, '_, '_>, keys| {
        serde_saphyr::with_deserializer_from_str_with_options(chunk.text, options(keys), |deserializer| {
            seed.deserialize(deserializer)
        })
    };
    let describe = |error: &Error, title: Option<String>| {
        let fault = chunk.fault(error);
        let (line, column) = fault.place.unzip();
        WireError { line, column, document, object: None, misnamed: false, message: sentence(title, &fault.message) }
    };
    // Most documents show what they are. Where that fails for any reason, the slower way has the last word.
    if let Some(guessed) = DocumentHead::guess(chunk.text)
        && try_document(&guessed, &mut decoded.documents, |seed| decode_with(seed, DuplicateKeyPolicy::Error))
    {
        return;
    }
    // A key that stands twice in what we don't read costs nothing, and in an item of a List that item only.
    match serde_saphyr::from_str_with_options::<DocumentHead<'_>>(chunk.text, options(DuplicateKeyPolicy::PassThrough))
    {
        Ok(head) if head.shape == Shape::Null => {}
        Ok(head) => {
            let keys = if head.is_list() { DuplicateKeyPolicy::PassThrough } else { DuplicateKeyPolicy::Error };
            read_document(&head, &mut decoded.documents, |seed| decode_with(seed, keys), describe);
        }
        Err(error) => decoded.unreadable(describe(&error, None)),
    }
}
