//! YAML for configuration files and manifests: splits a stream into documents, limits the parser, and locates and words its
//! errors.

use serde_saphyr::{Budget, DefaultMessageFormatter, DuplicateKeyPolicy, Error, MessageFormatter as _, Options};

/// Most parser events that anchors may add to a document: far more than written by hand, and the end of an alias bomb.
const REPLAYED: usize = 100_000;

/// A document of a YAML stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// its text, from its `---` on
    pub text: &'a str,
    /// number of lines of the stream before it
    pub lines_before: usize,
}

/// An error of a document, with its line and column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlError {
    /// 1-based line and column within the stream, where known
    pub place: Option<(usize, usize)>,
    /// the message, without line and column
    pub message: String,
}

// === impl Chunk ===

impl Chunk<'_> {
    /// A place within this document as a place within the stream.
    pub fn place(&self, location: serde_saphyr::Location) -> Option<(usize, usize)> {
        let line = usize::try_from(location.line()).ok().filter(|line| *line > 0)?;
        Some((line + self.lines_before, usize::try_from(location.column()).unwrap_or(0)))
    }

    /// An error of the parser within this document. One that has no place of its own is about the whole document.
    pub fn fault(&self, error: &Error) -> YamlError {
        let place = error.location().and_then(|location| self.place(location)).or_else(|| self.first_line());
        YamlError { place, message: message(error) }
    }

    /// The position where the content begins.
    fn first_line(&self) -> Option<(usize, usize)> {
        let is_content = |line: &str| !is_filler(line) && !is_marker(line, "---");
        let line = self.text.lines().position(is_content)?;
        Some((line + self.lines_before + 1, 1))
    }
}

/// The error without the place, in words for authors of manifests.
fn message(error: &Error) -> String {
    match error.without_snippet() {
        Error::AliasError { error, .. } => message(error),
        Error::Unexpected { expected: "sequence start", .. } => "expected a list".to_owned(),
        Error::Unexpected { expected: "mapping start", .. } => "expected a map".to_owned(),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key {key:?} stands twice in its map"),
        Error::DuplicateMappingKey { key: None, .. } => "a key stands twice in its map".to_owned(),
        other => DefaultMessageFormatter.format_message(other).into_owned(),
    }
}

/// Splits a stream at the lines that begin with `---`, or end a document with `...`. YAML keeps both free for that:
/// they can't stand in a block or a quoted text. What holds nothing but comments, blank lines and directives before a
/// `---` belongs to the document behind it.
pub fn documents(stream: &str) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    let mut begin = 0;
    let mut lines_before = 0;
    let mut has_content = false;
    let mut at = 0;
    for (number, line) in stream.split_inclusive('\n').enumerate() {
        let is_start = is_marker(line, "---");
        if is_start && has_content {
            chunks.push(Chunk { text: stream.get(begin..at).unwrap_or_default(), lines_before });
            (begin, lines_before) = (at, number);
        }
        has_content = is_start || (has_content || !is_filler(line));
        at += line.len();
        if is_marker(line, "...") && has_content {
            chunks.push(Chunk { text: stream.get(begin..at).unwrap_or_default(), lines_before });
            (begin, lines_before, has_content) = (at, number + 1, false);
        }
    }
    if has_content {
        chunks.push(Chunk { text: stream.get(begin..).unwrap_or_default(), lines_before });
    }
    chunks
}

/// The parser's options for a document of this length, nested no deeper than `depth`: the decoder recurses.
pub fn options(length: usize, depth: usize, duplicate_keys: DuplicateKeyPolicy) -> Options {
    // Without anchors no document has more events than bytes, so the limits stand for what anchors add.
    let events = length.saturating_add(REPLAYED);
    serde_saphyr::options! {
        with_snippet: false,
        duplicate_keys: duplicate_keys,
        // Octal as in YAML 1.1, which the Kubernetes tools read.
        legacy_octal_numbers: true,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::AsString,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPLAYED },
        budget: Some(budget(events, depth)),
    }
}

fn budget(events: usize, depth: usize) -> Budget {
    let mut budget = Budget::default();
    budget.max_depth = depth;
    budget.max_events = events;
    budget.max_nodes = events;
    budget.max_recorded_anchor_events = REPLAYED;
    budget.max_total_scalar_bytes = usize::MAX;
    budget
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

/// True if the line can stand before a document without being one.
fn is_filler(line: &str) -> bool {
    let line = line.trim_start_matches('\u{feff}');
    line.starts_with('%')
        || is_marker(line, "...")
        || line.trim_start().is_empty()
        || line.trim_start().starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_at_markers_only() {
        for (stream, wanted) in [
            ("", &[][..]),
            ("# only\n\n", &[]),
            ("a: 1\n", &[("a: 1\n", 0)]),
            ("---\na: 1\n---\nb: 2", &[("---\na: 1\n", 0), ("---\nb: 2", 2)]),
            ("# head\n---\na: 1\n", &[("# head\n---\na: 1\n", 0)]),
            ("%YAML 1.1\n---\na: 1\n", &[("%YAML 1.1\n---\na: 1\n", 0)]),
            ("a: 1\n...\n# x\n---\nb: 2\n", &[("a: 1\n...\n", 0), ("# x\n---\nb: 2\n", 2)]),
            ("---\n---\na: 1\n", &[("---\n", 0), ("---\na: 1\n", 1)]),
            ("a: |\n  ---\n ---\nb: ---x\n---x: 1\n", &[("a: |\n  ---\n ---\nb: ---x\n---x: 1\n", 0)]),
            ("--- {a: 1}\r\n---\r\nb: 2\r\n", &[("--- {a: 1}\r\n", 0), ("---\r\nb: 2\r\n", 1)]),
            ("...\na: 1\n", &[("...\na: 1\n", 0)]),
        ] {
            let chunks: Vec<_> = documents(stream).iter().map(|chunk| (chunk.text, chunk.lines_before)).collect();
            assert_eq!(chunks, wanted, "{stream:?}");
        }
    }

    #[test]
    fn an_unknown_place_is_none() {
        let chunk = Chunk { text: "a: 1\n", lines_before: 7 };
        assert_eq!(chunk.place(serde_saphyr::Location::UNKNOWN), None);
    }

    #[test]
    fn a_document_is_limited_in_its_depth_and_not_in_its_length() {
        let is_read = |text: &str, depth: usize| {
            let options = options(text.len(), depth, DuplicateKeyPolicy::Error);
            serde_saphyr::from_str_with_options::<serde::de::IgnoredAny>(text, options).is_ok()
        };
        for (depth, wanted) in [(2, false), (3, true), (70, true)] {
            assert_eq!(is_read("a: [[1]]", depth), wanted, "{depth}");
        }
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!([is_read(&nested(70), 70), is_read(&nested(71), 70)], [true, false]);
        assert!(is_read(&format!("[{}]", "1,".repeat(300_000)), 1), "more nodes than the parser's default allows");
    }
}
