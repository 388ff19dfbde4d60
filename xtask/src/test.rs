//! `cargo xt test`: everything that can fail, in one run. The last line is `N passed, N failed`.

use crate::shell::{Metadata, cargo, line, no_arguments, on_path, require};
use crate::tally::Tally;
use crate::{check, demo, fuzz, vm};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What the tests start, and the Debian package it comes with. kube-proxy itself uses iptables alone, in its mode.
const TOOLS: &[(&str, &str)] = &[
    ("cc", "gcc"),
    ("c++", "g++"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("setpriv", "util-linux"),
    ("python3", "python3"),
    ("openssl", "openssl"),
    ("curl", "curl"),
    ("unshare", "util-linux"),
];

/// Builds upstream's kube-proxy and an API server for it: the peer of the test of going back.
const PEER: &str = "tests/lanes/kubernetes/kube-api";

/// A hung test must not hold the run: after this the tests are ended, and count as failed.
const TESTS_MAY_TAKE: &str = "25m";

/// How long each fuzz target runs, in seconds.
const FUZZ_SECONDS: u32 = 20;

/// Runs everything and prints the counts.
///
/// # Errors
/// By arguments that it doesn't know. A failed test ends the program with status 1, without a word after the counts.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    no_arguments(arguments)?;
    let mut tally = Tally::default();
    tally.check("tools and privilege", || {
        ensure!(
            on_path("go"),
            "missing: go 1.26 or newer (go.dev/dl), which builds upstream's kube-proxy, the peer of a test"
        );
        require(&[TOOLS, vm::TOOLS].concat())
    });
    if tally.failed == 0
        && let Err(error) = steps(&mut tally)
    {
        println!("{error:#}");
        tally.failed += 1;
    }
    tally.print_steps();
    println!("{} passed, {} failed", tally.passed, tally.failed);
    std::process::exit(i32::from(tally.failed > 0));
}

/// The steps in order: what needs no peer first, for the peer is built meanwhile.
fn steps(tally: &mut Tally) -> Result<()> {
    let metadata = Metadata::load()?;
    let peer = build_peer(&metadata)?;
    check::checks(tally);
    tally.check("build of the tests", || {
        crate::shell::run(cargo().args(["test", "--quiet", "--workspace", "--no-run"]))
    });
    tally.step("fuzz", |tally| fuzz::all(&metadata, FUZZ_SECONDS, &[], tally));
    tally.check("upstream's kube-proxy, built meanwhile", || finish_peer(peer, &metadata));
    tally.step("tests", cargo_test);
    tally.step("other kernels", |tally| vm::all(&metadata, tally));
    tally.check("demo", || demo::run(&[]));
    Ok(())
}

/// Starts building the peer; a minute or four the first time.
fn build_peer(metadata: &Metadata) -> Result<Child> {
    let log = std::fs::File::create(peer_log(metadata)).context("creating the log of the peer's build")?;
    Command::new("nice")
        .args(["-n", "10", PEER, "build"])
        .current_dir(&metadata.workspace_root)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("starting {PEER}"))
}

fn peer_log(metadata: &Metadata) -> std::path::PathBuf {
    metadata.target_directory.join("kube-api.log")
}

fn finish_peer(mut build: Child, metadata: &Metadata) -> Result<()> {
    let status = build.wait().with_context(|| format!("waiting for {PEER}"))?;
    ensure!(status.success(), "{PEER} build: {status}\n{}", tail(&peer_log(metadata)));
    Ok(())
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
}

/// All tests of the workspace; their own summaries are added up.
fn cargo_test(tally: &mut Tally) -> Result<()> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10s", TESTS_MAY_TAKE]).arg(cargo().get_program());
    command.args(["test", "--workspace", "--no-fail-fast"]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", line(&command)))?;
    let (before, mut ignored) = (tally.failed, 0);
    for text in BufReader::new(child.stdout.take().context("the output of cargo test")?).split(b'\n') {
        let text = String::from_utf8_lossy(&text?).into_owned();
        println!("{text}");
        if let Some(counts) = summary(&text) {
            tally.passed += counts.0;
            tally.failed += counts.1;
            ignored += counts.2;
        }
    }
    let status = child.wait().context("waiting for cargo test")?;
    if ignored > 0 {
        println!("{ignored} tests are ignored");
    }
    // A test binary that does not compile, crashes or hangs leaves no summary.
    ensure!(status.success() || tally.failed > before, "cargo test: {status}");
    Ok(())
}

/// How many tests passed, failed and were ignored, by the last line of a test binary.
pub(crate) fn summary(line: &str) -> Option<(usize, usize, usize)> {
    let summary = line.strip_prefix("test result: ")?;
    Some((number_before(summary, "passed"), number_before(summary, "failed"), number_before(summary, "ignored")))
}

/// The number in front of a word, as in `ok. 12 passed; 0 failed; …`; 0 when there is none.
fn number_before(summary: &str, word: &str) -> usize {
    let words: Vec<_> = summary.split([' ', ';']).collect();
    words
        .windows(2)
        .find_map(|pair| if pair.last() == Some(&word) { pair.first()?.parse().ok() } else { None })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s";
        assert_eq!(summary(line), Some((12, 3, 1)));
        assert_eq!(summary("test result of another kind"), None);
        assert_eq!(number_before("no numbers", "passed"), 0);
    }
}
