//! Tries the mutants that don't compile beside others, such as those in constant functions: each in a build of its own.

use crate::build::{Build, Standing};
use crate::catalogue::Mutant;
use crate::suite::{Suite, TrialEnd};
use crate::switches::LineIndex;
use crate::tree::Tree;
use crate::trial::TrialEnds;
use anyhow::Result;

/// Tries the mutants. One that doesn't compile has no end.
///
/// # Errors
/// If a file can't be written, or a test can't be started.
pub(crate) fn run(tree: &Tree, mutants: &[Mutant], build: &Build<'_>, suite: &Suite) -> Result<TrialEnds> {
    let mut ends = TrialEnds::new();
    for mutant in mutants.iter().filter(|mutant| build.standing(mutant) == Standing::Alone) {
        tree.write(&mutant.file, &mutated(&tree.source(&mutant.file)?, mutant))?;
        ends.extend(end_of(mutant, build, suite)?.map(|end| (mutant.number, end)));
        build.restore(&mutant.file)?;
    }
    Ok(ends)
}

/// Builds and runs the tests of one program after another, until one fails; `None` if the mutant doesn't compile.
fn end_of(mutant: &Mutant, build: &Build<'_>, suite: &Suite) -> Result<Option<TrialEnd>> {
    let reaching = suite.reaching(mutant.number);
    // A mutant without a switch, as in a constant function, may be reached by any test.
    let tests = if reaching.is_empty() { suite.all() } else { reaching.to_vec() };
    for (index, program) in suite.programs().iter().enumerate() {
        let tests = suite.of_program(index, &tests);
        // The first one shows whether the mutant compiles.
        if tests.is_empty() && index > 0 {
            continue;
        }
        if !build.rebuild(program)? {
            return Ok(None);
        }
        match suite.run(0, &tests)? {
            TrialEnd::Survived => {}
            end => return Ok(Some(end)),
        }
    }
    Ok(Some(TrialEnd::Survived))
}

/// The source with a mutant's text in place of its own.
pub(crate) fn mutated(source: &str, mutant: &Mutant) -> String {
    let place = LineIndex::new(source).range(mutant);
    let (before, after) = (source.get(..place.start).unwrap_or_default(), source.get(place.end..).unwrap_or_default());
    format!("{before}{}{after}", mutant.replacement)
}
