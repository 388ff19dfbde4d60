//! Wire formats of Kubernetes objects: decodes manifests in YAML and JSON to the types of [`crate::object`].
//!
//! A document is parsed twice: first its head (apiVersion, kind, name), then the fields of that kind that a service proxy reads;
//! no tree is built. An invalid *value* (an address that doesn't parse, port 0) is kept as text and affects its field only; a
//! wrong *type* (a string for a list) is an error with line and column, and affects its object only.
//!
//! [`stream`] decodes lists and watches of an API server, in JSON or protobuf.

pub mod address;
mod convert;
mod document;
mod encode;
mod head;
mod json;
mod raw;
mod scalar;
pub mod stream;
mod time;
mod yaml;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::object::{Kind, KubeObject, ObjectName};

pub use encode::encode_object;
pub(crate) use time::format_timestamp;
pub use time::parse_timestamp;

/// One document of a manifest, or one item of a List in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// an object that a service proxy reads
    Object(KubeObject),
    /// any other kind, whose content isn't decoded
    Ignored {
        /// its kind
        kind: String,
    },
}

/// The contents of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// every document and every item of a List, in order: decoded, or its error
    pub documents: Vec<Result<Document, WireError>>,
}

/// The error of one document of a manifest, or of one item of a List. It doesn't affect the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct WireError {
    /// 1-based line in the file, where known
    pub line: Option<usize>,
    /// 1-based column, where known
    pub column: Option<usize>,
    /// number of the document in the file, from 1
    pub document: usize,
    /// the object's identity, if the head is readable; `None` may be any object, or several
    pub object: Option<(Kind, ObjectName)>,
    /// the name is invalid, so this is no object that was ever decoded
    pub misnamed: bool,
    /// the cause, after the object's kind and name if they are known
    pub message: String,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (Some(line), Some(column)) => write!(f, "line {line}, column {column}: ")?,
            (Some(line), None) => write!(f, "line {line}: ")?,
            (None, _) => write!(f, "document {}: ", self.document)?,
        }
        f.write_str(&self.message)
    }
}

/// The message of an error, after the object's title if that is known. Names come from files, so control characters, which a
/// terminal or a log would interpret, are escaped.
fn sentence(title: Option<String>, message: &str) -> String {
    let text = title.map_or_else(|| message.to_owned(), |title| format!("{title}: {message}"));
    if !text.contains(char::is_control) {
        return text;
    }
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// The result of one decoder for a text.
#[derive(Default)]
struct DecodedText {
    documents: Vec<Result<Document, WireError>>,
    /// line and column of the first text that the format doesn't allow
    unreadable: Option<(Option<usize>, Option<usize>)>,
}

/// Decodes all documents of a manifest, YAML or JSON, in their order. The items of a List become documents of their own;
/// documents without content are left out. The defaults of the API server are applied to absent fields: namespace `default`,
/// protocol TCP, affinity timeout 10,800 s, policies Cluster, an empty port name, clusterIPs of clusterIP.
///
/// Malformed YAML costs its document; malformed JSON, everything from there on.
pub fn decode_manifest(text: &str) -> Manifest {
    if !text.trim_start().starts_with(['{', '[']) {
        return Manifest { documents: yaml::decode(text).documents };
    }
    let json = json::decode(text);
    if json.unreadable.is_none() {
        return Manifest { documents: json.documents };
    }
    // YAML has `{` too, and a file may hold several documents, so invalid JSON is tried as YAML. If that fails as well, the
    // format whose error is farther on is taken for the intended one.
    let yaml = yaml::decode(text);
    let is_yaml = yaml.unreadable.is_none() || yaml.unreadable >= json.unreadable;
    Manifest { documents: if is_yaml { yaml.documents } else { json.documents } }
}

/// Decodes one object in JSON, as [`encode_object`] writes it.
///
/// # Errors
/// If the text is no JSON, isn't exactly one object of a kind that a service proxy reads, or the object is malformed.
pub fn decode_object(text: &str) -> Result<KubeObject, String> {
    let mut documents = json::decode(text).documents.into_iter();
    match (documents.next(), documents.next()) {
        (Some(Ok(Document::Object(object))), None) => Ok(object),
        (Some(Err(error)), _) | (_, Some(Err(error))) => Err(error.message),
        (Some(Ok(Document::Ignored { kind })), _) => Err(format!("an object of kind {kind:?}")),
        (Some(Ok(Document::Object(_))), Some(Ok(_))) => Err("several objects".to_owned()),
        (None, _) => Err("no object".to_owned()),
    }
}

// === impl Manifest ===

impl Manifest {
    /// All documents, if none is broken; else the first error.
    pub fn complete(self) -> Result<Vec<Document>, WireError> {
        self.documents.into_iter().collect()
    }
}

// === impl DecodedText ===

impl DecodedText {
    fn unreadable(&mut self, error: WireError) {
        self.unreadable = self.unreadable.or(Some((error.line, error.column)));
        self.documents.push(Err(error));
    }
}
