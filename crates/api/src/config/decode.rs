//! Decodes a configuration file to a [`KubeProxyConfiguration`]: returns an error where upstream exits, and warnings where
//! upstream continues with a warning.

use serde_saphyr::DuplicateKeyPolicy;

use super::error::DecodeError;
use super::ferry;
use super::fields::{self, FieldError};
use super::gates;
use super::tree::{Duplicate, Node, YamlValue};
use super::types::{FerryConfiguration, KubeProxyConfiguration};
use crate::yaml::{self, Chunk};

/// The only version of the configuration.
const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// Its kind.
const KIND: &str = "KubeProxyConfiguration";
/// Deepest nesting of a document; the deepest known field has four levels. Each level costs the decoder about 50 KiB of stack
/// in a build without optimisation, and threads have 2 MiB.
const DEPTH: usize = 20;
/// Longest quotation from a file in an error, in characters.
const QUOTED: usize = 200;

/// A configuration file that could be read.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedConfig {
    /// the configuration, with the API's defaults applied
    pub config: KubeProxyConfiguration,
    /// the error of strict decoding, with upstream's text: unknown fields and repeated keys
    pub strict_error: Option<String>,
    /// other problems that aren't fatal: unknown feature gates
    pub warnings: Vec<String>,
    /// number of documents that aren't read: all but the first and the FerryConfiguration
    pub other_documents: usize,
}

/// Reads a configuration file, YAML or JSON, and applies the API's defaults. The first document is the KubeProxyConfiguration:
/// its unknown fields and repeated keys are warnings, as with upstream; of repeated keys the last counts. One further document
/// may be a FerryConfiguration, where both are errors. Others are ignored.
pub fn decode(text: &str) -> Result<DecodedConfig, DecodeError> {
    let mut chunks = yaml::documents(text).into_iter();
    let first = chunks.next().unwrap_or(Chunk { text: "", lines_before: 0 });
    let root = parse(first)?;
    check_kind(&root, first)?;

    let mut config = KubeProxyConfiguration::unread();
    let mut unknown = Vec::new();
    fields::read(&root, &mut config, &mut unknown).map_err(|error| in_field(first, error))?;
    config.apply_api_defaults();

    let mut duplicates = Vec::new();
    root.value.duplicates("", &mut duplicates);
    let strict_error = strict_error(first.text, &duplicates, unknown);
    let warnings = gates::check(&config.feature_gates)?;
    let (own, other_documents) = further(chunks)?;
    config.ferry = own;
    Ok(DecodedConfig { config, strict_error, warnings, other_documents })
}

/// Ferry's own settings among the further documents, and the number of the other ones.
fn further<'a>(chunks: impl Iterator<Item = Chunk<'a>>) -> Result<(FerryConfiguration, usize), DecodeError> {
    let mut own = None;
    let mut others = 0;
    for chunk in chunks {
        let root = match parse(chunk) {
            Ok(root) if ferry::is_own(&root.value) => root,
            Err(DecodeError::Decode { line, column, message }) if ferry::is_mentioned(chunk.text) => {
                return Err(DecodeError::Decode { line, column, message: format!("{}: {message}", ferry::KIND) });
            }
            // Whatever upstream's users keep behind their configuration.
            Ok(_) | Err(_) => {
                others += 1;
                continue;
            }
        };
        let config = ferry::read(&root).map_err(|error| in_field(chunk, error))?;
        if own.replace(config).is_some() {
            let message = format!("second document of kind {}: merge it with the first", ferry::KIND);
            return Err(placed(chunk.place(root.referenced), message));
        }
    }
    Ok((own.unwrap_or_default(), others))
}

pub(super) fn parse(chunk: Chunk<'_>) -> Result<Node, DecodeError> {
    // Repeated keys are seen by the tree, which keeps all of them.
    let options = yaml::options(chunk.text.len(), DEPTH, DuplicateKeyPolicy::PassThrough);
    serde_saphyr::from_str_with_options(chunk.text, options).map_err(|error| {
        let fault = chunk.fault(&error);
        placed(fault.place, format!("error converting YAML to JSON: yaml: {}", fault.message))
    })
}

fn in_field(chunk: Chunk<'_>, error: FieldError) -> DecodeError {
    placed(chunk.place(error.location), error.message)
}

fn placed(place: Option<(usize, usize)>, message: String) -> DecodeError {
    let (line, column) = place.unzip();
    DecodeError::Decode { line, column, message }
}

/// Checks apiVersion and kind as upstream's scheme does.
fn check_kind(root: &Node, chunk: Chunk<'_>) -> Result<(), DecodeError> {
    let missing = |what: &str| {
        let quoted: String = chunk.text.chars().take(QUOTED).collect();
        let rest = if quoted.len() < chunk.text.len() { "…" } else { "" };
        placed(None, format!("Object '{what}' is missing in '{quoted}{rest}'"))
    };
    if !matches!(root.value, YamlValue::Map(_) | YamlValue::Null) {
        let message = format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type \
             struct {{ APIVersion string; Kind string }}",
            root.value.json_kind()
        );
        return Err(placed(chunk.place(root.referenced), message));
    }
    let kind = head_field(root, chunk, "kind")?.ok_or_else(|| missing("Kind"))?;
    let version = head_field(root, chunk, "apiVersion")?.ok_or_else(|| missing("apiVersion"))?;
    if kind != KIND || version != API_VERSION {
        let place = root.value.get("kind").and_then(|node| chunk.place(node.referenced));
        let own = if ferry::is_own(&root.value) { ": it must come after the KubeProxyConfiguration" } else { "" };
        let message = format!("no kind {kind:?} is registered for version {version:?} in scheme {API_VERSION:?}{own}");
        return Err(placed(place, message));
    }
    Ok(())
}

/// kind or apiVersion; `None` if absent or empty.
fn head_field<'a>(root: &'a Node, chunk: Chunk<'_>, name: &str) -> Result<Option<&'a str>, DecodeError> {
    let Some(node) = root.value.get(name) else { return Ok(None) };
    match &node.value {
        YamlValue::Text(text) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        YamlValue::Null => Ok(None),
        other => {
            let message = format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go struct field .{name} \
                 of type string",
                other.json_kind()
            );
            Err(placed(chunk.place(node.referenced), message))
        }
    }
}

/// The one error for all that strict decoding of the first document refuses, if there is anything.
fn strict_error(text: &str, duplicates: &[Duplicate], mut unknown: Vec<String>) -> Option<String> {
    let is_json = text.trim_start().starts_with('{');
    let mut errors = Vec::new();
    if is_json {
        errors.extend(duplicates.iter().map(|duplicate| format!("duplicate field {:?}", duplicate.path)));
    } else if !duplicates.is_empty() {
        let lines: Vec<_> = duplicates
            .iter()
            // The first document begins where the file does: its lines are those of the file.
            .map(|duplicate| format!("line {}: key {:?} already set in map", duplicate.line, duplicate.key))
            .collect();
        errors.push(format!("yaml: unmarshal errors: {}", lines.join(", ")));
    }
    unknown.sort_unstable();
    errors.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
    (!errors.is_empty()).then(|| {
        let errors = errors.join(", ");
        format!("strict decoding error: {errors}")
    })
}
