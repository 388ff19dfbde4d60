//! Tries each mutant that has a switch: runs the tests that reach it until one fails.

use crate::build::{Build, Standing};
use crate::catalogue::Mutant;
use crate::parallel;
use crate::suite::{Suite, TrialEnd};
use anyhow::Result;
use std::collections::BTreeMap;

/// The ends of the trials, by the mutants' numbers.
pub(crate) type TrialEnds = BTreeMap<u32, TrialEnd>;

/// Tries the mutants.
///
/// # Errors
/// If a test can't be started.
pub(crate) fn run(mutants: &[Mutant], build: &Build<'_>, suite: &Suite) -> Result<TrialEnds> {
    let switched: Vec<u32> = mutants
        .iter()
        .filter(|mutant| build.standing(mutant) == Standing::Switched)
        .map(|mutant| mutant.number)
        .collect();
    let ends = parallel::map(&switched, |_, &mutant| Ok((mutant, suite.run(mutant, suite.reaching(mutant))?)));
    ends.into_iter().collect()
}
