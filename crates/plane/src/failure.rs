//! Errors of a commit, classified by what the engine does next, and how much of the batch may be in force.

use std::io;

use crate::Op;

/// A refused operation: its list, the index in it, and the kernel's error.
pub type Refusal = (Op, usize, io::Error);

/// An error of the kernel half.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// the actual state differs from the acknowledged state (ENOENT, EEXIST): read back and repair
    #[error("the kernel differs from what was committed: {object}")]
    Drifted {
        /// the object that was missing or in the way
        object: String,
    },
    /// never acceptable (EINVAL, ERANGE …): these operations, each as its list, the index in it and why; an empty list
    /// means one of them, unknown which
    #[error("refused: {}", refusals(.0))]
    Refused(Vec<Refusal>),
    /// an object is in use, or there is no memory, buffer or time for the batch (EBUSY, ENOMEM, ENOBUFS, EMSGSIZE; a tool that
    /// was killed at its deadline or for its memory): later, and in smaller parts if it comes again
    #[error("no resources: {0}")]
    Resources(#[source] io::Error),
    /// later, whatever the batch (EINTR, EAGAIN, a lock that another program holds)
    #[error("busy: {0}")]
    Busy(#[source] io::Error),
    /// not on this machine (EPERM, no such subsystem)
    #[error("not usable here: {0}")]
    Unusable(#[source] io::Error),
}

/// The part of a failed batch that may be in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// none of it
    Nothing,
    /// some operations, from none to all: the actual state of the batch's keys is to be read back before anything else
    Unknown,
}

/// A commit that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CommitFailure {
    /// the cause
    #[source]
    pub error: CommitError,
    /// the part of the batch that may be in force
    pub applied: Applied,
}

// === impl CommitFailure ===

impl CommitFailure {
    /// A commit that failed half-way.
    pub fn unknown(error: CommitError) -> Self {
        Self { error, applied: Applied::Unknown }
    }
}

/// Nothing of the batch is in force.
impl From<CommitError> for CommitFailure {
    fn from(error: CommitError) -> Self {
        Self { error, applied: Applied::Nothing }
    }
}

fn refusals(list: &[Refusal]) -> String {
    match list {
        [] => "the kernel does not say what".to_owned(),
        [(_, _, error)] => error.to_string(),
        [(_, _, error), ..] => format!("{error}, and {} more", list.len() - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn a_refusal_says_what_and_how_many() {
        let named = |number| (Op::Create, 0, io::Error::from_raw_os_error(number));
        let said = |list: Vec<Refusal>| CommitError::Refused(list).to_string();
        assert!(said(Vec::new()).contains("the kernel does not say what"));
        let one = said(vec![named(22)]);
        assert!(one.contains("Invalid argument") && !one.contains("more"), "{one}");
        let three = said(vec![named(22), named(12), named(12)]);
        assert!(three.contains("Invalid argument") && three.contains(", and 2 more"), "{three}");
    }
}
