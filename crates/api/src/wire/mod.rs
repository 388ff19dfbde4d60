//! Wire formats of Kubernetes objects: manifests in YAML and JSON to the types of [`crate::object`].
//!
//! A document is read twice: first its head (apiVersion, kind, name), then, knowing the kind, straight into the few
//! fields we read; nothing is kept as a tree. A *value* that makes no sense (an address that doesn't parse, port 0) is
//! kept as text and harms its field only; a wrong *type* (a text for a list) is an error with its place, and harms its
//! object only.
//!
//! [`stream`] decodes lists and watches of an API server, in JSON or protobuf.

pub mod address;
mod convert;
mod document;
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

pub use time::parse_timestamp;

/// One document of a manifest, or one item of a List in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// an object that a service proxy reads
    Object(KubeObject),
    /// any other kind, whose content isn't looked at
    Ignored {
        /// its kind
        kind: String,
    },
}

/// The contents of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// every document and every item of a List, in order: what was read, or why that can't be
    pub documents: Vec<Result<Document, WireError>>,
}

/// Why a document of a manifest, or an item of a List, can't be used. The others can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct WireError {
    /// 1-based line in the file, where known
    pub line: Option<usize>,
    /// 1-based column, where known
    pub column: Option<usize>,
    /// which document of the file, from 1
    pub document: usize,
    /// which object it would be, where its head shows that; `None` may be any object, and several
    pub object: Option<(Kind, ObjectName)>,
    /// its name is one that no object can have: it is none that was ever read
    pub misnamed: bool,
    /// what is wrong, beginning with the object's kind and name where they are known
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

/// The message of an error, after the object's title where that is known. Names come from files: what a terminal or a
/// log would act on is escaped.
fn sentence(title: Option<String>, message: &str) -> String {
    let text = title.map_or_else(|| message.to_owned(), |title| format!("{title}: {message}"));
    if !text.contains(char::is_control) {
        return text;
    }
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// The result of one decoder for a text.
#[derive(Default)]
struct Decoded {
    documents: Vec<Result<Document, WireError>>,
    /// line and column of the first text that the format doesn't allow
    unreadable: Option<(Option<usize>, Option<usize>)>,
}

/// Reads all documents of a manifest, YAML or JSON, in their order. The items of a List stand for themselves; documents
/// without content are left out. The defaults of the API server are applied to what is absent: namespace `default`,
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
    // YAML has `{` too, and a file may hold several documents, so what is no JSON gets its second chance. If that fails
    // as well, it was meant to be what could be read farther.
    let yaml = yaml::decode(text);
    let is_yaml = yaml.unreadable.is_none() || yaml.unreadable >= json.unreadable;
    Manifest { documents: if is_yaml { yaml.documents } else { json.documents } }
}

// === impl Manifest ===

impl Manifest {
    /// All documents, if none is broken; else the first error.
    pub fn complete(self) -> Result<Vec<Document>, WireError> {
        self.documents.into_iter().collect()
    }
}

// === impl Decoded ===

impl Decoded {
    fn unreadable(&mut self, error: WireError) {
        self.unreadable = self.unreadable.or(Some((error.line, error.column)));
        self.documents.push(Err(error));
    }
}
