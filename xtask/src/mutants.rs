//! `cargo xt mutants`: runs cargo-mutants on the pure crates and files, and computes the share of mutants that tests kill.
//!
//! A mutant is one small change of the code, such as another operator or a constant for a function's value. If no test fails
//! with it, it survives: the changed behaviour is not tested. Survivors that can't be killed, since they change no observable
//! behaviour, are listed with their reasons in a file, and count neither as killed nor as survivors.

use crate::layers::{RULESET, is_plane};
use crate::shell::{CargoMetadata, Package, cargo, install_subcommand};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The crates that are pure as a whole.
const PURE: &[&str] = &["ferry-family", "ferry-api", "ferry-model", "ferry-plane"];

/// Excluded files, as globs below a crate's `src`: kernel halves, whose tests need a kernel and take minutes, and test helpers.
const LEFT_OUT: &[(&str, &[&str])] = &[
    ("ferry-plane", &["memory.rs"]),
    (
        "ferry-plane-iptables",
        &[
            "backend.rs",
            "counters.rs",
            "in_use.rs",
            "kernel.rs",
            "kernel/**",
            "read.rs",
            "refers.rs",
            "testing.rs",
            "variant/**",
            "watch.rs",
        ],
    ),
    ("ferry-plane-nftables", &["in_use.rs", "kernel.rs", "leftovers.rs", "probe.rs", "read.rs", "refers.rs"]),
    (
        "ferry-plane-userspace",
        &[
            "bind/interface.rs",
            "bind/kernel.rs",
            "bind/listeners.rs",
            "bind/refers.rs",
            "bind/routes.rs",
            "onward.rs",
            "redirect/kernel.rs",
            "redirect/refers.rs",
            "redirect/relay.rs",
        ],
    ),
    (
        "ferry-plane-ipvs",
        &[
            "device.rs",
            "kernel.rs",
            "refers.rs",
            "retire.rs",
            "servers/commit.rs",
            "servers/director.rs",
            "servers/ledger.rs",
            "servers/mod.rs",
            "servers/schedulers.rs",
            "setup.rs",
            "watch.rs",
        ],
    ),
    (RULESET, &["table/layer.rs", "table/probe.rs", "table/read.rs", "watch.rs"]),
];

/// The test binaries of planes that need no kernel: no others are built.
const BINARIES_OF_PLANES: &[&str] = &["--cargo-arg=--lib", "--cargo-arg=--test=suite"];

/// The tests in these binaries that do need a kernel, as arguments for the binaries (behind the second `--`).
const SKIPPED_OF_PLANES: &[&str] =
    &["--", "--", "--skip", "the_kernel_takes", "--skip", "twins::", "--skip", "upstream::"];

/// The packages whose tests run for the mutants of [`RULESET`]: also those of the mode that uses all of it.
const TESTS_OF_RULESET: &str = "ferry-ruleset,ferry-plane-nftables";

/// File of accepted survivors: `PATH: MUTANT // REASON`, one line each.
const ACCEPTED: &str = "docs/surviving-mutants.txt";

/// Required share of killed mutants in each crate, in percent.
const PER_CENT: usize = 90;

/// The command line options.
#[derive(Debug, Default, PartialEq, Eq)]
struct MutantOptions {
    /// only this crate; otherwise all
    package: Option<String>,
    /// `K/N`: the part K, counted from 0, of N
    shard: Option<String>,
    /// only files that match this glob
    file: Option<String>,
}

/// Results of a crate's mutants.
#[derive(Debug, Default, PartialEq, Eq)]
struct MutantResults {
    killed: usize,
    /// mutants whose tests timed out, which counts as killed
    timeout: usize,
    /// survivors, except accepted ones
    missed: Vec<String>,
    accepted: usize,
}

/// Runs cargo-mutants, and installs it first if absent; prints the results.
///
/// # Errors
/// If it fails, or the share of killed mutants in a crate is below [`PER_CENT`].
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let options = MutantOptions::parse(arguments)?;
    install_subcommand("mutants")?;
    let metadata = CargoMetadata::load()?;
    let accepted = metadata.workspace_root.join(ACCEPTED);
    let accepted = fs::read_to_string(&accepted).with_context(|| format!("reading {}", accepted.display()))?;
    let mut accepted = Accepted::parse(&accepted)?;
    let mut faults = Vec::new();
    let packages: Vec<&Package> = metadata.packages.iter().filter(|package| options.wants(&package.name)).collect();
    ensure!(!packages.is_empty(), "mutants are made in {}, {RULESET} and the crates of the modes", PURE.join(", "));
    for package in packages {
        let folder = folder(&metadata, package, &options)?;
        mutate(&metadata, package, &options, &folder)?;
        let shards = if options.file.is_some() { vec![folder] } else { shards(&folder)? };
        let outcome = MutantResults::read(&shards, &mut accepted)?;
        outcome.print(&package.name, shards.len());
        if outcome.per_cent() < PER_CENT {
            faults.push(format!(
                "{}: {} % of the mutants are killed, less than {PER_CENT} %",
                package.name,
                outcome.per_cent()
            ));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// The folder of a run's results. Removes those of runs with other numbers of shards.
fn folder(metadata: &CargoMetadata, package: &Package, options: &MutantOptions) -> Result<PathBuf> {
    let all = metadata.target_directory.join("mutants").join(&package.name);
    if options.file.is_some() {
        return Ok(all.join("file"));
    }
    let shard = options.shard.as_deref().unwrap_or("0/1").replace('/', "-of-");
    let end = shard.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
    for old in subfolders(&all)?.into_iter().filter(|old| !old.to_string_lossy().ends_with(&end)) {
        fs::remove_dir_all(&old).with_context(|| format!("removing {}", old.display()))?;
    }
    Ok(all.join(shard))
}

/// This folder of results, and those of the other shards beside it.
fn shards(folder: &Path) -> Result<Vec<PathBuf>> {
    let all = subfolders(folder.parent().unwrap_or(folder))?;
    Ok(all.into_iter().filter(|folder| !folder.ends_with("file")).collect())
}

fn subfolders(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.with_context(|| format!("listing {}", folder.display()))?,
    };
    let mut folders: Vec<PathBuf> = listed.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    folders.retain(|path| path.is_dir());
    folders.sort();
    Ok(folders)
}

/// Runs cargo-mutants on one crate, with the crate's own tests.
fn mutate(metadata: &CargoMetadata, package: &Package, options: &MutantOptions, output: &Path) -> Result<()> {
    fs::create_dir_all(output).with_context(|| format!("creating {}", output.display()))?;
    let source = package.folder().strip_prefix(&metadata.workspace_root)?.join("src");
    let below = |glob: &str| source.join(glob).display().to_string();
    let mut command = cargo();
    command.current_dir(&metadata.workspace_root);
    // Nobody reads the debug information. A mutant changes one function: with incremental compilation its build takes a tenth of the time.
    command.envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_INCREMENTAL", "1")]);
    // Each property is tried with an eighth of its random inputs (`ferry_conformance::property`).
    command.env("FERRY_INPUTS_DIVISOR", "8");
    command.args(["mutants", "--package", &package.name, "--no-shuffle", "--colors", "never", "--output"]).arg(output);
    for glob in LEFT_OUT.iter().filter(|(name, _)| *name == package.name).flat_map(|(_, globs)| *globs) {
        command.args(["--exclude", &below(glob)]);
    }
    if let Some(shard) = &options.shard {
        // Round-robin: each shard is a sample of all files.
        command.args(["--sharding", "round-robin", "--shard", shard]);
    }
    if let Some(file) = &options.file {
        command.args(["--file", &below(file)]);
    }
    if package.name == RULESET {
        command.args(["--test-package", TESTS_OF_RULESET]);
    }
    if is_plane(&package.name) || package.name == RULESET {
        command.args(BINARIES_OF_PLANES).args(SKIPPED_OF_PLANES);
    }
    let status = command.status().context("starting cargo mutants")?;
    match status.code() {
        // Exit codes 2 (survivors) and 3 (timeouts): both are counted from the output files.
        Some(0 | 2 | 3) => Ok(()),
        Some(4) => bail!("{}: the tests fail without any mutant", package.name),
        _ => bail!("cargo mutants in {}: {status}", package.name),
    }
}

// === impl MutantOptions ===

impl MutantOptions {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        for pair in arguments.chunks(2) {
            let [option, value] = pair else { bail!("{} needs a value", pair.join(" ")) };
            let place = match option.as_str() {
                "--crate" => &mut options.package,
                "--shard" => &mut options.shard,
                "--file" => &mut options.file,
                other => bail!("unexpected argument {other}"),
            };
            ensure!(place.replace(value.clone()).is_none(), "{option} is given twice");
        }
        if let Some(package) = options.package.take() {
            let full = if package.starts_with("ferry-") { package } else { format!("ferry-{package}") };
            ensure!(is_mutated(&full), "no mutants are made in {full}");
            options.package = Some(full);
        }
        Ok(options)
    }

    fn wants(&self, package: &str) -> bool {
        is_mutated(package) && self.package.as_ref().is_none_or(|wanted| wanted == package)
    }
}

fn is_mutated(package: &str) -> bool {
    PURE.contains(&package) || package == RULESET || is_plane(package)
}

/// Number of accepted survivors by description, minus those found so far.
#[derive(Debug, Default)]
struct Accepted(BTreeMap<String, usize>);

// === impl Accepted ===

impl Accepted {
    fn parse(text: &str) -> Result<Self> {
        let mut accepted = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (mutant, reason) =
                line.split_once(" // ").with_context(|| format!("{ACCEPTED}: no reason in {line:?}"))?;
            ensure!(!reason.trim().is_empty(), "{ACCEPTED}: no reason in {line:?}");
            *accepted.0.entry(mutant.trim().to_owned()).or_default() += 1;
        }
        Ok(accepted)
    }

    /// True if this survivor is accepted. Each line accepts one.
    fn accept(&mut self, mutant: &str) -> bool {
        let Some(left) = self.0.get_mut(&without_place(mutant)).filter(|left| **left > 0) else { return false };
        *left -= 1;
        true
    }
}

/// `PATH:LINE:COLUMN: MUTANT` without line and column, which change with every edit of the file.
fn without_place(mutant: &str) -> String {
    let mut parts = mutant.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(path), Some(line), Some(column), Some(what)) if is_number(line) && is_number(column) => {
            format!("{path}:{what}")
        }
        _ => mutant.to_owned(),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

// === impl MutantResults ===

impl MutantResults {
    /// Adds up the lists of cargo-mutants' output folders.
    fn read(folders: &[PathBuf], accepted: &mut Accepted) -> Result<Self> {
        let mut outcome = Self::default();
        for folder in folders {
            let list = |name: &str| {
                let path = folder.join("mutants.out").join(name);
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
            };
            outcome.killed += list("caught.txt")?.lines().count();
            outcome.timeout += list("timeout.txt")?.lines().count();
            let missed = list("missed.txt")?;
            let (known, new): (Vec<&str>, Vec<&str>) = missed.lines().partition(|mutant| accepted.accept(mutant));
            outcome.accepted += known.len();
            outcome.missed.extend(new.into_iter().map(str::to_owned));
        }
        Ok(outcome)
    }

    /// The share of killed mutants in percent, rounded down; 100 without mutants.
    fn per_cent(&self) -> usize {
        let noticed = self.killed + self.timeout;
        (noticed * 100).checked_div(noticed + self.missed.len()).unwrap_or(100)
    }

    fn print(&self, package: &str, shards: usize) {
        for mutant in &self.missed {
            println!("survived: {mutant}");
        }
        let Self { killed, timeout, missed, accepted } = self;
        println!(
            "{package}: {} % ({killed} killed, {timeout} timeouts, {} missed, {accepted} accepted; {shards} shards)",
            self.per_cent(),
            missed.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<MutantOptions> {
        MutantOptions::parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_name_a_crate_a_shard_and_a_file() {
        assert_eq!(parse("").unwrap(), MutantOptions::default());
        let options = parse("--crate model --shard 1/8 --file node.rs").unwrap();
        assert_eq!(options.package.as_deref(), Some("ferry-model"));
        assert_eq!((options.shard.as_deref(), options.file.as_deref()), (Some("1/8"), Some("node.rs")));
        assert!(options.wants("ferry-model") && !options.wants("ferry-api"));
        let all = MutantOptions::default();
        assert!(
            all.wants("ferry-plane-nftables")
                && all.wants("ferry-ruleset")
                && all.wants("ferry-api")
                && !all.wants("ferry-kernel")
        );
        for wrong in ["--crate", "--crate kernel", "--carte model", "--crate api --crate model"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_excluded_file_exists() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        for (package, globs) in LEFT_OUT {
            let source = crates.join(package.trim_start_matches("ferry-")).join("src");
            for glob in *globs {
                assert!(source.join(glob.trim_end_matches("/**")).exists(), "{package}: {glob}");
            }
        }
    }

    #[test]
    fn each_line_accepts_one_survivor_wherever_it_stands() {
        let text = "# why\n\ncrates/a/src/b.rs: replace + with - in f // the sum is never used\n";
        let mut accepted = Accepted::parse(text).unwrap();
        assert!(!accepted.accept("crates/a/src/b.rs:1:2: replace + with * in f"));
        assert!(accepted.accept("crates/a/src/b.rs:12:34: replace + with - in f"));
        assert!(!accepted.accept("crates/a/src/b.rs:13:34: replace + with - in f"), "a second one is new");
        assert!(Accepted::parse("crates/a/src/b.rs: replace + with - in f").is_err());
        assert!(Accepted::parse("crates/a/src/b.rs: replace + with - in f //  ").is_err());
    }

    #[test]
    fn timeouts_are_noticed_and_accepted_survivors_count_neither_way() {
        let of = |killed, timeout, missed: usize| MutantResults {
            killed,
            timeout,
            missed: vec![String::new(); missed],
            accepted: 7,
        };
        assert_eq!(of(8, 1, 1).per_cent(), 90);
        assert_eq!(of(889, 10, 101).per_cent(), 89);
        assert_eq!(of(0, 0, 0).per_cent(), 100);
    }

    #[test]
    fn results_of_all_shards_are_added_up() {
        let folder = std::env::temp_dir().join(format!("xtask-mutants-{}", std::process::id()));
        let shards = ["0-of-2", "1-of-2"].map(|shard| folder.join(shard));
        for (number, shard) in (1..).zip(&shards) {
            let results = shard.join("mutants.out");
            fs::create_dir_all(&results).unwrap();
            fs::write(results.join("caught.txt"), "a\n".repeat(number)).unwrap();
            fs::write(results.join("timeout.txt"), "").unwrap();
            fs::write(results.join("missed.txt"), format!("a.rs:{number}:1: replace f with ()\n")).unwrap();
        }
        let mut accepted = Accepted::parse("a.rs: replace f with () // nobody asks").unwrap();
        let outcome = MutantResults::read(&super::shards(&shards[0]).unwrap(), &mut accepted).unwrap();
        let missed = vec!["a.rs:2:1: replace f with ()".to_owned()];
        assert_eq!(outcome, MutantResults { killed: 3, timeout: 0, missed, accepted: 1 });
        fs::remove_dir_all(&folder).unwrap();
    }
}
