//! The limit of file descriptors: raising it, and what its exhaustion looks like.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit of open files (`RLIMIT_NOFILE`) to `wanted`, or as far towards it as the hard limit and the
/// privileges allow. Never lowers it. Returns the limit in force; `u64::MAX` if there is none.
pub fn raise_limit(wanted: u64) -> u64 {
    let before = getrlimit(Resource::Nofile);
    let reaches = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if !reaches(before.current) {
        let maximum = if reaches(before.maximum) { before.maximum } else { Some(wanted) };
        // A higher hard limit takes CAP_SYS_RESOURCE; without it the present one is the best there is.
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
        if raised.is_err() && before.current != before.maximum {
            let to_maximum = Rlimit { current: before.maximum, maximum: before.maximum };
            if let Err(error) = setrlimit(Resource::Nofile, to_maximum) {
                tracing::warn!(%error, wanted, "cannot raise the limit of open files");
            }
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// True if a call failed because descriptors, memory for sockets, or local ports (`ip_local_port_range`) are used up: a pause helps,
/// another endpoint doesn't.
pub(crate) fn are_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRINUSE, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(error).is_some_and(|errno| exhausted.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let before = raise_limit(0);
        assert_eq!(raise_limit(16), before);
        assert!(raise_limit(before.saturating_add(1)) >= before);
    }
}
