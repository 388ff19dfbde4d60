//! `cargo xt vm`: runs the tests that depend on the kernel in emulated machines with older kernels.

use crate::binaries::{self, Binary};
use crate::setup::{self, Use};
use crate::shell::Metadata;
use crate::tally::{Counts, Tally};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

/// The script that boots a kernel and runs a program on it.
const LANE: &str = "tests/lanes/vm/vm";

/// The kernels: Debian 12's oldest and newest.
const SERIES: [&str; 2] = ["6.1", "6.12"];

/// A test binary whose outcome depends on the kernel.
struct Test {
    /// folder of the package, and target
    name: (&'static str, &'static str),
    /// options of the test harness: which of its tests run
    options: &'static str,
    /// the kernels that it runs on
    series: &'static [&'static str],
}

/// The tests, in order. Those that this machine can't run are ignored there: `--include-ignored` runs them, too. Mode iptables is
/// left out, and the newest kernel alone runs mode ipvs end to end, and a part of its tests, since all of them
/// take longer than the run may.
const TESTS: &[Test] = &[
    Test::everywhere("crates/kernel", "ipvs", "--include-ignored"),
    Test::everywhere("crates/kernel", "devices", "--include-ignored"),
    Test::everywhere("crates/plane-nftables", "kernel", "--skip iptables"),
    Test::everywhere("crates/plane-ipvs", "kernel", "--include-ignored"),
    Test::newest("crates/kube-proxy", "cases", "--include-ignored ipvs::real_connections_meet_what_each_case_wants"),
    Test::newest("crates/kube-proxy", "ipvs", NEWEST_IPVS),
    Test::everywhere("crates/kube-proxy", "churn", "--skip iptables"),
];

/// The end-to-end tests of mode ipvs that run on the newest kernel.
const NEWEST_IPVS: &str = "--include-ignored grace:: side_effects:: tutorial:: --skip virtual_server_opens \
                           --skip comes_and_goes --skip gives_way";

/// Options of `cargo test` that select [`TESTS`].
const SELECTION: &[&str] = &[
    "--package=ferry-kernel",
    "--package=ferry-kube-proxy",
    "--package=ferry-plane-ipvs",
    "--package=ferry-plane-nftables",
    "--test=cases",
    "--test=churn",
    "--test=devices",
    "--test=ipvs",
    "--test=kernel",
];

/// Time limit of a machine.
const LIMIT_SECONDS: &str = "3600";

/// The lane's exit status of a machine that ended before its program. Once in some ten boots an emulated kernel crashes while it
/// changes its own code, which the other processor executes (`__ip_local_out`, for one, with the first hook of netfilter).
const CRASHED: i32 = 125;
/// The most crashes of a machine.
const MOST_CRASHES: u32 = 2;

/// Scales the tests to a machine that is twenty times slower.
const SCALE: &[(&str, &str)] = &[
    ("FERRY_SLOWNESS", "10"),
    ("FERRY_CHURN_SECONDS", "40"),
    ("FERRY_CHURN_CONNECTIONS", "30"),
    ("FERRY_CHURN_CHANGES", "120"),
    ("FERRY_CHURN_ESTABLISHED", "20"),
    ("FERRY_CHURN_RACE_MILLISECONDS", "2000"),
    ("FERRY_CHURN_RESTARTS", "8"),
];

// === impl Test ===

impl Test {
    /// One that runs on all kernels.
    const fn everywhere(folder: &'static str, target: &'static str, options: &'static str) -> Self {
        Self { name: (folder, target), options, series: &SERIES }
    }

    /// One that runs on the newest kernel.
    const fn newest(folder: &'static str, target: &'static str, options: &'static str) -> Self {
        Self { name: (folder, target), options, series: &["6.12"] }
    }
}

/// Runs the tests, or another program, on all kernels, or on one with `--kernel SERIES`.
///
/// # Errors
/// If a test fails, or a machine doesn't boot.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (series, program) = match arguments {
        [option, series, rest @ ..] if option == "--kernel" => (vec![series.as_str()], rest),
        rest => (SERIES.to_vec(), rest),
    };
    setup::prepare(&[Use::Machines], false)?;
    let metadata = Metadata::load()?;
    if !program.is_empty() {
        for series in series {
            let status =
                machine(&metadata, series).args(program).status().with_context(|| format!("starting {LANE}"))?;
            ensure!(status.success(), "Linux {series}: {status}");
        }
        return Ok(());
    }
    let mut tally = Tally::default();
    on(&metadata, &series, &binaries::build(SELECTION)?, &mut tally)?;
    ensure!(tally.failed == 0, "{} passed, {} failed", tally.passed, tally.failed);
    Ok(())
}

/// Runs the tests, taken from these binaries, on all kernels concurrently, and counts them.
///
/// # Errors
/// If a test wasn't built, or a kernel can't be fetched.
pub(crate) fn all(metadata: &Metadata, built: &[Binary], tally: &mut Tally) -> Result<()> {
    on(metadata, &SERIES, built, tally)
}

fn on(metadata: &Metadata, series: &[&str], built: &[Binary], tally: &mut Tally) -> Result<()> {
    let find = |test: &'static Test| {
        let binary = built.iter().find(|binary| binary.is(test.name)).map(Binary::executable);
        let executable = binary.with_context(|| format!("cargo built no test {} of {}", test.name.1, test.name.0))?;
        Ok((test, executable))
    };
    let tests = TESTS.iter().map(find).collect::<Result<Vec<_>>>()?;
    for series in series {
        let fetched = Command::new(metadata.workspace_root.join(LANE)).args(["fetch", series]).status();
        ensure!(fetched.with_context(|| format!("starting {LANE}"))?.success(), "no kernel {series}");
    }
    let outcomes: Vec<Result<Counts>> = thread::scope(|scope| {
        let start = |series| {
            let tests = &tests;
            scope.spawn(move || boot(metadata, series, tests))
        };
        let machines: Vec<_> = series.iter().copied().map(start).collect();
        let end = |machine: thread::ScopedJoinHandle<'_, _>| {
            machine.join().unwrap_or_else(|_| bail!("the reader of a machine's output panicked"))
        };
        machines.into_iter().map(end).collect()
    });
    for outcome in outcomes {
        let counts = outcome?;
        tally.passed += counts.passed;
        tally.failed += counts.failed;
    }
    Ok(())
}

/// Runs the tests of one kernel, and counts them. A machine that crashes boots again, and goes on with the binary that ran then.
fn boot(metadata: &Metadata, series: &str, tests: &[(&Test, &Path)]) -> Result<Counts> {
    let all: Vec<_> = tests.iter().filter(|(test, _)| test.series.contains(&series)).copied().collect();
    let (mut summaries, mut crashes) = (Vec::<Counts>::new(), 0);
    loop {
        let rest = all.get(summaries.len()..).unwrap_or_default();
        let status = boot_once(metadata, series, rest, &mut summaries)?;
        if status.code() == Some(CRASHED) && crashes < MOST_CRASHES {
            println!("{series}| the machine crashed, starting it again");
            crashes += 1;
            continue;
        }
        let counts: Counts = summaries.into_iter().sum();
        // A test that crashes or hangs prints no summary.
        ensure!(status.success() || counts.failed > 0, "Linux {series}: {status}");
        return Ok(counts);
    }
}

/// Boots one kernel and runs tests on it one after another. Adds the counts of each binary that ends.
fn boot_once(
    metadata: &Metadata,
    series: &str,
    tests: &[(&Test, &Path)],
    summaries: &mut Vec<Counts>,
) -> Result<ExitStatus> {
    let mut script = "failed=0\n".to_owned();
    for (number, (test, _)) in (1..).zip(tests) {
        script += &format!("\"${{{number}}}\" --test-threads 1 --nocapture {} || failed=1\n", test.options);
    }
    script += "exit $failed\n";
    let mut command = machine(metadata, series);
    command.args(["bash", "-c", &script, "bash"]).args(tests.iter().map(|(_, executable)| executable));
    command.envs(SCALE.iter().copied()).env("VM_TIME", LIMIT_SECONDS);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting {LANE}"))?;
    for text in BufReader::new(child.stdout.take().context("the output of a machine")?).split(b'\n') {
        let text = String::from_utf8_lossy(&text?).into_owned();
        println!("{series}| {text}");
        summaries.extend(Counts::of_summary(&text));
    }
    child.wait().context("waiting for a machine")
}

fn machine(metadata: &Metadata, series: &str) -> Command {
    let mut command = Command::new(metadata.workspace_root.join(LANE));
    command.args(["run", series]).stdin(Stdio::null()).current_dir(&metadata.workspace_root);
    command
}
