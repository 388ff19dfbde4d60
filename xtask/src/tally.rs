//! Counts checks and tests, and records the time of each step, and what failed.

use anyhow::Result;
use std::iter::Sum;
use std::time::Instant;

/// Test binaries that take at least this long are in the list of steps.
const WORTH_A_LINE_SECONDS: f64 = 10.0;

/// Counts of one binary's tests, from its summary line.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
}

/// The output of test binaries, read line by line.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// one for each binary that has ended
    pub(crate) summaries: Vec<Counts>,
    /// names of their failed tests
    pub(crate) failed: Vec<String>,
    /// the last list of failed tests of the binary that is read, if it has printed one
    listed: Option<Vec<String>>,
}

/// Totals of checks and tests so far.
#[derive(Debug, Default)]
pub(crate) struct CheckTally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    steps: Vec<String>,
    failures: Vec<String>,
}

// === impl Counts ===

impl Counts {
    /// Parses the summary line of a test binary; `None` for any other line.
    fn of_summary(line: &str) -> Option<Self> {
        let summary = line.strip_prefix("test result: ")?;
        let before = |word| number_before(summary, word);
        Some(Self { passed: before("passed"), failed: before("failed"), ignored: before("ignored") })
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, one| Self {
            passed: sum.passed + one.passed,
            failed: sum.failed + one.failed,
            ignored: sum.ignored + one.ignored,
        })
    }
}

/// The number before a word, as in `ok. 12 passed; 0 failed; …`; 0 if there is none.
fn number_before(summary: &str, word: &str) -> usize {
    let words: Vec<_> = summary.split([' ', ';']).collect();
    words
        .windows(2)
        .find_map(|pair| if pair.last() == Some(&word) { pair.first()?.parse().ok() } else { None })
        .unwrap_or(0)
}

// === impl Output ===

impl Output {
    /// Reads the next line.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(counts) = Counts::of_summary(line) {
            self.summaries.push(counts);
            self.failed.extend(self.listed.take().unwrap_or_default());
        } else if line == "failures:" {
            // The last list counts: the outputs of failed tests have the same heading.
            self.listed = Some(Vec::new());
        } else if let (Some(listed), Some(name)) = (&mut self.listed, line.strip_prefix("    ")) {
            listed.push(name.to_owned());
        }
    }

    /// The counts of all binaries that have ended.
    pub(crate) fn counts(&self) -> Counts {
        self.summaries.iter().copied().sum()
    }
}

// === impl CheckTally ===

impl CheckTally {
    /// Runs one step that counts as one check. A failure is printed and does not stop the others.
    pub(crate) fn check(&mut self, name: &str, step: impl FnOnce() -> Result<()>) {
        self.step(name, |tally| match step() {
            Ok(()) => {
                tally.passed += 1;
                Ok(())
            }
            Err(error) => Err(error),
        });
    }

    /// Runs one step that adds its own counts; an error counts as one more failure.
    pub(crate) fn step(&mut self, name: &str, step: impl FnOnce(&mut Self) -> Result<()>) {
        println!("== {name}");
        let (start, before) = (Instant::now(), self.failed);
        if let Err(error) = step(self) {
            println!("{name}: {error:#}");
            self.fail(format!("{name}: {error:#}"));
        }
        self.list(name, start.elapsed().as_secs_f64(), self.failed > before);
    }

    /// Counts a failure, which is printed again at the end.
    pub(crate) fn fail(&mut self, failure: String) {
        self.failed += 1;
        self.failures.push(failure);
    }

    /// Adds tests: the counts of binaries, and the names of those that failed.
    pub(crate) fn add_tests(&mut self, of: &str, counts: Counts, failed: &[String]) {
        self.passed += counts.passed;
        self.failed += counts.failed;
        self.failures.extend(failed.iter().map(|test| format!("{of}: {test}")));
    }

    /// Adds the tests of one binary, as a part of a step.
    pub(crate) fn add(&mut self, name: &str, seconds: f64, counts: Counts, failed: &[String]) {
        self.add_tests(name, counts, failed);
        if counts.ignored > 0 {
            println!("{name}: {} tests are ignored", counts.ignored);
        }
        if counts.failed > 0 || seconds >= WORTH_A_LINE_SECONDS {
            self.list(&format!("  {name}"), seconds, counts.failed > 0);
        }
    }

    fn list(&mut self, name: &str, seconds: f64, failed: bool) {
        let word = if failed { "FAILED" } else { "ok" };
        self.steps.push(format!("{seconds:>7.1} s  {word:<6}  {name}"));
    }

    /// Prints the time and the outcome of each step, and what failed: the end of a long output is what a reader sees first.
    pub(crate) fn print_steps(&self) {
        if !self.steps.is_empty() {
            println!("== steps");
        }
        for step in &self.steps {
            println!("{step}");
        }
        if !self.failures.is_empty() {
            println!("== failures");
        }
        for failure in &self.failures {
            println!("{failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read_and_added_up() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s";
        let counts = Counts { passed: 12, failed: 3, ignored: 1 };
        assert_eq!(Counts::of_summary(line), Some(counts));
        assert_eq!(Counts::of_summary("test result of another kind"), None);
        assert_eq!(number_before("no numbers", "passed"), 0);
        assert_eq!([counts, counts].into_iter().sum::<Counts>(), Counts { passed: 24, failed: 6, ignored: 2 });
    }

    #[test]
    fn slow_and_failed_binaries_stand_among_the_steps() {
        let mut tally = CheckTally::default();
        tally.add("quick", 1.0, Counts { passed: 2, ..Counts::default() }, &[]);
        tally.add("slow", 20.0, Counts { passed: 1, ..Counts::default() }, &[]);
        tally.add("failed", 1.0, Counts { failed: 1, ..Counts::default() }, &["one::test".to_owned()]);
        tally.check("step", || anyhow::bail!("no tool"));
        assert_eq!((tally.passed, tally.failed), (3, 2));
        assert_eq!(tally.steps[..2], ["   20.0 s  ok        slow", "    1.0 s  FAILED    failed"]);
        assert_eq!(tally.failures, ["failed: one::test", "step: no tool"]);
    }

    #[test]
    fn failed_tests_are_read_from_the_list_at_the_end() {
        let text = "\
running 3 tests
test one::a ... FAILED
test one::b ... FAILED
test one::c ... ok

failures:

---- one::a stdout ----
    indented output
failures:

failures:
    one::a
    one::b

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 1 test
    not a name
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let mut output = Output::default();
        text.lines().for_each(|line| output.read(line));
        assert_eq!(output.failed, ["one::a", "one::b"]);
        assert_eq!(output.summaries.len(), 2);
        assert_eq!(output.counts(), Counts { passed: 2, failed: 2, ignored: 0 });
    }
}
