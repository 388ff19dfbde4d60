//! `cargo xt vm`: runs the tests that depend on the kernel in virtual machines with other kernels.

use crate::binaries::{self, Binary};
use crate::meanwhile::Build;
use crate::package;
use crate::setup::{self, Use};
use crate::shell::CargoMetadata;
use crate::tally::{CheckTally, Output};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// The script that builds upstream's kube-proxy, and an API server with etcd, in one to four minutes the first time.
pub(crate) const PEER: &str = "tests/lanes/kubernetes/kube-api";

/// The script that boots a kernel and runs a program on it.
const LANE: &str = "tests/lanes/vm/vm";

/// The kernels of [`PHASES`]: Debian 12's oldest as Debian built it, emulated, and its oldest and newest built from Debian's source as
/// programs of this machine, where tests take a third to a seventh of the time.
const KERNELS: [&str; 3] = ["6.1", OLDEST, NEWEST];
const OLDEST: &str = "uml-6.1";
const NEWEST: &str = "uml-6.12";

/// A test binary whose outcome depends on the kernel.
#[derive(Clone, Copy)]
struct Test {
    /// folder of the package, and target
    name: (&'static str, &'static str),
    /// options of the test harness: which of its tests run
    options: &'static str,
}

/// One boot: a kernel, and the tests that run there one after another.
struct Machine {
    kernel: &'static str,
    /// distinguishes its output from that of others with this kernel
    name: &'static str,
    tests: &'static [Test],
}

/// Machines that share some lanes; those of the next phase begin when all have ended.
struct Phase {
    /// machines that run concurrently
    lanes: usize,
    machines: &'static [Machine],
}

/// A machine, and its tests with their executables.
type Boot<'b> = (&'static Machine, Vec<(&'static Test, &'b Path)>);

/// The output of a machine, and the error if it ended early.
struct Finished {
    name: String,
    output: Output,
    end: Result<()>,
}

/// The machines, phase by phase. Tests that this machine can't run are ignored there: `--include-ignored` runs them, too. Mode iptables is
/// left out, and the emulated kernel runs little, since more would take longer than the run may.
const PHASES: &[Phase] = &[UNDER_LOAD, WAITING];

/// Each machine uses one core at most; a third one on the two cores of a small runner leaves churn so little time that changes take half a
/// minute to be in force.
const UNDER_LOAD: Phase = Phase {
    lanes: 2,
    machines: &[
        Machine { kernel: NEWEST, name: "churn", tests: CHURN },
        Machine { kernel: OLDEST, name: "churn", tests: CHURN },
    ],
};

/// Machines whose tests wait for a third of their time, the longest first.
const WAITING: Phase = Phase {
    lanes: 3,
    machines: &[
        Machine { kernel: OLDEST, name: "corpus and plane", tests: CORPUS_AND_PLANE },
        Machine { kernel: NEWEST, name: "end to end", tests: END_TO_END },
        Machine { kernel: NEWEST, name: "grace periods", tests: GRACE },
        Machine { kernel: "6.1", name: "layers", tests: LAYERS },
        Machine { kernel: NEWEST, name: "corpus and more", tests: CORPUS_AND_MORE },
        Machine { kernel: NEWEST, name: "features", tests: FEATURES },
        Machine { kernel: NEWEST, name: "layers and plane", tests: LAYERS_AND_PLANE },
    ],
};

/// A machine that hasn't loaded nf_tables; then the layer of the kernel's interfaces, and mode nftables on it.
const LAYERS: &[Test] =
    &[Test::new("crates/kube-proxy", "outside", "--include-ignored ways::without_nf_tables"), IPVS, DEVICES, NFTABLES];
const IPVS: Test = Test::new("crates/kernel", "ipvs", "--include-ignored");
const DEVICES: Test = Test::new("crates/kernel", "devices", "--include-ignored");
const NFTABLES: Test = Test::new("crates/plane-nftables", "kernel", "--skip iptables");

/// The layer, modes nftables and ipvs on it.
const LAYERS_AND_PLANE: &[Test] = &[IPVS, DEVICES, NFTABLES, PLANE];
const PLANE: Test = Test::new("crates/plane-ipvs", "kernel", "--include-ignored");

/// Churn.
const CHURN: &[Test] = &[
    Test::new("crates/kube-proxy", "churn", "--include-ignored --skip iptables --skip way_bind"),
    Test::new(
        "crates/kube-proxy",
        "traffic",
        "--include-ignored userspace::connections_from_one_port snapshot::a_restarted_machine_serves_without_the_server_in_mode_ipvs",
    ),
];

/// The corpus in mode ipvs, and the mode's layer.
const CORPUS_AND_PLANE: &[Test] = &[CASES, PLANE];
const CASES: Test = Test::new("crates/kube-proxy", "cases", "--include-ignored ipvs::real_connections");

/// The corpus, the image from scratch, and, behind all others, jumps of the machine's clock.
const CORPUS_AND_MORE: &[Test] = &[
    CASES,
    Test::new("crates/kube-proxy", "deploy", "--include-ignored images::the_image_from_scratch_serves_in_mode_ipvs"),
    Test::new("crates/kube-proxy", "outside", "--include-ignored clock::"),
];

/// Mode ipvs from outside.
const END_TO_END: &[Test] = &[Test::new("crates/kube-proxy", "ipvs", "--include-ignored --skip grace::")];

/// Endpoints with a grace period, which these tests wait for.
const GRACE: &[Test] = &[Test::new("crates/kube-proxy", "ipvs", "--include-ignored grace::")];

/// Tests that all modes have, in mode ipvs.
const FEATURES: &[Test] = &[
    Test::new("crates/kube-proxy", "flows", "--include-ignored ipvs"),
    Test::new(
        "crates/kube-proxy",
        "outside",
        "--include-ignored field::a_file_of_kubernetes_1_14 field::flags_of_mode_ipvs privileges::mode_ipvs self_test::connections_go_through_mode_ipvs",
    ),
];

/// Options of `cargo test` that select the tests of [`PHASES`].
const SELECTION: &[&str] = &[
    "--package=ferry-kernel",
    "--package=ferry-kube-proxy",
    "--package=ferry-plane-ipvs",
    "--package=ferry-plane-nftables",
    "--test=cases",
    "--test=churn",
    "--test=deploy",
    "--test=devices",
    "--test=flows",
    "--test=ipvs",
    "--test=kernel",
    "--test=outside",
    "--test=traffic",
];

/// Time limit of a machine.
const LIMIT_SECONDS: &str = "1800";
/// Time without output after which a machine counts as hanging: the longest tests print nothing for two or three minutes.
const SILENCE_SECONDS: &str = "360";

/// The lane's exit status of a machine that ended before its program, or hung. Both are rare since a machine has one processor:
/// an emulated kernel that changes its own code while another processor executes it fails once in some ten boots.
const CRASHED: i32 = 125;
/// The most crashes of a machine.
const MOST_CRASHES: u32 = 1;

/// Environment of tests on an emulated machine, which is twenty times slower.
const EMULATED: &[(&str, &str)] = &[("FERRY_SLOWNESS", "10")];

/// Environment of tests on user-mode Linux: system calls, page faults and new processes are slow there. The clock is the machine's
/// own, so tests may set it.
const IN_USER_MODE: &[(&str, &str)] = &[
    ("FERRY_SLOWNESS", "4"),
    ("FERRY_CHURN_SECONDS", "20"),
    ("FERRY_CHURN_CONNECTIONS", "100"),
    ("FERRY_CHURN_RELAYED", "40"),
    ("FERRY_CHURN_CHANGES", "400"),
    ("FERRY_CHURN_ESTABLISHED", "40"),
    ("FERRY_CHURN_RACE_MILLISECONDS", "2000"),
    ("FERRY_CHURN_RESTARTS", "8"),
    ("FERRY_MAY_SET_CLOCK", "1"),
];

// === impl Finished ===

impl Finished {
    /// A lane whose reader panicked.
    fn unread() -> Self {
        let end = Err(anyhow!("the reader of their output panicked"));
        Self { name: "virtual machines".to_owned(), output: Output::default(), end }
    }
}

// === impl Machine ===

impl Machine {
    /// Its tests with their executables among those that cargo has built.
    fn executables<'b>(&'static self, built: &'b [Binary]) -> Result<Boot<'b>> {
        let executables = self.tests.iter().map(|test| Ok((test, test.executable(built)?)));
        Ok((self, executables.collect::<Result<_>>()?))
    }
}

// === impl Test ===

impl Test {
    const fn new(folder: &'static str, target: &'static str, options: &'static str) -> Self {
        Self { name: (folder, target), options }
    }

    /// Its executable among those that cargo has built.
    fn executable<'b>(&self, built: &'b [Binary]) -> Result<&'b Path> {
        let binary = built.iter().find(|binary| binary.is(self.name)).map(Binary::executable);
        binary.with_context(|| format!("cargo built no test {} of {}", self.name.1, self.name.0))
    }
}

/// Runs the tests, or another program, on all kernels, or on one with `--kernel KERNEL`.
///
/// # Errors
/// If a test fails, or a machine doesn't boot.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (kernels, program) = match arguments {
        [option, kernel, rest @ ..] if option == "--kernel" => (vec![kernel.as_str()], rest),
        rest => (KERNELS.to_vec(), rest),
    };
    setup::prepare(&[Use::Machines], false)?;
    let metadata = CargoMetadata::load()?;
    if !program.is_empty() {
        for kernel in kernels {
            let status =
                machine(&metadata, kernel).args(program).status().with_context(|| format!("starting {LANE}"))?;
            ensure!(status.success(), "Linux {kernel}: {status}");
        }
        return Ok(());
    }
    let has_tests =
        |kernel: &&str| PHASES.iter().flat_map(|phase| phase.machines).any(|machine| machine.kernel == *kernel);
    ensure!(kernels.iter().any(has_tests), "no tests run on {}, but on {}", kernels.join(", "), KERNELS.join(", "));
    let mut tally = CheckTally::default();
    package::for_tests(&metadata)?;
    crate::shell::run(Command::new(PEER).arg("build").current_dir(&metadata.workspace_root))?;
    on(&metadata, &kernels, &binaries::build(SELECTION)?, &mut tally)?;
    tally.print_steps();
    ensure!(tally.failed == 0, "{} passed, {} failed", tally.passed, tally.failed);
    Ok(())
}

/// Starts building the kernels that Debian has no packages of, which takes some ten minutes of processor time each.
///
/// # Errors
/// If the build can't be started.
pub(crate) fn build_kernels(metadata: &CargoMetadata) -> Result<Build> {
    Build::start("user-mode Linux", &[LANE, "fetch", OLDEST, NEWEST], metadata)
}

/// Environment of tests on this kernel.
fn scale(kernel: &str) -> &'static [(&'static str, &'static str)] {
    if kernel.starts_with("uml-") { IN_USER_MODE } else { EMULATED }
}

/// Runs the tests, taken from these binaries, on all kernels concurrently, and counts them.
///
/// # Errors
/// If a test wasn't built, or a kernel can't be fetched.
pub(crate) fn all(metadata: &CargoMetadata, built: &[Binary], tally: &mut CheckTally) -> Result<()> {
    on(metadata, &KERNELS, built, tally)
}

fn on(metadata: &CargoMetadata, kernels: &[&str], built: &[Binary], tally: &mut CheckTally) -> Result<()> {
    let mut phases = Vec::new();
    for phase in PHASES {
        let chosen = phase.machines.iter().filter(|machine| kernels.contains(&machine.kernel));
        phases.push((phase.lanes, chosen.map(|machine| machine.executables(built)).collect::<Result<VecDeque<_>>>()?));
    }
    for kernel in kernels {
        let fetched = Command::new(metadata.workspace_root.join(LANE)).args(["fetch", kernel]).status();
        ensure!(fetched.with_context(|| format!("starting {LANE}"))?.success(), "no kernel {kernel}");
    }
    for (lanes, machines) in phases {
        for finished in concurrently(metadata, lanes, machines) {
            tally.add_tests(&finished.name, finished.output.counts(), &finished.output.failed);
            if let Err(error) = finished.end {
                tally.fail(format!("{}: {error:#}", finished.name));
            }
        }
    }
    Ok(())
}

/// Boots machines, so many at a time.
fn concurrently(metadata: &CargoMetadata, lanes: usize, machines: VecDeque<Boot<'_>>) -> Vec<Finished> {
    let waiting = Mutex::new(machines);
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let drain = || std::iter::from_fn(next).map(|(machine, tests)| boot(metadata, machine, &tests)).collect();
    let outcomes: Vec<Vec<Finished>> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(drain)).collect();
        let end = |lane: thread::ScopedJoinHandle<'_, _>| lane.join().unwrap_or_else(|_| vec![Finished::unread()]);
        lanes.into_iter().map(end).collect()
    });
    outcomes.into_iter().flatten().collect()
}

/// Runs the tests of one machine, and counts them. One that crashes boots again, and goes on with the binary that ran then.
fn boot(metadata: &CargoMetadata, machine: &Machine, tests: &[(&Test, &Path)]) -> Finished {
    let (name, begun) = (format!("Linux {}, {}", machine.kernel, machine.name), Instant::now());
    let mut output = Output::default();
    let end = boot_until_it_ends(metadata, machine, tests, &mut output);
    println!("{name}: {:.0?} in all", begun.elapsed());
    Finished { name, output, end }
}

fn boot_until_it_ends(
    metadata: &CargoMetadata,
    machine: &Machine,
    tests: &[(&Test, &Path)],
    output: &mut Output,
) -> Result<()> {
    let mut crashes = 0;
    loop {
        let rest = tests.get(output.summaries.len()..).unwrap_or_default();
        let status = boot_once(metadata, machine, rest, output)?;
        if status.code() == Some(CRASHED) && crashes < MOST_CRASHES {
            println!("{}, {}| the machine crashed or hung, starting it again", machine.kernel, machine.name);
            crashes += 1;
            continue;
        }
        // A test that crashes or hangs prints no summary.
        ensure!(status.success() || output.counts().failed > 0, "{status}");
        return Ok(());
    }
}

/// Boots one kernel, runs tests on it one after another, and reads their output. Each line of it is printed with the machine's
/// age in seconds.
fn boot_once(
    metadata: &CargoMetadata,
    &Machine { kernel, name, .. }: &Machine,
    tests: &[(&Test, &Path)],
    output: &mut Output,
) -> Result<ExitStatus> {
    // Namespaces of tests switch off what is there when they begin (`Namespace::new` of the crate `kernel`).
    let mut script = "failed=0\nmodprobe ip_vs\n".to_owned();
    for (number, (test, _)) in (1..).zip(tests) {
        script += &format!("\"${{{number}}}\" --test-threads 1 --nocapture {} || failed=1\n", test.options);
    }
    script += "exit $failed\n";
    let mut command = machine(metadata, kernel);
    command.args(["bash", "-c", &script, "bash"]).args(tests.iter().map(|(_, executable)| executable));
    command.envs(scale(kernel).iter().copied()).env("VM_TIME", LIMIT_SECONDS).env("VM_SILENCE", SILENCE_SECONDS);
    let begun = Instant::now();
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting {LANE}"))?;
    for text in BufReader::new(child.stdout.take().context("the output of a machine")?).split(b'\n') {
        let text = String::from_utf8_lossy(&text?).into_owned();
        println!("{kernel}, {name} {:4}| {text}", begun.elapsed().as_secs());
        output.read(text.trim_end_matches('\r'));
    }
    child.wait().context("waiting for a machine")
}

fn machine(metadata: &CargoMetadata, kernel: &str) -> Command {
    let mut command = Command::new(metadata.workspace_root.join(LANE));
    command.args(["run", kernel]).stdin(Stdio::null()).current_dir(&metadata.workspace_root);
    command
}
