//! Classifies error numbers of system calls and of netlink answers by what the caller can do next.

use std::io;

use crate::netlink::{MessageError, Unanswered};

/// Classes of kernel errors, by the caller's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// no permission: `EPERM`, `EACCES`
    Denied,
    /// this kernel lacks the subsystem or the operation: `EOPNOTSUPP`, `EPROTONOSUPPORT`, `EAFNOSUPPORT`, `ENOSYS`
    Unsupported,
    /// this kernel does not understand the request: `EINVAL`, also nfnetlink's answer if it lacks a subsystem
    Invalid,
    /// goes away on a retry: `EINTR`, `EAGAIN`, `ERESTART`, a missing answer
    Transient,
    /// memory or buffer space is short, for the moment or for this request: `ENOMEM`, `ENOBUFS`, `EMSGSIZE`
    Short,
    /// the object is in use: `EBUSY`
    InUse,
    /// no such object: `ENOENT`, `ESRCH`
    Missing,
    /// the object exists: `EEXIST`
    Exists,
    /// the request itself was refused, or any other error
    Other,
}

// === impl ErrorClass ===

impl ErrorClass {
    /// Classifies an error by its number, also that of an inner [`MessageError`]; by its kind if it has none.
    pub fn of(error: &io::Error) -> Self {
        if let Some(refusal) = inner::<MessageError>(error) {
            return Self::of(&refusal.error);
        }
        match error.raw_os_error() {
            Some(number) => Self::of_number(number),
            None if inner::<Unanswered>(error).is_some() => Self::Transient,
            None => Self::of_kind(error.kind()),
        }
    }

    /// True if the subsystem cannot be used at all: no permission, or absent from this kernel.
    pub const fn is_unusable(self) -> bool {
        matches!(self, Self::Denied | Self::Unsupported)
    }

    /// True if the same request may succeed later.
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::Transient | Self::Short | Self::InUse)
    }

    /// True if the kernel lacks the subsystem (not built, or module not loaded), as an answer to a request that is valid on
    /// other kernels.
    pub const fn lacks_subsystem(self) -> bool {
        matches!(self, Self::Unsupported | Self::Invalid)
    }

    const fn of_number(number: i32) -> Self {
        match number {
            libc::EPERM | libc::EACCES => Self::Denied,
            libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::ENOSYS => Self::Unsupported,
            libc::EINVAL => Self::Invalid,
            libc::EINTR | libc::EAGAIN | libc::ERESTART => Self::Transient,
            libc::ENOMEM | libc::ENOBUFS | libc::EMSGSIZE => Self::Short,
            libc::EBUSY => Self::InUse,
            libc::ENOENT | libc::ESRCH => Self::Missing,
            libc::EEXIST => Self::Exists,
            _ => Self::Other,
        }
    }

    /// Classifies errors that this process created.
    const fn of_kind(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::PermissionDenied => Self::Denied,
            io::ErrorKind::Unsupported => Self::Unsupported,
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Self::Transient,
            io::ErrorKind::OutOfMemory => Self::Short,
            io::ErrorKind::ResourceBusy => Self::InUse,
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::AlreadyExists => Self::Exists,
            _ => Self::Other,
        }
    }
}

/// The error number, also that of an inner [`MessageError`], whose text hides it from [`io::Error::raw_os_error`].
pub fn number(error: &io::Error) -> Option<i32> {
    match inner::<MessageError>(error) {
        Some(refusal) => refusal.error.raw_os_error(),
        None => error.raw_os_error(),
    }
}

fn inner<E: std::error::Error + 'static>(error: &io::Error) -> Option<&E> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_class() {
        use ErrorClass::{Denied, Exists, InUse, Invalid, Missing, Other, Short, Transient, Unsupported};
        for (class, numbers) in [
            (Denied, &[libc::EPERM, libc::EACCES][..]),
            (Unsupported, &[libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::EAFNOSUPPORT, libc::ENOSYS]),
            (Invalid, &[libc::EINVAL]),
            (Transient, &[libc::EINTR, libc::EAGAIN, libc::ERESTART]),
            (Short, &[libc::ENOMEM, libc::ENOBUFS, libc::EMSGSIZE]),
            (InUse, &[libc::EBUSY]),
            (Missing, &[libc::ENOENT, libc::ESRCH]),
            (Exists, &[libc::EEXIST]),
            (Other, &[libc::ERANGE, libc::ELOOP, libc::EMLINK, libc::ENODEV, 0, -1]),
        ] {
            for number in numbers {
                let error = io::Error::from_raw_os_error(*number);
                assert_eq!(ErrorClass::of(&error), class, "{error}");
                assert_eq!(class.is_unusable(), matches!(class, Denied | Unsupported));
                assert_eq!(class.is_temporary(), matches!(class, Transient | Short | InUse));
                assert_eq!(class.lacks_subsystem(), matches!(class, Invalid | Unsupported));
            }
        }
    }

    #[test]
    fn the_text_of_an_extended_acknowledgement_does_not_hide_the_number() {
        for (number, class) in [(libc::ENOBUFS, ErrorClass::Short), (libc::ENOENT, ErrorClass::Missing)] {
            for text in [None, Some("of the kernel".to_owned())] {
                let error = io::Error::from_raw_os_error(number);
                let error = io::Error::from(MessageError { sequence: 1, offset: None, error, text });
                assert_eq!((ErrorClass::of(&error), super::number(&error)), (class, Some(number)));
            }
        }
    }

    #[test]
    fn errors_without_a_number_are_classified_by_kind() {
        for (kind, class) in [
            (io::ErrorKind::PermissionDenied, ErrorClass::Denied),
            (io::ErrorKind::Unsupported, ErrorClass::Unsupported),
            (io::ErrorKind::Interrupted, ErrorClass::Transient),
            (io::ErrorKind::WouldBlock, ErrorClass::Transient),
            (io::ErrorKind::OutOfMemory, ErrorClass::Short),
            (io::ErrorKind::ResourceBusy, ErrorClass::InUse),
            (io::ErrorKind::NotFound, ErrorClass::Missing),
            (io::ErrorKind::AlreadyExists, ErrorClass::Exists),
            (io::ErrorKind::InvalidInput, ErrorClass::Other),
            (io::ErrorKind::InvalidData, ErrorClass::Other),
        ] {
            assert_eq!(ErrorClass::of(&kind.into()), class, "{kind}");
            assert_eq!(ErrorClass::of(&io::Error::new(kind, "words")), class, "{kind}");
        }
        assert_eq!(ErrorClass::of(&Unanswered.into()), ErrorClass::Transient);
    }
}
