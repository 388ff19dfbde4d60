//! Notifications of changes in a directory.

use std::ffi::OsString;

/// Notification of a change.
#[derive(Debug, PartialEq, Eq)]
pub enum FileNotice {
    /// the file was written and closed, moved, or removed
    Settled(OsString),
    /// the file was created or written, and is still open
    Touched(OsString),
    /// mode, times or the number of links of the file changed
    Attributes(OsString),
    /// anything may have changed: events were lost, or a link that files lead through was replaced
    Everything,
    /// the directory itself was removed
    Gone,
}
