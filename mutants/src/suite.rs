//! The tests of a package: which mutants each one reaches, and runs with one mutant on.

use crate::build::TestProgram;
use crate::parallel;
use crate::process::{self, ProcessEnd, ProcessLimits};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One process runs tests up to this duration together: its start costs some milliseconds, and a failure ends what comes behind it.
const TOGETHER: Duration = Duration::from_millis(250);

/// The most tests in one process.
const MOST_TOGETHER: usize = 25;

/// What tests may take with a mutant, as a multiple of what they take without one.
const SLOWER: u32 = 10;

/// What any test may take.
const ANY_TEST: Duration = Duration::from_secs(5);

/// What any test may take by the clock, also if other programs leave it no processor time.
const BY_CLOCK: Duration = Duration::from_secs(20);

/// Address space of a test's process: a mutant can make it allocate without end.
const MEMORY_BYTES: u64 = 6 << 30;

/// The tests of all programs, and the mutants that they reach.
#[derive(Debug)]
pub(crate) struct Suite {
    programs: Vec<TestProgram>,
    tests: Vec<TestCase>,
    /// for each mutant the indices of the tests that reach it, the shortest first
    reached: BTreeMap<u32, Vec<usize>>,
}

#[derive(Debug)]
struct TestCase {
    program: usize,
    name: String,
    duration: Duration,
}

/// The end of the tests with a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrialEnd {
    /// a test failed
    Killed,
    /// a test took too long, which counts as killed
    TimedOut,
    /// all tests passed
    Survived,
}

// === impl Suite ===

impl Suite {
    /// Runs each test once, by itself, and records the mutants that it reaches.
    ///
    /// # Errors
    /// If a test fails without any mutant.
    pub(crate) fn record(programs: Vec<TestProgram>, folder: &Path) -> Result<Self> {
        let mut suite = Self { programs, tests: Vec::new(), reached: BTreeMap::new() };
        for index in 0..suite.programs.len() {
            suite.tests.extend(suite.list(index)?);
        }
        let all: Vec<usize> = (0..suite.tests.len()).collect();
        let recorded = parallel::map(&all, |worker, &test| {
            let file = folder.join(format!("reached-{worker}"));
            suite.record_one(test, &file).map(|recorded| (test, recorded))
        });
        for recorded in recorded {
            let (index, (duration, mutants)): (usize, (Duration, Vec<u32>)) = recorded?;
            if let Some(test) = suite.tests.get_mut(index) {
                test.duration = duration;
            }
            mutants.into_iter().for_each(|mutant| suite.reached.entry(mutant).or_default().push(index));
        }
        let Self { tests, reached, .. } = &mut suite;
        let duration = |test: &usize| tests.get(*test).map_or(Duration::ZERO, |test| test.duration);
        reached.values_mut().for_each(|indices| indices.sort_by_key(duration));
        Ok(suite)
    }

    /// The tests of a program, except those that are skipped.
    fn list(&self, program: usize) -> Result<Vec<TestCase>> {
        let Some(TestProgram { executable, folder, skipped, .. }) = self.programs.get(program) else {
            return Ok(Vec::new());
        };
        let mut command = Command::new(executable);
        command.current_dir(folder).args(["--list", "--format", "terse"]);
        let output = command.output().with_context(|| format!("starting {}", executable.display()))?;
        ensure!(output.status.success(), "{} --list: {}", executable.display(), output.status);
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let wanted = names.filter(|name| !skipped.iter().any(|part| name.contains(part)));
        Ok(wanted.map(|name| TestCase { program, name: name.to_owned(), duration: Duration::ZERO }).collect())
    }

    /// The duration of a test and the mutants that it reaches.
    fn record_one(&self, test: usize, file: &Path) -> Result<(Duration, Vec<u32>)> {
        match fs::remove_file(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.with_context(|| format!("removing {}", file.display()))?,
        }
        let begin = Instant::now();
        let long = ProcessLimits {
            processor: Duration::from_secs(600),
            clock: Duration::from_secs(600),
            memory_bytes: MEMORY_BYTES,
        };
        let mut command = self.command(&[test]);
        let end = process::run(command.env("FERRY_MUTANTS_REACHED", file), &long)?;
        let name = self.tests.get(test).map_or("", |test| &test.name);
        ensure!(end == ProcessEnd::Success, "{name} fails without any mutant, or can't record in {}", file.display());
        let duration = begin.elapsed();
        let text = match fs::read_to_string(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("reading {}", file.display()))?,
        };
        let numbers = text.lines().map(|line| line.parse().with_context(|| format!("reading {}", file.display())));
        Ok((duration, numbers.collect::<Result<_>>()?))
    }

    /// The tests that reach a mutant, the shortest first.
    pub(crate) fn reaching(&self, mutant: u32) -> &[usize] {
        self.reached.get(&mutant).map(Vec::as_slice).unwrap_or_default()
    }

    /// The programs, in the order in which they were built.
    pub(crate) fn programs(&self) -> &[TestProgram] {
        &self.programs
    }

    /// Those of these tests that are in a program.
    pub(crate) fn of_program(&self, program: usize, tests: &[usize]) -> Vec<usize> {
        let is_in = |test: &usize| self.tests.get(*test).is_some_and(|test| test.program == program);
        tests.iter().copied().filter(is_in).collect()
    }

    /// All tests, the shortest first.
    pub(crate) fn all(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.tests.len()).collect();
        all.sort_by_key(|test| self.duration(*test));
        all
    }

    /// Runs tests with a mutant's switch on, up to the first failure.
    ///
    /// # Errors
    /// If their program can't be started.
    pub(crate) fn run(&self, mutant: u32, tests: &[usize]) -> Result<TrialEnd> {
        let mut rest = tests;
        while !rest.is_empty() {
            let (together, others) = rest.split_at(self.together(rest));
            rest = others;
            let without: Duration = together.iter().map(|test| self.duration(*test)).sum();
            let processor = ANY_TEST + without * SLOWER;
            let limits = ProcessLimits { processor, clock: BY_CLOCK + processor, memory_bytes: MEMORY_BYTES };
            match process::run(self.command(together).env("FERRY_MUTANT", mutant.to_string()), &limits)? {
                ProcessEnd::Success => {}
                ProcessEnd::Failure => return Ok(TrialEnd::Killed),
                ProcessEnd::Limit => return Ok(TrialEnd::TimedOut),
            }
        }
        Ok(TrialEnd::Survived)
    }

    /// How many of these tests one process runs; at least one.
    fn together(&self, tests: &[usize]) -> usize {
        let program = |test: &usize| self.tests.get(*test).map(|test| test.program);
        let first = tests.first().and_then(program);
        let mut sum = Duration::ZERO;
        let fits = |test: &&usize| {
            sum += self.duration(**test);
            program(test) == first && sum <= TOGETHER
        };
        tests.iter().take(MOST_TOGETHER).take_while(fits).count().max(1)
    }

    fn duration(&self, test: usize) -> Duration {
        self.tests.get(test).map_or(Duration::ZERO, |test| test.duration)
    }

    /// The command that runs tests of one program.
    fn command(&self, tests: &[usize]) -> Command {
        let tests: Vec<&TestCase> = tests.iter().filter_map(|test| self.tests.get(*test)).collect();
        let program = tests.first().and_then(|test| self.programs.get(test.program));
        let (executable, folder) =
            program.map_or_else(Default::default, |program| (program.executable.clone(), program.folder.clone()));
        let mut command = Command::new(executable);
        command.current_dir(&folder).env("CARGO_MANIFEST_DIR", &folder);
        command.args(["--exact", "--quiet", "--test-threads", "1"]).args(tests.iter().map(|test| &test.name));
        // Each property is tried with an eighth of its random inputs (`ferry_conformance::property`).
        command.env("FERRY_INPUTS_DIVISOR", "8");
        // The inputs are the same each time, and one that fails is enough.
        command.envs([("PROPTEST_RNG_SEED", "1"), ("PROPTEST_MAX_SHRINK_ITERS", "0")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}
