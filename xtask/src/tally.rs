//! Counting what passed, with the time each step took.

use anyhow::Result;
use std::time::Instant;

/// Checks and tests so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    steps: Vec<String>,
}

impl Tally {
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

    /// Runs one step that does its own counting; an error counts as one more failure.
    pub(crate) fn step(&mut self, name: &str, step: impl FnOnce(&mut Self) -> Result<()>) {
        println!("== {name}");
        let (start, before) = (Instant::now(), self.failed);
        if let Err(error) = step(self) {
            self.failed += 1;
            println!("{name}: {error:#}");
        }
        let word = if self.failed == before { "ok" } else { "FAILED" };
        self.steps.push(format!("{:>7.1} s  {word:<6}  {name}", start.elapsed().as_secs_f64()));
    }

    /// The time and the outcome of each step.
    pub(crate) fn print_steps(&self) {
        println!("== steps");
        for step in &self.steps {
            println!("{step}");
        }
    }
}
