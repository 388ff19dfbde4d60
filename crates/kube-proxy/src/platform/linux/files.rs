//! Identity, times and permissions of files.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Device and inode: another pair means another file.
pub fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Times of the last change of the content, and of content or attributes; in nanoseconds since 1970.
pub fn change_times(metadata: &Metadata) -> (i128, i128) {
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    (nanoseconds(metadata.mtime(), metadata.mtime_nsec()), nanoseconds(metadata.ctime(), metadata.ctime_nsec()))
}

/// Lets these options create files that no other user can read.
pub fn make_private(options: &mut OpenOptions) {
    options.mode(0o600);
}

/// True if the path names this very file, not a link.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    Ok(identity(&file.metadata()?) == identity(&fs::symlink_metadata(path)?))
}

/// Brings the names in a folder to the disk.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
