//! The part of `cargo xt layers` that reads source files: checks their sizes, and that only crate `kernel` permits unsafe code.

use crate::shell::Metadata;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The most lines of a file, its tests not counted.
const LINES: usize = 500;

/// The most lines of tests in the file that they test; longer ones go to `tests.rs` beside it.
const TEST_LINES: usize = 150;

/// The only crate that may switch the lint against unsafe code off.
const UNSAFE_CRATE: &str = "ferry-kernel";

/// The lint's name in an attribute; in two pieces, since this file is checked, too.
const UNSAFE_LINT: &str = concat!("(unsafe", "_code");

/// Every fault in the packages' own files and in the fuzz targets.
///
/// # Errors
/// If a file can't be read.
pub(crate) fn faults(metadata: &Metadata) -> Result<Vec<String>> {
    let mut folders: Vec<(PathBuf, bool)> = metadata
        .packages
        .iter()
        .map(|package| (package.folder().to_path_buf(), package.name == UNSAFE_CRATE))
        .collect();
    folders.push((metadata.workspace_root.join("fuzz"), false));

    let mut faults = Vec::new();
    for (folder, may_be_unsafe) in folders {
        for file in rust_files(&folder)? {
            let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            let name = file.strip_prefix(&metadata.workspace_root).unwrap_or(&file).display().to_string();
            faults.extend(sizes(&name, &text));
            if !may_be_unsafe && text.contains(UNSAFE_LINT) {
                faults.push(format!("{name}: unsafe code is for {UNSAFE_CRATE} alone"));
            }
        }
    }
    Ok(faults)
}

/// All `.rs` files below a folder that may be absent; build output is left out.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders: Vec<_> = folder.is_dir().then(|| folder.to_path_buf()).into_iter().collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.extend((!path.ends_with("target")).then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The exceeded limits of one file. Files of tests have none.
fn sizes(name: &str, text: &str) -> Vec<String> {
    if name.ends_with("tests.rs") || name.contains("/tests/") {
        return Vec::new();
    }
    let before_tests = text.split_once("\nmod tests {").map_or(text, |(code, _)| code);
    let code = before_tests.lines().rev().skip_while(|line| line.starts_with("#[")).count();
    let tests = text.lines().count() - code;
    let mut faults = Vec::new();
    if code > LINES {
        faults.push(format!("{name}: {code} lines without tests, more than {LINES}"));
    }
    if tests > TEST_LINES {
        faults
            .push(format!("{name}: {tests} lines of tests, more than {TEST_LINES}: they belong in tests.rs beside it"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_apart() {
        let file = |code, tests: usize| {
            let tests = "y\n".repeat(tests.saturating_sub(2));
            format!("{}#[cfg(test)]\nmod tests {{\n{tests}", "x\n".repeat(code))
        };
        assert_eq!(sizes("crates/api/src/lib.rs", &file(LINES, TEST_LINES)), [""; 0]);
        assert_eq!(sizes("crates/api/src/lib.rs", &file(LINES + 1, 2)).len(), 1);
        assert_eq!(sizes("crates/api/src/lib.rs", &file(1, TEST_LINES + 1)).len(), 1);
        assert_eq!(sizes("crates/api/src/config/tests.rs", &file(0, 900)), [""; 0]);
        assert_eq!(sizes("crates/plane/tests/engine.rs", &file(900, 0)), [""; 0]);
    }
}
