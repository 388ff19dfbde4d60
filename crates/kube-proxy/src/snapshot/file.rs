//! The file of a snapshot: read as a whole, and replaced as a whole, so that a crash at any moment leaves the old or the new one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use ferry_api::snapshot::{SNAPSHOT_NAME, Snapshot, SnapshotEncoder, SnapshotHeader, decode_snapshot};

use super::refusal::SnapshotRefusal;
use crate::platform;

/// A snapshot's file, and the one that replaces it.
#[derive(Clone, Debug)]
pub(super) struct SnapshotFile {
    path: PathBuf,
    /// in the same folder, since only there a rename is atomic
    next: PathBuf,
    /// the largest snapshot that is read or written
    most_bytes: u64,
}

/// A failed attempt to replace the file.
#[derive(Debug, thiserror::Error)]
#[error("{action}: {error}")]
pub(super) struct WriteError {
    action: &'static str,
    error: io::Error,
}

/// Counts bytes, and fails beyond a limit.
struct Bounded<W> {
    writer: W,
    bytes: u64,
    limit: u64,
}

/// The largest snapshot: some ten times one of 10,000 Services with 100,000 endpoints.
const MOST_BYTES: u64 = 256 << 20;

// === impl SnapshotFile ===

impl SnapshotFile {
    /// The file of this path.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self::bounded(path, MOST_BYTES)
    }

    /// The same with another limit.
    pub(super) fn bounded(path: impl Into<PathBuf>, most_bytes: u64) -> Self {
        let path = path.into();
        let mut next = OsString::from(&path);
        next.push(".new");
        Self { next: next.into(), path, most_bytes }
    }

    /// The path, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the snapshot; `None` if there is no file.
    pub(super) fn read(&self) -> Result<Option<Snapshot>, SnapshotRefusal> {
        let (size, file) = match self.open() {
            Ok(Some(opened)) => opened,
            Ok(None) => return Err(SnapshotRefusal::NoFile),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(SnapshotRefusal::Content(error.into())),
        };
        if size > self.most_bytes {
            return Err(SnapshotRefusal::Size { bytes: size, limit: self.most_bytes });
        }
        Ok(Some(decode_snapshot(BufReader::new(file.take(self.most_bytes)))?))
    }

    /// Opens a regular file; `None` for any other, of which opening or reading might not end.
    fn open(&self) -> io::Result<Option<(u64, File)>> {
        if !fs::metadata(&self.path)?.is_file() {
            return Ok(None);
        }
        let file = File::open(&self.path)?;
        Ok(Some((file.metadata()?.len(), file)))
    }

    /// Replaces the file by a snapshot, whose objects `fill` writes. Returns its size in bytes, once it is on the disk.
    ///
    /// # Errors
    /// Whatever fails: the old file stays as it was.
    pub(super) fn replace(
        &self,
        header: &SnapshotHeader,
        fill: impl FnOnce(&mut SnapshotEncoder<&mut dyn Write>) -> io::Result<()>,
    ) -> Result<u64, WriteError> {
        self.check_old().map_err(WriteError::when("examining the file"))?;
        let file = self.create().map_err(WriteError::when("creating its successor"))?;
        let written = self.write(&file, header, fill).map_err(WriteError::when("writing its successor"));
        let replaced = written.and_then(|bytes| {
            fs::rename(&self.next, &self.path).map_err(WriteError::when("renaming its successor"))?;
            Ok(bytes)
        });
        match replaced {
            Ok(bytes) => {
                self.sync_folder().map_err(WriteError::when("syncing its folder"))?;
                Ok(bytes)
            }
            Err(error) => {
                // An unfinished one must not keep the room that the disk lacks.
                let _ = fs::remove_file(&self.next);
                Err(error)
            }
        }
    }

    /// Checks that the file may be replaced: a misspelt path must not cost another file. One of zeros alone is what a power cut
    /// leaves on some disks.
    fn check_old(&self) -> io::Result<()> {
        let foreign = "it isn't a snapshot: remove it, or correct FerryConfiguration.snapshot";
        let mut file = match self.open() {
            Ok(Some((_, file))) => BufReader::new(file),
            Ok(None) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, foreign)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut begin = Vec::new();
        file.by_ref().take(SNAPSHOT_NAME.len() as u64).read_to_end(&mut begin)?;
        if SNAPSHOT_NAME.as_bytes().starts_with(&begin) || (is_zero(&begin) && only_zeros(file)?) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, foreign))
    }

    /// Creates the successor, and locks it against another proxy of this node.
    fn create(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        platform::make_private(options.write(true).create(true).truncate(false));
        let file = options.open(&self.next)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "another process is writing it"));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Whoever had the lock before may have renamed the file; a symbolic link leads elsewhere.
        if !platform::is_at(&file, &self.next)? {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "another process is replacing it"));
        }
        file.set_len(0)?;
        Ok(file)
    }

    fn write(
        &self,
        file: &File,
        header: &SnapshotHeader,
        fill: impl FnOnce(&mut SnapshotEncoder<&mut dyn Write>) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut writer = Bounded { writer: BufWriter::new(file), bytes: 0, limit: self.most_bytes };
        let mut encoder = SnapshotEncoder::new(&mut writer as &mut dyn Write, header)?;
        fill(&mut encoder)?;
        encoder.finish()?;
        writer.flush()?;
        file.sync_all()?;
        Ok(writer.bytes)
    }

    fn sync_folder(&self) -> io::Result<()> {
        platform::sync_folder(self.path.parent().unwrap_or(Path::new("/")))
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// True if nothing but zeros is left to read.
fn only_zeros(mut reader: impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = reader.fill_buf()?;
        let (length, zero) = (bytes.len(), is_zero(bytes));
        if length == 0 || !zero {
            return Ok(zero);
        }
        reader.consume(length);
    }
}

// === impl WriteError ===

impl WriteError {
    fn when(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self { action, error }
    }

    /// The sort of the error: those of one sort are logged once.
    pub(super) fn sort(&self) -> (&'static str, io::ErrorKind) {
        (self.action, self.error.kind())
    }
}

// === impl Bounded ===

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.bytes + buffer.len() as u64 > self.limit {
            let text = format!("more than {} bytes", self.limit);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let written = self.writer.write(buffer)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
