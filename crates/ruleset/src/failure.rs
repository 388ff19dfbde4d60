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

#[cfg(test)]
mod tests {
    use std::fmt;

    use ferry_kernel::netlink::MessageError;
    use ferry_kernel::nft::BatchError;
    use ferry_plane::Applied;

    use super::*;

    // `EPERM`, `ENOENT`, `EINTR`, `ENOMEM`, `EBUSY`, `EEXIST`, `EINVAL`, `EOPNOTSUPP`.
    const DENIED: i32 = 1;
    const MISSING: i32 = 2;
    const INTERRUPTED: i32 = 4;
    const SHORT: i32 = 12;
    const IN_USE: i32 = 16;
    const EXISTS: i32 = 17;
    const INVALID: i32 = 22;
    const UNSUPPORTED: i32 = 95;

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Chain(&'static str);

    impl fmt::Display for Chain {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Object for Chain {
        type Key = &'static str;
        type Shared = u8;

        fn key(&self) -> &'static str {
            self.0
        }

        fn rank(&self) -> u8 {
            0
        }
    }

    fn class(error: &CommitError) -> &'static str {
        match error {
            CommitError::Drifted { .. } => "drifted",
            CommitError::Refused(_) => "refused",
            CommitError::Resources(_) => "resources",
            CommitError::Busy(_) => "busy",
            CommitError::Unusable(_) => "unusable",
        }
    }

    /// The verdict about a batch of four operations at the positions 0, 10, 20 and 30, with these errors at these positions.
    fn judged(errors: &[(i32, usize)]) -> CommitError {
        let objects =
            Batch { create: vec![Chain("a"), Chain("b")], replace: vec![Chain("c")], delete: vec![Chain("d")] };
        let mut marks = Marks::default();
        for (position, op, index) in
            [(0, Op::Create, 0), (10, Op::Create, 1), (20, Op::Replace, 0), (30, Op::Delete, 0)]
        {
            marks.record(position, op, index);
        }
        let error = |&(number, position)| {
            let error =
                MessageError { sequence: 1, offset: Some(1), error: io::Error::from_raw_os_error(number), text: None };
            BatchError { position, message_start: 0, message_end: 40, error }
        };
        let messages = nft::CommitFailure::Messages(errors.iter().map(error).collect());
        let failure = verdict(messages, &marks, &objects);
        assert_eq!(failure.applied, Applied::Nothing);
        failure.error
    }

    #[test]
    fn an_error_of_the_socket_is_classed_by_what_helps() {
        let of = |number| class(&of_io(io::Error::from_raw_os_error(number)));
        assert_eq!([DENIED, UNSUPPORTED].map(of), ["unusable"; 2]);
        assert_eq!(of(SHORT), "resources");
        assert_eq!([INTERRUPTED, IN_USE, INVALID].map(of), ["busy"; 3]);
    }

    #[test]
    fn an_answer_that_is_lost_leaves_the_state_unknown() {
        let of = |failure| verdict::<Chain>(failure, &Marks::default(), &Batch::default());
        let short = || io::Error::from_raw_os_error(SHORT);
        let (sent, lost) = (of(nft::CommitFailure::Io(short())), of(nft::CommitFailure::Lost(short())));
        assert_eq!((sent.applied, lost.applied), (Applied::Nothing, Applied::Unknown));
        assert_eq!([class(&sent.error), class(&lost.error)], ["resources"; 2]);
    }

    #[test]
    fn what_concerns_the_whole_batch_comes_before_refusals() {
        let first = |number| class(&judged(&[(INVALID, 0), (MISSING, 10), (number, 20)]));
        assert_eq!([DENIED, INTERRUPTED, SHORT, IN_USE].map(first), ["unusable", "busy", "resources", "resources"]);
        assert_eq!(class(&judged(&[(SHORT, 0), (INTERRUPTED, 10), (DENIED, 20)])), "unusable");
        assert_eq!(class(&judged(&[(SHORT, 0), (INTERRUPTED, 10)])), "busy");
    }

    #[test]
    fn what_is_missing_or_there_already_is_drift_and_is_named() {
        let drifted = |errors: &[(i32, usize)]| match judged(errors) {
            CommitError::Drifted { object } => object,
            other => panic!("{other}"),
        };
        let at = [0, 15, 20, 30].map(|position| drifted(&[(MISSING, position)]));
        assert_eq!(at, ["a", "b", "c", "d"]);
        assert_eq!(drifted(&[(EXISTS, 20), (MISSING, 0)]), "c", "the first one");
        assert_eq!(drifted(&[]), "the table");
    }

    #[test]
    fn refused_operations_are_told_from_those_that_fail_with_them() {
        let refused = |errors: &[(i32, usize)]| match judged(errors) {
            CommitError::Refused(refusals) => {
                refusals.into_iter().map(|(op, index, _)| (op, index)).collect::<Vec<_>>()
            }
            other => panic!("{other}"),
        };
        assert_eq!(refused(&[(INVALID, 10), (MISSING, 20), (EXISTS, 0)]), [(Op::Create, 1)]);
        assert_eq!(refused(&[(INVALID, 20), (UNSUPPORTED, 30)]), [(Op::Replace, 0), (Op::Delete, 0)]);
    }

    #[test]
    fn an_error_of_a_message_of_several_operations_names_none() {
        let objects = Batch { create: vec![Chain("a"), Chain("b")], ..Batch::default() };
        let mut marks = Marks::default();
        marks.record(0, Op::Create, 0);
        marks.record(10, Op::Create, 1);
        let error =
            MessageError { sequence: 1, offset: None, error: io::Error::from_raw_os_error(INVALID), text: None };
        let error = BatchError { position: 0, message_start: 0, message_end: 20, error };
        let failure = verdict(nft::CommitFailure::Messages(vec![error]), &marks, &objects);
        assert!(matches!(&failure.error, CommitError::Refused(refusals) if refusals.is_empty()), "{failure}");
    }
}
