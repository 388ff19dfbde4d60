//! Runs the test binaries: those that mostly wait, three at a time, then the others one after another.

use crate::binaries::Binary;
use crate::shell::{cargo, line};
use crate::tally::{CheckTally, Counts, Output};
use anyhow::{Context, Result, anyhow};
use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Time limit of a binary: a hung one must not block the run; it is killed and counts as failed. The longest takes seven
/// minutes.
const BINARY_MAY_TAKE: &str = "12m";

/// Number of concurrent binaries.
const LANES: usize = 3;

/// Binaries whose tests mostly wait for servers, timeouts, downloads and each other: most use a fifth to a quarter of two cores. The
/// longest come first. All others use both cores, or have to sustain a rate (`churn`), and run alone.
const WAITING: &[(&str, &str)] = &[
    ("crates/kube-proxy", "traffic"),
    ("crates/kube-proxy", "cases"),
    ("crates/kube-proxy", "cluster"),
    ("crates/kube-proxy", "flows"),
    ("crates/kube-proxy", "peer"),
    ("crates/kube-proxy", "faults"),
    ("crates/kube-proxy", "outside"),
    ("crates/kube-proxy", "deploy"),
];

/// Runs these binaries and the documentation's tests one after another, and adds up their summaries. The output of each is printed in one
/// piece.
///
/// # Errors
/// If a binary can't be started. One that crashes or hangs counts as a failure, and the others run.
pub(crate) fn one_by_one(binaries: &[&Binary], target: &Path, tally: &mut CheckTally) -> Result<()> {
    let log = logs(target)?.join("alone.log");
    for binary in binaries {
        run_to_end(&binary.name(), &mut binary.command(BINARY_MAY_TAKE), &log)?.add_to(tally);
    }
    let mut documentation = cargo();
    documentation.args(["test", "--quiet", "--workspace", "--doc", "--no-fail-fast"]);
    run_to_end("tests of the documentation", &mut documentation, &log)?.add_to(tally);
    Ok(())
}

/// Runs these binaries, which mostly wait, [`LANES`] at a time, and adds up their summaries.
///
/// # Errors
/// As those of [`one_by_one`].
pub(crate) fn side_by_side(binaries: &[&Binary], target: &Path, tally: &mut CheckTally) -> Result<()> {
    let logs = logs(target)?;
    let queue = Mutex::new(binaries.iter().copied().collect::<VecDeque<_>>());
    let results: Vec<Result<Vec<Finished>>> = thread::scope(|scope| {
        let lane = |lane: usize| {
            let (queue, log) = (&queue, logs.join(format!("lane-{lane}.log")));
            scope.spawn(move || drain(queue, &log))
        };
        let lanes: Vec<_> = (0..LANES).map(lane).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Err(anyhow!("a lane panicked")))).collect()
    });
    for finished in results {
        finished?.into_iter().for_each(|one| one.add_to(tally));
    }
    Ok(())
}

/// The folder of outputs, created.
fn logs(target: &Path) -> Result<std::path::PathBuf> {
    let logs = target.join("test-output");
    std::fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    Ok(logs)
}

/// The binaries that share the lanes, in the order of the table, and those that run alone, in their sorted order.
pub(crate) fn split(binaries: &[Binary]) -> (Vec<&Binary>, Vec<&Binary>) {
    let waits = |binary: &&Binary| WAITING.iter().any(|&name| binary.is(name));
    let waiting = WAITING.iter().filter_map(|&name| binaries.iter().find(|binary| binary.is(name))).collect();
    (waiting, binaries.iter().filter(|binary| !waits(binary)).collect())
}

/// Runs binaries from the queue until it is empty.
fn drain(queue: &Mutex<VecDeque<&Binary>>, log: &Path) -> Result<Vec<Finished>> {
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::iter::from_fn(next)
        .map(|binary| run_to_end(&binary.name(), &mut binary.command(BINARY_MAY_TAKE), log))
        .collect()
}

/// The result of one binary.
struct Finished {
    name: String,
    seconds: f64,
    counts: Counts,
    /// names of the failed tests, or the status of a binary that crashed
    failed: Vec<String>,
}

/// Runs a command to its end and prints its output. The output goes to a file, since a process that it leaves behind would
/// keep a pipe open.
fn run_to_end(name: &str, command: &mut Command, log: &Path) -> Result<Finished> {
    let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let start = Instant::now();
    let status = command.status().with_context(|| format!("starting {}", line(command)))?;
    let seconds = start.elapsed().as_secs_f64();
    let output = std::fs::read(log).with_context(|| format!("reading {}", log.display()))?;
    // Later output of a process that was left behind must not get into the next binary's.
    std::fs::remove_file(log).with_context(|| format!("removing {}", log.display()))?;
    let text = String::from_utf8_lossy(&output);
    let mut output = Output::default();
    text.lines().for_each(|line| output.read(line));
    print!("-- {name}\n{text}");
    let (mut counts, mut failed) = (output.counts(), output.failed);
    // A binary that crashes or hangs prints no summary.
    if !status.success() && counts.failed == 0 {
        println!("{name}: {status}");
        counts.failed += 1;
        failed.push(status.to_string());
    }
    Ok(Finished { name: name.to_owned(), seconds, counts, failed })
}

// === impl Finished ===

impl Finished {
    fn add_to(self, tally: &mut CheckTally) {
        tally.add(&self.name, self.seconds, self.counts, &self.failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binaries::tests::binary;

    #[test]
    fn those_that_wait_come_first_in_the_order_of_the_table() {
        let all = [
            binary("crates/kube-proxy", "churn", "/bin/true"),
            binary("crates/kube-proxy", "faults", "/bin/true"),
            binary("crates/model", "cases", "/bin/true"),
            binary("crates/kube-proxy", "traffic", "/bin/true"),
        ];
        let (waiting, alone) = split(&all);
        assert_eq!(waiting, [&all[3], &all[1]]);
        assert_eq!(alone, [&all[0], &all[2]]);
    }

    #[test]
    fn the_table_names_tests_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (package, target) in WAITING {
            let tests = root.join(package).join("tests");
            let mains = [tests.clone(), tests.join("e2e")].map(|folder| folder.join(target).join("main.rs"));
            assert!(mains.iter().any(|main| main.is_file()), "{target} of {package} is gone");
        }
    }

    fn log(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("xtask-lanes-{name}-{}", std::process::id()))
    }

    #[track_caller]
    fn check(name: &str, script: &str, want: Counts) {
        let log = log(name);
        let finished = run_to_end(name, Command::new("sh").args(["-c", script]), &log).unwrap();
        assert_eq!(finished.counts, want);
    }

    #[test]
    fn summaries_count_and_a_crash_is_a_failure() {
        let summary = "echo test result: FAILED. 2 passed\\; 1 failed\\; 1 ignored\\;";
        let counts = Counts { passed: 2, failed: 1, ignored: 1 };
        check("failed", &format!("{summary}; exit 101"), counts);
        check("stderr", &format!("({summary}) >&2"), counts);
        check("crashed", "echo test one ...; exit 101", Counts { failed: 1, ..Counts::default() });
        check("ok", "echo no tests", Counts::default());
    }

    #[test]
    fn a_process_that_is_left_behind_does_not_hold_the_run() {
        let start = Instant::now();
        check("left", "sleep 30 & echo done", Counts::default());
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }

    #[test]
    fn lanes_empty_the_queue() {
        let all = [binary("/proc", "one", "/bin/true"), binary("/proc", "two", "/bin/false")];
        let queue = Mutex::new(all.iter().collect());
        let log = log("queue");
        let finished = drain(&queue, &log).unwrap();
        assert_eq!(finished.iter().map(|one| one.counts.failed).collect::<Vec<_>>(), [0, 1]);
    }
}
