//! `cargo xt fuzz`: runs each fuzz target for some seconds, two at a time, seeded from the cases and the examples.

use crate::meanwhile::{Build, WHEN_IDLE};
use crate::shell::{CargoMetadata, install_subcommand, last_lines, run as run_command};
use crate::tally::CheckTally;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Folders with seeds in the decoders' formats; every target gets all of them, those of other formats as bad input.
const SEEDS: &[&str] = &["testdata/cases", "examples"];

/// Targets that run concurrently: the cores of the smallest supported machine.
const PARALLEL: usize = 2;

/// The results in the line of a target, the first with a number of runs.
const OK: &str = "ok";
const FAILED: &str = "FAILED";
const STARVED: &str = "STARVED, only the seeds were tried";

/// Time after which an input counts as one that the target hangs with: it takes milliseconds.
const HANGS_SECONDS: u32 = 10;
/// The same beside tests, where an input waits while they need both cores.
const HANGS_BESIDE_SECONDS: u32 = 60;
/// The option that says so.
const BESIDE: &str = "--beside";
const SECONDS: &str = "--seconds";
/// Duration of each target, in seconds.
const DEFAULT_SECONDS: u32 = 20;

/// The command line options.
struct FuzzOptions {
    /// duration of each target
    seconds: u32,
    /// tests run beside it
    beside: bool,
    /// the targets; all if none is named
    targets: Vec<String>,
}

/// Starts `cargo xt fuzz` for all targets beside other steps, with time that nothing else wants.
///
/// # Errors
/// If it can't be started.
pub(crate) fn start(metadata: &CargoMetadata) -> Result<Build> {
    let this = std::env::current_exe().context("the path of this program")?;
    let this = this.to_str().context("the path of this program is no text")?;
    Build::start("fuzzing", &[WHEN_IDLE, &[this, "fuzz", BESIDE]].concat(), metadata)
}

/// Waits for the end of fuzzing that was started, prints its output, and counts the targets. Those that got no processor time run now,
/// with nothing but each other beside them.
///
/// # Errors
/// If it failed otherwise than by a target: the end of its output.
pub(crate) fn finish(fuzzing: Build, metadata: &CargoMetadata, tally: &mut CheckTally) -> Result<()> {
    let (status, output) = fuzzing.end()?;
    print!("{output}");
    let results: Vec<_> = output.lines().filter_map(result).collect();
    let explained = results.iter().any(|(_, end)| *end == TargetEnd::Failed);
    ensure!(explained || status.success() && !results.is_empty(), "{status}\n{}", last_lines(&output).join("\n"));
    let with = |wanted| results.iter().filter(move |(_, end)| *end == wanted).map(|(target, _)| *target);
    tally.passed += with(TargetEnd::Ok).count();
    with(TargetEnd::Failed).for_each(|target| tally.fail(format!("fuzz {target}")));
    let starved: Vec<_> = with(TargetEnd::Starved).collect();
    let again = run_targets(&metadata.workspace_root, &FuzzOptions::default(), &starved, tally)?;
    again.iter().for_each(|target| tally.fail(format!("fuzz {target}")));
    Ok(())
}

/// The end of a target's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetEnd {
    Ok,
    Failed,
    /// it got no further than its seeds
    Starved,
}

/// The target that a line of the output is about, and how its run ended.
fn result(line: &str) -> Option<(&str, TargetEnd)> {
    let (target, result) = line.strip_prefix("fuzz ")?.split_once(": ")?;
    let end = match result {
        FAILED => TargetEnd::Failed,
        STARVED => TargetEnd::Starved,
        ok => ok.starts_with(OK).then_some(TargetEnd::Ok)?,
    };
    Some((target, end))
}

/// Fuzzes all targets, or the named ones.
///
/// # Errors
/// If a target can't be built, or finds a failing input; if it gets no processor time, unless tests run beside it.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let options = FuzzOptions::parse(arguments)?;
    let mut tally = CheckTally::default();
    let starved = all(&CargoMetadata::load()?, &options, &mut tally)?;
    if !options.beside {
        starved.iter().for_each(|target| tally.fail(format!("fuzz {target}")));
    }
    ensure!(tally.failed == 0, "{} of {} targets failed", tally.failed, tally.passed + tally.failed);
    Ok(())
}

/// Builds all targets at once, runs the chosen ones (all if none is named), and counts them, except for those that tried nothing but their
/// seeds, which are returned.
///
/// # Errors
/// If they can't be built or started.
fn all(metadata: &CargoMetadata, options: &FuzzOptions, tally: &mut CheckTally) -> Result<Vec<String>> {
    let root = &metadata.workspace_root;
    install_subcommand("fuzz")?;
    run_command(cargo_in(root).args(["fuzz", "build", "--sanitizer", "none"]))?;
    let listed = cargo_in(root).args(["fuzz", "list"]).output().context("starting cargo fuzz list")?;
    let listed = String::from_utf8(listed.stdout).context("the names of the fuzz targets")?;
    let known: Vec<_> = listed.lines().collect();
    ensure!(!known.is_empty(), "no fuzz target found");
    let chosen = &options.targets;
    if let Some(unknown) = chosen.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("no fuzz target {unknown}; there are {}", known.join(", "));
    }
    let targets: Vec<_> =
        known.into_iter().filter(|&name| chosen.is_empty() || chosen.iter().any(|one| one == name)).collect();
    run_targets(root, options, &targets, tally)
}

/// Runs targets, [`PARALLEL`] at a time, and counts them, except for those that tried nothing but their seeds, which are returned.
fn run_targets(root: &Path, options: &FuzzOptions, targets: &[&str], tally: &mut CheckTally) -> Result<Vec<String>> {
    let mut starved = Vec::new();
    for pair in targets.chunks(PARALLEL) {
        let started: Vec<_> =
            pair.iter().map(|target| Ok((*target, start_target(root, target, options)?))).collect::<Result<_>>()?;
        for (target, child) in started {
            match finish_target(target, child) {
                Ok((runs, seeds)) if runs <= seeds => {
                    println!("fuzz {target}: {STARVED}");
                    starved.push(target.to_owned());
                }
                Ok((runs, _)) => {
                    println!("fuzz {target}: {OK}, {runs} runs");
                    tally.passed += 1;
                }
                Err(error) => {
                    println!("fuzz {target}: {FAILED}\n{error:#}");
                    tally.fail(format!("fuzz {target}"));
                }
            }
        }
    }
    Ok(starved)
}

fn cargo_in(root: &Path) -> Command {
    let mut command = crate::shell::cargo();
    command.current_dir(root);
    command
}

/// Starts one target. New inputs are kept in `fuzz/corpus`, failing ones in `fuzz/artifacts`.
fn start_target(root: &Path, target: &str, options: &FuzzOptions) -> Result<Child> {
    let corpus = root.join("fuzz/corpus").join(target);
    let artifacts = root.join("fuzz/artifacts").join(target);
    for folder in [&corpus, &artifacts] {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let own_seeds = root.join("fuzz/seeds").join(target);
    let seeds = SEEDS.iter().map(|seeds| root.join(seeds)).chain([own_seeds]).filter(|folder| folder.is_dir());
    cargo_in(root)
        .env("RUST_BACKTRACE", "0")
        .args(["fuzz", "run", "--sanitizer", "none", target])
        .arg(&corpus)
        .args(seeds)
        .args(["--", "-rss_limit_mb=2048"])
        .arg(format!("-timeout={}", options.hangs()))
        .arg(format!("-max_total_time={}", options.seconds))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting fuzz target {target}"))
}

/// Waits for a target and returns the number of inputs it tried, and how many of them were seeds.
fn finish_target(target: &str, child: Child) -> Result<(u64, u64)> {
    let output = child.wait_with_output().with_context(|| format!("waiting for {target}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("{}", telling(&text).join("\n"));
    }
    tried(&text).context("the fuzzer ended without reporting its number of runs")
}

/// The number of inputs in a fuzzer's output, and how many of them were seeds: all, if it did not get behind these.
fn tried(text: &str) -> Option<(u64, u64)> {
    let runs = text.lines().find_map(|line| line.strip_prefix("Done ")?.split(' ').next()?.parse().ok())?;
    let behind_seeds = |line: &str| {
        let (count, event) = line.strip_prefix('#')?.split_once(char::is_whitespace)?;
        event.trim_start().starts_with("INITED").then(|| count.parse().ok())?
    };
    Some((runs, text.lines().find_map(behind_seeds).unwrap_or(runs)))
}

/// The relevant lines of a failure: the panic's message and the path of the input; without a panic the last lines.
fn telling(text: &str) -> Vec<&str> {
    let lines: Vec<_> = text.lines().collect();
    let panic = lines.iter().position(|line| line.contains("panicked at"));
    let Some(at) = panic else {
        return last_lines(text);
    };
    let kept = lines.iter().filter(|line| line.contains("Test unit written to")).copied();
    lines.iter().skip(at).take(3).copied().chain(kept).collect()
}

// === impl FuzzOptions ===

impl Default for FuzzOptions {
    fn default() -> Self {
        Self { seconds: DEFAULT_SECONDS, beside: false, targets: Vec::new() }
    }
}

impl FuzzOptions {
    fn parse(arguments: &[String]) -> Result<Self> {
        let (beside, rest) = match arguments {
            [option, rest @ ..] if option == BESIDE => (true, rest),
            rest => (false, rest),
        };
        let (seconds, targets) = match rest {
            [option, seconds, rest @ ..] if option == SECONDS => (seconds.parse().context(SECONDS)?, rest),
            rest => (DEFAULT_SECONDS, rest),
        };
        Ok(Self { seconds, beside, targets: targets.to_vec() })
    }

    fn hangs(&self) -> u32 {
        if self.beside { HANGS_BESIDE_SECONDS } else { HANGS_SECONDS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_tried_seeds_alone_is_known() {
        let output = "INFO: seed corpus: files: 7\n#8\tINITED cov: 3 ft: 4 corp: 1/1b\n#99\tNEW    cov: 4\nDone 512 runs in 21 second(s)";
        assert_eq!(tried(output), Some((512, 8)));
        assert_eq!(tried("#8\tINITED cov: 3\nDone 8 runs in 21 second(s)"), Some((8, 8)));
        assert_eq!(tried("Done 5 runs in 21 second(s)"), Some((5, 5)));
        assert_eq!(tried("#8\tINITED cov: 3"), None);
    }

    #[test]
    fn options_come_before_targets() {
        let parse = |words: &str| {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            FuzzOptions::parse(&words).map(|options| (options.seconds, options.hangs(), options.targets.join(" ")))
        };
        assert_eq!(parse("").unwrap(), (20, 10, String::new()));
        assert_eq!(parse("--seconds 5 resolve").unwrap(), (5, 10, "resolve".to_owned()));
        assert_eq!(parse("--beside --seconds 20").unwrap(), (20, 60, String::new()));
        assert!(parse("--seconds many").is_err());
    }

    #[test]
    fn results_are_read_from_the_output() {
        assert_eq!(result("fuzz resolve: ok, 123 runs"), Some(("resolve", TargetEnd::Ok)));
        assert_eq!(result("fuzz resolve: FAILED"), Some(("resolve", TargetEnd::Failed)));
        assert_eq!(result(&format!("fuzz resolve: {STARVED}")), Some(("resolve", TargetEnd::Starved)));
        for other in ["", "thread 'main' panicked at fuzz: ok", "fuzz target resolve can't be built: no space"] {
            assert_eq!(result(other), None, "{other}");
        }
    }
}
