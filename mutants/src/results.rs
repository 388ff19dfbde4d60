//! The results of a package's mutants, and the survivors that are accepted.
//!
//! Survivors that can't be killed, since they change no observable behaviour, are listed with their reasons in a file, and count
//! neither as killed nor as survivors.

use crate::catalogue::Mutant;
use crate::suite::TrialEnd;
use crate::trial::TrialEnds;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

/// File of accepted survivors: `PATH: MUTANT // REASON`, one line each.
pub(crate) const ACCEPTED: &str = "docs/surviving-mutants.txt";

/// Number of accepted survivors by description, minus those found so far.
#[derive(Debug, Default)]
pub(crate) struct Accepted(BTreeMap<String, usize>);

/// Results of a package's mutants; those that don't compile are in none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MutantResults {
    killed: usize,
    /// mutants whose tests timed out, which counts as killed
    timed_out: usize,
    /// names of the survivors, except accepted ones
    survived: Vec<String>,
    accepted: usize,
}

// === impl Accepted ===

impl Accepted {
    /// Parses the text of the file.
    ///
    /// # Errors
    /// If a line has no reason.
    pub(crate) fn parse(text: &str) -> Result<Self> {
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
    fn accept(&mut self, mutant: &Mutant) -> bool {
        let Some(left) = self.0.get_mut(&mutant.description()).filter(|left| **left > 0) else { return false };
        *left -= 1;
        true
    }

    /// The faults of lines for files below this folder that no survivor used.
    pub(crate) fn unused(&self, folder: &str) -> Vec<String> {
        let of_folder = |mutant: &str| mutant.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        let left = self.0.iter().filter(|(mutant, left)| **left > 0 && of_folder(mutant));
        left.map(|(mutant, _)| format!("{ACCEPTED}: no such survivor: {mutant}")).collect()
    }
}

// === impl MutantResults ===

impl MutantResults {
    /// Sorts the mutants by the ends of their trials.
    pub(crate) fn of(mutants: &[Mutant], ends: &TrialEnds, accepted: &mut Accepted) -> Self {
        let mut results = Self::default();
        for mutant in mutants {
            match ends.get(&mutant.number) {
                Some(TrialEnd::Killed) => results.killed += 1,
                Some(TrialEnd::TimedOut) => results.timed_out += 1,
                Some(TrialEnd::Survived) if accepted.accept(mutant) => results.accepted += 1,
                Some(TrialEnd::Survived) => results.survived.push(mutant.name.clone()),
                None => {} // it doesn't compile
            }
        }
        results
    }

    /// The share of killed mutants in percent, rounded down; 100 without mutants.
    pub(crate) fn per_cent(&self) -> usize {
        let noticed = self.killed + self.timed_out;
        (noticed * 100).checked_div(noticed + self.survived.len()).unwrap_or(100)
    }

    /// Prints the survivors and the numbers.
    pub(crate) fn print(&self, package: &str) {
        let Self { killed, timed_out, survived, accepted } = self;
        for mutant in survived {
            println!("survived: {mutant}");
        }
        let (share, survived) = (self.per_cent(), survived.len());
        println!(
            "{package}: {share} % ({killed} killed, {timed_out} timed out, {survived} survived, {accepted} accepted)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(number: u32, name: &str) -> Mutant {
        let text = format!(
            r#"{{"number": {number}, "name": "{name}", "file": "a.rs", "genre": "FnValue", "replacement": "", "function": null,
            "span": {{"start": {{"line": 1, "column": 1}}, "end": {{"line": 1, "column": 1}}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn each_line_accepts_one_survivor_wherever_it_stands() {
        let text = "# why\n\ncrates/a/src/b.rs: replace + with - in f // the sum is never used\n";
        let mut accepted = Accepted::parse(text).unwrap();
        let ends = |end, numbers: &[u32]| numbers.iter().map(|number| (*number, end)).collect::<TrialEnds>();
        let mutants = [
            mutant(1, "crates/a/src/b.rs:1:2: replace + with * in f"),
            mutant(2, "crates/a/src/b.rs:12:34: replace + with - in f"),
            mutant(3, "crates/a/src/b.rs:13:34: replace + with - in f"),
        ];
        assert_eq!(accepted.unused("crates/a/src").len(), 1);
        assert_eq!(accepted.unused("crates/b/src"), [""; 0], "another folder");
        let results = MutantResults::of(&mutants, &ends(TrialEnd::Survived, &[1, 2, 3]), &mut accepted);
        assert_eq!(results.accepted, 1);
        assert_eq!(results.survived, [mutants[0].name.clone(), mutants[2].name.clone()], "a second one is new");
        assert_eq!(accepted.unused("crates/a/src"), [""; 0]);
        assert!(Accepted::parse("crates/a/src/b.rs: replace + with - in f").is_err());
        assert!(Accepted::parse("crates/a/src/b.rs: replace + with - in f //  ").is_err());
    }

    #[test]
    fn timeouts_are_noticed_and_accepted_survivors_count_neither_way() {
        let of = |killed, timed_out, survived: usize| MutantResults {
            killed,
            timed_out,
            survived: vec![String::new(); survived],
            accepted: 7,
        };
        assert_eq!(of(8, 1, 1).per_cent(), 90);
        assert_eq!(of(889, 10, 101).per_cent(), 89);
        assert_eq!(of(0, 0, 0).per_cent(), 100);
    }
}
