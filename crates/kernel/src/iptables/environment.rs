//! Where the tools are found, and how long they may take.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{Access, access};

/// The default lock file.
const LOCK_FILE: &str = "/run/xtables.lock";

/// The environment variable that names another lock file, also read by the tool.
pub(super) const LOCK_FILE_VARIABLE: &str = "XTABLES_LOCKFILE";

/// The environment of runs, besides the network namespace.
#[derive(Clone, Debug)]
pub struct Environment {
    /// search path of programs: absolute directories, separated by `:`
    pub path: OsString,
    /// the file that is locked while the legacy variant writes
    pub lock_file: PathBuf,
    /// maximum wait for the lock
    pub lock_wait: Duration,
    /// maximum time of a run, regardless of its output; each byte of input extends it by 5 µs
    pub run_time: Duration,
}

// === impl Environment ===

impl Environment {
    /// The environment of this process: `PATH` and `XTABLES_LOCKFILE`, by default `/run/xtables.lock`. The wait for the lock is
    /// at most 5 s, a run at most 60 s plus the extension for its input.
    pub fn of_process() -> Self {
        let lock_file = std::env::var_os(LOCK_FILE_VARIABLE).filter(|name| !name.is_empty());
        Self {
            path: std::env::var_os("PATH").unwrap_or_default(),
            lock_file: lock_file.map_or_else(|| LOCK_FILE.into(), PathBuf::from),
            lock_wait: Duration::from_secs(5),
            run_time: Duration::from_secs(60),
        }
    }

    /// Finds the program of that name. Relative directories are ignored.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        let folders = std::env::split_paths(&self.path).filter(|folder| folder.is_absolute());
        folders.map(|folder| folder.join(name)).find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
    }
}
