//! Maps the kernel's errors for a transaction to the engine's commit errors.

use std::io;

use ferry_kernel::errno::ErrorClass;
use ferry_kernel::nft;
use ferry_plane::{Batch, CommitError, CommitFailure, Object, Op};

use crate::marks::Marks;

/// Maps an error of the socket, which concerns the whole transaction.
pub fn of_io(error: io::Error) -> CommitError {
    match ErrorClass::of(&error) {
        ErrorClass::Denied | ErrorClass::Unsupported => CommitError::Unusable(error),
        ErrorClass::Short => CommitError::Resources(error),
        _ => CommitError::Busy(error),
    }
}

/// Maps a failed transaction to the engine's error. A refused operation makes later ones fail, since its object is missing then:
/// refusals take precedence over missing objects.
pub fn verdict<O: Object>(failure: nft::CommitFailure, marks: &Marks, objects: &Batch<O>) -> CommitFailure {
    match failure {
        nft::CommitFailure::Io(error) => of_io(error).into(),
        nft::CommitFailure::Lost(error) => CommitFailure::unknown(of_io(error)),
        nft::CommitFailure::Messages(errors) => of_messages(&errors, marks, objects).into(),
    }
}

fn of_messages<O: Object>(errors: &[nft::BatchError], marks: &Marks, objects: &Batch<O>) -> CommitError {
    if let Some(error) = errors.iter().find(|error| error.class() == ErrorClass::Denied) {
        return CommitError::Unusable(copy(error));
    }
    if let Some(error) = errors.iter().find(|error| error.class() == ErrorClass::Transient) {
        return CommitError::Busy(copy(error));
    }
    if let Some(error) = errors.iter().find(|error| error.class().is_temporary()) {
        return CommitError::Resources(copy(error));
    }
    let refused: Vec<&nft::BatchError> =
        errors.iter().filter(|error| !matches!(error.class(), ErrorClass::Missing | ErrorClass::Exists)).collect();
    if refused.is_empty() {
        let first = errors.first().and_then(|error| marks.operations(error).first().copied());
        let object = first.and_then(|(op, index)| object_of(objects, op, index)).map(|object| object.key().to_string());
        return CommitError::Drifted { object: object.unwrap_or_else(|| "the table".to_owned()) };
    }
    let mut refusals = Vec::new();
    for error in refused {
        let operations = marks.operations(error);
        if operations.len() != 1 {
            // The error names a message of many elements, and not the element.
            return CommitError::Refused(Vec::new());
        }
        refusals.extend(operations.into_iter().map(|(op, index)| (op, index, copy(error))));
    }
    CommitError::Refused(refusals)
}

fn object_of<O>(objects: &Batch<O>, op: Op, index: usize) -> Option<&O> {
    match op {
        Op::Create => objects.create.get(index),
        Op::Replace => objects.replace.get(index),
        Op::Delete => objects.delete.get(index),
    }
}

/// The kernel's error with its extended error text, if it sent one.
fn copy(error: &nft::BatchError) -> io::Error {
    io::Error::new(error.error.error.kind(), error.error.to_string())
}
