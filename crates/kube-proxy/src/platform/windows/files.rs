//! Identity, times and permissions of files.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::MetadataExt as _;
use std::path::Path;

/// Time from 1601, where the system's count begins, to 1970, in nanoseconds.
const EPOCH: i128 = 11_644_473_600 * 1_000_000_000;

/// Creation time: another one means another file. A file that is created under the name of one that was removed within 15 s before
/// has its time ("tunneling"), and then differs in size or the time of its change.
pub fn identity(metadata: &Metadata) -> (u64, u64) {
    (0, metadata.creation_time())
}

/// Times of the last change of the content, and of content or attributes, which are one here; in nanoseconds since 1970.
pub fn change_times(metadata: &Metadata) -> (i128, i128) {
    let written = i128::from(metadata.last_write_time()) * 100 - EPOCH;
    (written, written)
}

/// Lets these options create files that no other user can read: files inherit the permissions of their folder here.
pub fn make_private(_options: &mut OpenOptions) {}

/// True if the path names this very file, not a link.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    Ok(identity(&file.metadata()?) == identity(&fs::symlink_metadata(path)?))
}

/// Brings the names in a folder to the disk: NTFS keeps a journal of them.
pub fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}
