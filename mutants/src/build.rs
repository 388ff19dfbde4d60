//! One build of a package with all mutants that compile together.

use crate::catalogue::Mutant;
use crate::edits::Culprits;
use crate::scope::{self, TestPrograms};
use crate::switches::{SwitchedFile, switch};
use crate::tree::Tree;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Output;

/// Errors of a mutant's own text that come from its switch, not from the mutant: a call in a constant function.
const NOT_CONSTANT: &str = "E0015";

/// Errors of the borrow checker, which appear where a value is used, with the mutant that moved or borrowed it beside.
const OF_BORROWS: &[&str] = &["E0382", "E0499", "E0502", "E0505"];

/// The place of a mutant in the build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// it has a switch
    Switched,
    /// it doesn't compile beside others: it needs a build of its own
    Alone,
    /// it doesn't compile
    Unviable,
}

/// The package's files with their switches, and what became of each mutant.
#[derive(Debug)]
pub(crate) struct Build<'a> {
    tree: &'a Tree,
    files: BTreeMap<&'a str, SwitchedFile>,
    standings: BTreeMap<u32, Standing>,
}

/// An executable of tests, and the tests that are skipped.
#[derive(Debug)]
pub(crate) struct TestProgram {
    pub(crate) executable: PathBuf,
    package: String,
    /// the argument of cargo that selects it
    selection: String,
    /// the folder of its package
    pub(crate) folder: PathBuf,
    pub(crate) skipped: &'static [&'static str],
}

/// The used parts of a line of cargo's output.
#[derive(Debug, Deserialize)]
struct CargoMessage {
    message: Option<CompilerMessage>,
    executable: Option<PathBuf>,
    profile: Option<ArtifactProfile>,
    target: Option<CargoTarget>,
}

#[derive(Debug, Deserialize)]
struct CargoTarget {
    kind: Vec<String>,
    name: String,
}

#[derive(Debug, Deserialize)]
struct ArtifactProfile {
    test: bool,
}

#[derive(Debug, Deserialize)]
struct CompilerMessage {
    level: String,
    code: Option<ErrorCode>,
    spans: Vec<ErrorSpan>,
    rendered: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ErrorCode {
    code: String,
}

#[derive(Debug, Deserialize)]
struct ErrorSpan {
    file_name: String,
    byte_start: usize,
    is_primary: bool,
}

// === impl Build ===

impl<'a> Build<'a> {
    /// Compiles the package with all mutants, and again without those that don't compile.
    ///
    /// # Errors
    /// If cargo fails, or the package doesn't compile for a reason that is not a mutant's.
    pub(crate) fn new(tree: &'a Tree, mutants: &'a [Mutant]) -> Result<Self> {
        let mut build = Self { tree, files: BTreeMap::new(), standings: BTreeMap::new() };
        loop {
            build.write(mutants)?;
            let errors = build.errors()?;
            if errors.is_empty() {
                break;
            }
            let before = build.standings.len();
            for error in &errors {
                build.exclude(error)?;
            }
            ensure!(
                build.standings.len() > before,
                "{}: no mutant explains these errors\n{}",
                tree.package,
                texts(&errors)
            );
        }
        let switched: BTreeSet<u32> = build.files.values().flat_map(|file| &file.switched).copied().collect();
        for mutant in mutants {
            let standing = if mutant.returns_hidden_type() || !switched.contains(&mutant.number) {
                Standing::Alone
            } else {
                Standing::Switched
            };
            build.standings.entry(mutant.number).or_insert(standing);
        }
        Ok(build)
    }

    /// Writes each file with the mutants that aren't excluded.
    fn write(&mut self, mutants: &'a [Mutant]) -> Result<()> {
        let mut by_file: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
        for mutant in mutants.iter().filter(|mutant| !self.standings.contains_key(&mutant.number)) {
            by_file.entry(&mutant.file).or_default().push(mutant);
        }
        for file in mutants.iter().map(|mutant| mutant.file.as_str()).collect::<BTreeSet<_>>() {
            let mutants = by_file.get(file).map(Vec::as_slice).unwrap_or_default();
            let switched = switch(&self.tree.source(file)?, mutants).with_context(|| file.to_owned())?;
            self.tree.write(file, &switched.edited.text)?;
            self.files.insert(file, switched);
        }
        Ok(())
    }

    /// The compile errors of the library, also as its unit tests compile it.
    fn errors(&self) -> Result<Vec<CompilerMessage>> {
        for profile in ["dev", "test"] {
            let check = ["check", "--lib", "--package", &self.tree.package, "--profile", profile];
            let output = self.tree.cargo(&check).output().context("starting cargo")?;
            let errors = errors(&output);
            if !output.status.success() {
                ensure!(!errors.is_empty(), "{}: cargo check: {}", self.tree.package, output.status);
                return Ok(errors);
            }
        }
        Ok(Vec::new())
    }

    /// Takes the mutants out that an error is put down to.
    fn exclude(&mut self, error: &CompilerMessage) -> Result<()> {
        let code = error.code.as_ref().map_or("", |code| &code.code);
        let Some(primary) = error.spans.iter().find(|span| span.is_primary) else { return Ok(()) };
        let Some(file) = self.files.get(primary.file_name.as_str()) else {
            bail!("{} doesn't compile:\n{}", primary.file_name, error.text());
        };
        let beside =
            error.spans.iter().filter(|span| OF_BORROWS.contains(&code) && span.file_name == primary.file_name);
        let of_borrow = beside.map(|span| file.edited.culprits(span.byte_start)).find_map(|culprits| match culprits {
            Some(Culprits::Mutant(mutant)) => Some(mutant),
            _ => None,
        });
        if let Some(mutant) = of_borrow {
            self.standings.insert(mutant, Standing::Alone);
            return Ok(());
        }
        match file.edited.culprits(primary.byte_start) {
            Some(Culprits::Mutant(mutant)) => {
                let standing = if code == NOT_CONSTANT { Standing::Alone } else { Standing::Unviable };
                self.standings.insert(mutant, standing);
            }
            Some(Culprits::Group(mutants)) => {
                for &mutant in mutants {
                    self.standings.entry(mutant).or_insert(Standing::Alone);
                }
            }
            None => bail!("{} doesn't compile, without a mutant there:\n{}", primary.file_name, error.text()),
        }
        Ok(())
    }

    /// The place of a mutant in the build.
    pub(crate) fn standing(&self, mutant: &Mutant) -> Standing {
        self.standings.get(&mutant.number).copied().unwrap_or(Standing::Alone)
    }

    /// The text of a file with its switches.
    pub(crate) fn restore(&self, file: &str) -> Result<()> {
        let text =
            self.files.get(file).map(|file| &file.edited.text).with_context(|| format!("{file} has no mutants"))?;
        self.tree.write(file, text)
    }

    /// The numbers of mutants by standing, as a line for the console.
    pub(crate) fn summary(&self) -> String {
        let count = |standing| self.standings.values().filter(|one| **one == standing).count();
        let [switched, alone, unviable] = [Standing::Switched, Standing::Alone, Standing::Unviable].map(count);
        format!("{switched} in one build, {alone} that need their own, {unviable} that don't compile")
    }

    /// Builds the tests that must notice the mutants.
    ///
    /// # Errors
    /// If they don't compile.
    pub(crate) fn programs(&self) -> Result<Vec<TestProgram>> {
        let mut programs = Vec::new();
        for TestPrograms { package, selection, skipped } in scope::tests(&self.tree.package) {
            let output = self.build_tests(&package, selection)?;
            ensure!(output.status.success(), "{package}: the tests don't compile\n{}", texts(&errors(&output)));
            let folder = self.tree.folder.join(scope::folder(&package));
            let tests =
                messages(&output).filter(|message| message.profile.as_ref().is_some_and(|profile| profile.test));
            programs.extend(tests.filter_map(|message| Some((message.executable?, message.target?.selection()))).map(
                |(executable, selection)| TestProgram {
                    executable,
                    package: package.clone(),
                    selection,
                    folder: folder.clone(),
                    skipped,
                },
            ));
        }
        Ok(programs)
    }

    /// Builds one of the programs again, after a change of a file; false if it doesn't compile.
    ///
    /// # Errors
    /// If cargo can't be started.
    pub(crate) fn rebuild(&self, program: &TestProgram) -> Result<bool> {
        Ok(self.build_tests(&program.package, &[&program.selection])?.status.success())
    }

    fn build_tests(&self, package: &str, selection: &[&str]) -> Result<Output> {
        let mut command = self.tree.cargo(&["test", "--no-run", "--package", package]);
        command.args(selection).output().context("starting cargo")
    }
}

// === impl CargoTarget ===

impl CargoTarget {
    /// The argument of cargo that selects its tests.
    fn selection(&self) -> String {
        if self.kind.iter().any(|kind| kind == "test") { format!("--test={}", self.name) } else { "--lib".to_owned() }
    }
}

/// The messages of cargo's output; other lines are left out.
fn messages(output: &Output) -> impl Iterator<Item = CargoMessage> {
    output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

fn errors(output: &Output) -> Vec<CompilerMessage> {
    messages(output).filter_map(|message| message.message).filter(|message| message.level == "error").collect()
}

fn texts(errors: &[CompilerMessage]) -> String {
    errors.iter().map(CompilerMessage::text).collect::<Vec<_>>().join("\n")
}

// === impl CompilerMessage ===

impl CompilerMessage {
    fn text(&self) -> &str {
        self.rendered.as_deref().unwrap_or("an error without a text")
    }
}
