//! The mutants of a package, as cargo-mutants lists them.

use crate::options::MutantOptions;
use crate::scope;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::Path;
use std::process::{Command, Stdio};

/// One change of the code.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Mutant {
    /// its number in this run, from 1
    #[serde(default)]
    pub(crate) number: u32,
    /// `PATH:LINE:COLUMN: WHAT`
    pub(crate) name: String,
    /// path below the workspace's folder
    pub(crate) file: String,
    pub(crate) genre: Genre,
    /// the changed text
    pub(crate) span: TextSpan,
    /// the text in its place
    pub(crate) replacement: String,
    /// the function around it
    function: Option<EnclosingFunction>,
}

/// The function that has a mutant in it.
#[derive(Debug, Clone, Deserialize)]
struct EnclosingFunction {
    /// with the arrow; empty without a value
    return_type: String,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Genre {
    /// another body of a function: only its value, or nothing
    FnValue,
    /// another operator between two operands
    BinaryOperator,
    /// an operator before an operand is deleted
    UnaryOperator,
    /// an arm of a match that has a wildcard is deleted
    MatchArm,
    /// the guard of an arm is always true, or always false
    MatchArmGuard,
    /// a field of a struct expression is deleted: it gets the value of the base
    StructField,
}

/// A part of a file; the end is exclusive.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct TextSpan {
    pub(crate) start: TextPlace,
    pub(crate) end: TextPlace,
}

/// A place in a file; lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct TextPlace {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// Lists the mutants of a package.
///
/// # Errors
/// If cargo-mutants fails, or its output can't be read.
pub(crate) fn list(root: &Path, package: &str, options: &MutantOptions) -> Result<Vec<Mutant>> {
    let below = |glob: &str| format!("{}/{glob}", scope::source(package));
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["mutants", "--list", "--json", "--package", package]);
    for glob in scope::left_out(package) {
        command.args(["--exclude", &below(glob)]);
    }
    if let Some(file) = &options.file {
        command.args(["--file", &below(file)]);
    }
    let output = command.stderr(Stdio::inherit()).output().context("starting cargo mutants")?;
    ensure!(output.status.success(), "cargo mutants in {package}: {}", output.status);
    let mut mutants: Vec<Mutant> =
        serde_json::from_slice(&output.stdout).context("reading the list of cargo mutants")?;
    for (number, mutant) in (1..).zip(&mut mutants) {
        mutant.number = number;
    }
    Ok(mutants)
}

// === impl Mutant ===

impl Mutant {
    /// True for another body of a function that returns some type of a trait: in one build all its bodies have one type.
    pub(crate) fn returns_hidden_type(&self) -> bool {
        let is_hidden = |function: &EnclosingFunction| function.return_type.contains("impl ");
        self.genre == Genre::FnValue && self.function.as_ref().is_some_and(is_hidden)
    }

    /// `PATH: WHAT`: the name without line and column, which change with every edit of the file.
    pub(crate) fn description(&self) -> String {
        let mut parts = self.name.splitn(4, ':');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(path), Some(_), Some(_), Some(what)) => format!("{path}:{what}"),
            _ => self.name.clone(),
        }
    }
}

#[cfg(test)]
impl Mutant {
    /// A mutant of no function, for tests.
    pub(crate) fn new(number: u32, genre: Genre, span: TextSpan, replacement: &str) -> Self {
        let (name, file, replacement) = (format!("a.rs:1:1: {number}"), "a.rs".to_owned(), replacement.to_owned());
        Self { number, name, file, genre, span, replacement, function: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_the_list_is_read_and_described() {
        let text = r#"{"file": "crates/a/src/b.rs", "genre": "BinaryOperator", "replacement": "||", "package": "ferry-a",
            "name": "crates/a/src/b.rs:63:83: replace && with || in A::of: B", "function": null,
            "span": {"start": {"line": 63, "column": 83}, "end": {"line": 63, "column": 85}}}"#;
        let mutant: Mutant = serde_json::from_str(text).unwrap();
        assert_eq!((mutant.genre, mutant.span.end.column), (Genre::BinaryOperator, 85));
        assert_eq!(mutant.description(), "crates/a/src/b.rs: replace && with || in A::of: B");
        let unknown = text.replace("BinaryOperator", "Whim");
        assert!(serde_json::from_str::<Mutant>(&unknown).is_err(), "a genre that isn't known must not be left out");
    }
}
