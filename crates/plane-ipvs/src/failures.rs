//! Maps the kernel's refusals of single requests, of a batch that is not atomic, to the engine's commit errors.

use std::io;

use ferry_kernel::errno::ErrorClass;
use ferry_plane::{CommitError, CommitFailure, Op, Refusal};

/// Collects the refusals of one commit.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    unusable: Option<io::Error>,
    busy: Option<io::Error>,
    resources: Option<io::Error>,
    refused: Vec<Refusal>,
    drifted: Option<String>,
}

impl Failures {
    /// Adds a refusal. `text` describes what was refused.
    pub(crate) fn add(&mut self, (op, index): (Op, usize), error: &io::Error, text: impl FnOnce() -> String) {
        match ErrorClass::of(error) {
            ErrorClass::Denied | ErrorClass::Unsupported => self.unusable = Some(explained(error, text())),
            ErrorClass::Transient => self.busy = Some(explained(error, text())),
            ErrorClass::Short | ErrorClass::InUse => self.resources = Some(explained(error, text())),
            ErrorClass::Missing | ErrorClass::Exists => self.drift(text),
            ErrorClass::Invalid | ErrorClass::Other => self.refused.push((op, index, explained(error, text()))),
        }
    }

    /// Adds an object that was missing, or in the way.
    pub(crate) fn drift(&mut self, text: impl FnOnce() -> String) {
        self.drifted.get_or_insert_with(text);
    }

    /// Adds an operation that can't succeed for a reason that no error number names.
    pub(crate) fn refuse(&mut self, (op, index): (Op, usize), text: String) {
        self.refused.push((op, index, io::Error::other(text)));
    }

    /// The result of the commit, some of which is in force. A refused request makes later ones fail, since what they refer to is
    /// missing then: refusals take precedence over missing objects.
    pub(crate) fn result(self) -> Result<(), CommitFailure> {
        let error = if let Some(error) = self.unusable {
            CommitError::Unusable(error)
        } else if let Some(error) = self.busy {
            CommitError::Busy(error)
        } else if let Some(error) = self.resources {
            CommitError::Resources(error)
        } else if !self.refused.is_empty() {
            CommitError::Refused(self.refused)
        } else if let Some(object) = self.drifted {
            CommitError::Drifted { object }
        } else {
            return Ok(());
        };
        Err(CommitFailure::unknown(error))
    }
}

fn explained(error: &io::Error, text: String) -> io::Error {
    io::Error::new(error.kind(), format!("{text}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(numbers: &[i32]) -> Result<(), CommitFailure> {
        let mut failures = Failures::default();
        for (index, number) in numbers.iter().enumerate() {
            failures.add((Op::Create, index), &io::Error::from_raw_os_error(*number), || format!("object {index}"));
        }
        failures.result()
    }

    #[test]
    fn the_gravest_error_decides_and_some_of_the_batch_is_in_force() {
        const EPERM: i32 = 1;
        const ENOENT: i32 = 2;
        const EAGAIN: i32 = 11;
        const ENOMEM: i32 = 12;
        const EINVAL: i32 = 22;
        assert!(result(&[]).is_ok());
        let all = [ENOENT, EINVAL, ENOMEM, EAGAIN, EPERM];
        for (last, name) in ["Drifted", "Refused", "Resources", "Busy", "Unusable"].into_iter().enumerate() {
            let failure = result(&all[..=last]).unwrap_err();
            assert_eq!(failure.applied, ferry_plane::Applied::Unknown);
            assert!(format!("{:?}", failure.error).starts_with(name), "{failure:?}");
        }
        let refused = result(&[EINVAL, ENOENT, EINVAL]).unwrap_err().error;
        let CommitError::Refused(refusals) = refused else { panic!("{refused:?}") };
        assert_eq!(refusals.iter().map(|(_, index, _)| *index).collect::<Vec<_>>(), [0, 2]);
        assert!(refusals[1].2.to_string().starts_with("object 2: "), "{refusals:?}");
    }

    #[test]
    fn what_is_in_use_waits_for_resources() {
        const EBUSY: i32 = 16;
        const EINVAL: i32 = 22;
        // The engine tries again, and if that recurs lets only the service wait that has the object.
        let failure = result(&[EBUSY, EINVAL]).unwrap_err();
        assert!(matches!(failure.error, CommitError::Resources(_)), "{failure:?}");
        assert!(failure.error.to_string().contains("object 0: "), "{failure:?}");
    }
}
