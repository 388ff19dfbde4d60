//! `cargo xt mutants`: makes small changes of the code, one at a time, and computes the share of them that the tests notice.
//!
//! A mutant is one such change: another operator, or a constant for a function's value. If no test fails with it, it survives: the
//! changed behaviour is not tested. cargo-mutants lists the mutants of a crate. Nearly all of them fit into one build, each behind a
//! switch ([`switches`]); the tests then run once to record which mutants each of them reaches, and for each mutant only these run
//! ([`trial`]). A crate takes minutes, where a build and all tests for each mutant take hours
//! ([decision 74](../../docs/decisions/0074-mutants-behind-switches.md)).
#![expect(clippy::print_stdout, reason = "a command line tool talks to its user")]

mod alone;
mod build;
mod catalogue;
mod edits;
mod options;
mod parallel;
mod process;
mod results;
mod scope;
mod suite;
mod switches;
mod tree;
mod trial;

use anyhow::{Context, Result, ensure};
use options::MutantOptions;
use results::{ACCEPTED, Accepted, MutantResults};
use scope::source;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Required share of killed mutants in each crate, in percent.
const PER_CENT: usize = 90;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let options = MutantOptions::parse(&arguments)?;
    let root = workspace_root()?;
    let accepted = root.join(ACCEPTED);
    let accepted = fs::read_to_string(&accepted).with_context(|| format!("reading {}", accepted.display()))?;
    let mut accepted = Accepted::parse(&accepted)?;
    let mut faults = Vec::new();
    for package in scope::packages(&root)?.iter().filter(|package| options.wants(package)) {
        let results = try_package(&root, package, &options, &mut accepted)?;
        results.print(package);
        if results.per_cent() < PER_CENT {
            let share = results.per_cent();
            faults.push(format!("{package}: {share} % of the mutants are killed, less than {PER_CENT} %"));
        }
        if options.is_whole() {
            faults.extend(accepted.unused(&source(package)));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// Tries all mutants of one package.
fn try_package(root: &Path, package: &str, options: &MutantOptions, accepted: &mut Accepted) -> Result<MutantResults> {
    let mutants = catalogue::list(root, package, options)?;
    println!("{package}: {} mutants", mutants.len());
    let folder = root.join("target/mutants").join(package);
    let tree = tree::Tree::new(root, &folder.join("tree"), package)?;
    let build = build::Build::new(&tree, &mutants)?;
    println!("{package}: {}", build.summary());
    let suite = suite::Suite::record(build.programs()?, &folder)?;
    let mut ends = trial::run(&mutants, &build, &suite)?;
    ends.extend(alone::run(&tree, &mutants, &build, &suite)?);
    Ok(MutantResults::of(&mutants, &ends, accepted))
}

/// The workspace's folder, which has this package's folder in it.
fn workspace_root() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().map(Path::to_path_buf).context("the package has no parent folder")
}
