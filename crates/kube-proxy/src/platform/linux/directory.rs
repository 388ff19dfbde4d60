//! inotify watch of one directory.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use inotify::{EventMask, Inotify, WatchMask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::files;
use crate::platform::FileNotice;

/// A watch on the current directory at a path; another directory at the same path needs another watch.
#[derive(Debug)]
pub struct DirectoryWatch {
    inotify: Inotify,
    /// device and inode of the directory
    identity: (u64, u64),
    buffer: Vec<u8>,
}

/// Holds some thousand events.
const BUFFER_BYTES: usize = 64 * 1024;

// === impl DirectoryWatch ===

impl DirectoryWatch {
    /// Watches the directory that the path currently leads to.
    pub fn new(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mask = WatchMask::ONLYDIR
            | WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::ATTRIB
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        // The identity first: if the directory is replaced in between, the next check finds another identity.
        let identity = identity(path)?;
        inotify.watches().add(path, mask)?;
        Ok(Self { inotify, identity, buffer: vec![0; BUFFER_BYTES] })
    }

    /// True if the path still leads to the watched directory.
    pub fn is_current(&self, path: &Path) -> bool {
        identity(path).is_ok_and(|identity| identity == self.identity)
    }

    /// Waits for notifications up to a time limit.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Vec<FileNotice>> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut fds = [PollFd::from_borrowed_fd(self.inotify.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) if error == rustix::io::Errno::INTR => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        match self.inotify.read_events(&mut self.buffer) {
            Ok(events) => Ok(events.filter_map(|event| notice(event.mask, event.name)).collect()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Device and inode of the directory that the path leads to.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    Ok(files::identity(&fs::metadata(path)?))
}

fn notice(mask: EventMask, name: Option<&std::ffi::OsStr>) -> Option<FileNotice> {
    if mask.contains(EventMask::Q_OVERFLOW) {
        return Some(FileNotice::Everything);
    }
    if mask.intersects(EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::UNMOUNT | EventMask::IGNORED) {
        return Some(FileNotice::Gone);
    }
    let name = name?;
    if name.as_encoded_bytes().starts_with(b"..") {
        // `..data` of a mounted ConfigMap: the files are links through it.
        return Some(FileNotice::Everything);
    }
    if mask.intersects(EventMask::CREATE | EventMask::MODIFY) {
        return Some(FileNotice::Touched(name.to_owned()));
    }
    if mask.contains(EventMask::ATTRIB) {
        return Some(FileNotice::Attributes(name.to_owned()));
    }
    Some(FileNotice::Settled(name.to_owned()))
}
