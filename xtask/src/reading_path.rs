//! Counts the lines of the reading path that ARCHITECTURE.md names, for `cargo xt layers`: a newcomer reads it at one sitting.

use anyhow::{Context, Result};
use std::path::Path;

/// The most lines, documentation and comments included.
const LINES: usize = 1_500;

/// The document that names the path, and is its beginning.
const DOCUMENT: &str = "ARCHITECTURE.md";

/// The first heading of the document that isn't part of the path.
const REST: &str = "\n## 3.";

/// Where the implementations of a file begin.
const IMPLEMENTATIONS: &str = "\n// === impl ";

/// The fault of the reading path, if it is too long.
///
/// # Errors
/// If the document names none, or a file can't be read.
pub(crate) fn fault(workspace: &Path) -> Result<Option<String>> {
    let read = |name: &str| std::fs::read_to_string(workspace.join(name)).with_context(|| format!("reading {name}"));
    let document = read(DOCUMENT)?;
    let mut lines = before(&document, REST).lines().count();
    for (file, types_only) in files(&document).with_context(|| format!("{DOCUMENT} names no reading path"))? {
        let text = read(file)?;
        lines += if types_only { before(&text, IMPLEMENTATIONS) } else { &text }.lines().count();
    }
    Ok((lines > LINES).then(|| format!("{DOCUMENT}: the reading path has {lines} lines, more than {LINES}")))
}

/// The files of the path, and whether only their types belong to it.
fn files(document: &str) -> Option<Vec<(&str, bool)>> {
    let (_, paragraph) = document.split_once("**Reading path**")?;
    let steps = before(paragraph, "\n\n").split('→').skip(1);
    steps
        .map(|step| {
            let (words, rest) = step.split_once('`')?;
            Some((rest.split_once('`')?.0, words.contains("types of")))
        })
        .collect()
}

fn before<'a>(text: &'a str, mark: &str) -> &'a str {
    text.split_once(mark).map_or(text, |(before, _)| before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_whole_files_and_types_of_files() {
        let document = "**Reading path** (short): sections 1 and 2 → the types of `a.rs` → `b/c.rs`. Each `lib.rs` is a tour.\n\n`d.rs` → `e.rs`";
        assert_eq!(files(document), Some(vec![("a.rs", true), ("b/c.rs", false)]));
        assert_eq!(files("nothing"), None);
    }

    #[test]
    fn lines_of_the_document_and_its_files_count() {
        let folder = std::env::temp_dir().join(format!("xtask-reading-path-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let check = |lines: usize, wanted: Option<&str>| {
            std::fs::write(folder.join("a.rs"), "x\n".repeat(lines) + "\n// === impl A ===\n" + &"y\n".repeat(lines))
                .unwrap();
            std::fs::write(folder.join("b.rs"), "z\n".repeat(1_000)).unwrap();
            let document = "# A\n**Reading path**: this → the types of `a.rs` → `b.rs`.\n\n## 3. Rest\n".to_owned();
            std::fs::write(folder.join(DOCUMENT), document + &"w\n".repeat(lines)).unwrap();
            assert_eq!(fault(&folder).unwrap().as_deref(), wanted);
        };
        check(498, None);
        check(499, Some("ARCHITECTURE.md: the reading path has 1501 lines, more than 1500"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
