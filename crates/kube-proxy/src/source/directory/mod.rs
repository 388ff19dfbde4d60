//! A directory of manifests, read at start and followed live.
//!
//! Reads files `*.yaml`, `*.yml` and `*.json` that aren't hidden, also through links, but no subdirectories. A file that is
//! renamed into place or closed after writing is read at once. While a file is still open for writing, it is read after a pause,
//! and only for added or changed objects: a half-written file deletes nothing. A malformed document affects its own object only,
//! which keeps its last good state.

mod catalog;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use ferry_api::object::Kind;
use ferry_model::store::Event;

use self::catalog::{Catalog, CatalogChanges, FileName};
use super::Sink;
use super::file::{self, Broken, Stamp};
use crate::platform::{DirectoryWatch, FileNotice};

/// All kinds that manifests may define.
const KINDS: [Kind; 4] = [Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice];
/// Time without a write after which a file open for writing is read.
const PAUSE: Duration = Duration::from_millis(20);
/// Time without a write after which a file open for writing counts as complete.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// Interval of checking the path for another directory, and links for other targets.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of looking for a missing directory.
const SEARCH: Duration = Duration::from_millis(100);
/// Extension of that interval per link, so that checking many links takes less than 0.1 % of the time.
const CHECK_PER_LINK: Duration = Duration::from_millis(2);
/// Events per batch during the initial read.
const CHUNK: usize = 1024;

/// A directory of manifests.
#[derive(Debug)]
pub struct DirectorySource {
    path: PathBuf,
    /// `None` while the directory is missing
    watch: Option<DirectoryWatch>,
    catalog: Catalog,
    files: BTreeMap<FileName, FileState>,
    open: BTreeMap<FileName, OpenFile>,
    /// time of the next check of links and of the directory itself
    next_check: Instant,
    /// it has been logged that the directory is missing
    missing: bool,
}

/// State of a file when it was last read.
#[derive(Debug)]
struct FileState {
    /// `None` if it may change without another stamp
    stamp: Option<Stamp>,
    link: bool,
    /// faults that were logged, so that each is logged once
    broken: Vec<Broken>,
    /// it has been read without a fault since the start
    whole: bool,
}

/// A file that is open for writing.
#[derive(Clone, Copy, Debug)]
struct OpenFile {
    written: Instant,
    /// it has been read since the last write
    looked_at: bool,
}

/// Files to read in one pass.
#[derive(Debug, Default)]
struct ReadSet {
    files: BTreeMap<FileName, Trust>,
    all: bool,
}

/// Degree of trust that a file is complete, so that missing objects count as deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trust {
    /// it may be half-written
    Open,
    /// it is complete; only an empty one is doubted, since another writer may have truncated it to write it anew
    Settled,
    /// no write for a while
    Rested,
}

// === impl DirectorySource ===

impl DirectorySource {
    /// Begins to watch a directory without reading it.
    ///
    /// # Errors
    /// If the directory is missing or unreadable: the system's error.
    pub fn open(path: &Path) -> io::Result<Self> {
        let watch = DirectoryWatch::new(path)?;
        fs::read_dir(path)?;
        Ok(Self {
            path: path.to_owned(),
            watch: Some(watch),
            catalog: Catalog::default(),
            files: BTreeMap::new(),
            open: BTreeMap::new(),
            next_check: Instant::now() + CHECK_INTERVAL,
            missing: false,
        })
    }

    /// Reads everything, then follows the directory until the core ends.
    pub fn run(mut self, sink: &Sink) -> Result<(), super::Closed> {
        let last = self.read_all(&mut |events| sink.deliver(events))?;
        let mut unreadable = self.unreadable();
        if unreadable > 0 {
            sink.unreadable(unreadable)?;
        }
        sink.deliver(last)?;
        tracing::info!(
            directory = %self.path.display(),
            files = self.files.len(),
            objects = self.catalog.len(),
            "Read manifests"
        );
        loop {
            let events = self.next_changes();
            let before = std::mem::replace(&mut unreadable, self.unreadable());
            // Objects of a file that has become readable come first; a higher number of unreadable files comes before the events
            // that depend on it.
            if unreadable > before {
                sink.unreadable(unreadable)?;
            }
            sink.deliver(events)?;
            if unreadable < before {
                sink.unreadable(unreadable)?;
            }
        }
    }

    /// The number of files with a malformed object without a good state since the start.
    fn unreadable(&self) -> usize {
        let unknown = |seen: &FileState, broken: &Broken| match &broken.object {
            Some(key) => !self.catalog.knows(key),
            None if broken.misnamed => false,
            None => !seen.whole,
        };
        self.files.values().filter(|seen| seen.broken.iter().any(|broken| unknown(seen, broken))).count()
    }

    /// Reads the initial lists of all kinds in batches, of which the last is returned instead of delivered.
    fn read_all<E>(&mut self, deliver: &mut dyn FnMut(Vec<Event>) -> Result<(), E>) -> Result<Vec<Event>, E> {
        deliver(KINDS.map(Event::Restart).into())?;
        let mut changes = CatalogChanges::default();
        for name in self.names() {
            self.refresh(&name, Trust::Settled, &mut changes);
            if changes.len() >= CHUNK {
                deliver(changes.take())?;
            }
        }
        let mut rest = changes.take();
        rest.extend(KINDS.map(Event::Synced));
        Ok(rest)
    }

    /// Waits for a change or the next check; the result may be empty.
    fn next_changes(&mut self) -> Vec<Event> {
        self.changes_within(Duration::MAX)
    }

    /// The same with a time limit.
    fn changes_within(&mut self, limit: Duration) -> Vec<Event> {
        let mut reads = self.wait(self.patience().min(limit));
        let now = Instant::now();
        self.add_open(now, &mut reads);
        self.check(now, &mut reads);
        let mut changes = CatalogChanges::default();
        self.refresh_all(reads, &mut changes);
        changes.take()
    }

    fn wait(&mut self, patience: Duration) -> ReadSet {
        let mut reads = ReadSet::default();
        let notices = match &mut self.watch {
            Some(watch) => watch.wait(patience),
            None => {
                std::thread::sleep(patience);
                Ok(Vec::new())
            }
        };
        match notices {
            Ok(notices) => notices.into_iter().for_each(|notice| self.note(notice, &mut reads)),
            Err(error) => {
                tracing::warn!(
                    directory = %self.path.display(),
                    err = %error,
                    "Watching the manifest directory failed, restarting the watch"
                );
                self.watch = None;
            }
        }
        reads
    }

    /// Time until the next check.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let open = self.open.values().map(OpenFile::due);
        open.chain([self.next_check]).min().unwrap_or(now).saturating_duration_since(now)
    }

    fn note(&mut self, notice: FileNotice, reads: &mut ReadSet) {
        match notice {
            FileNotice::Settled(name) => reads.add(name, Trust::Settled),
            FileNotice::Touched(name) => {
                let is_link = fs::symlink_metadata(self.path_of(&name)).is_ok_and(|metadata| metadata.is_symlink());
                if is_link {
                    reads.add(name, Trust::Settled);
                } else if file::is_manifest(&name) {
                    self.open.insert(name.into(), OpenFile { written: Instant::now(), looked_at: false });
                }
            }
            // Some writers set mode and times before they finish.
            FileNotice::Attributes(name) => match self.open.get_mut(name.as_os_str()) {
                Some(open) => *open = OpenFile { written: Instant::now(), looked_at: false },
                None => reads.add(name, Trust::Settled),
            },
            FileNotice::Everything => reads.all = true,
            FileNotice::Gone => self.watch = None,
        }
    }

    /// Adds files open for writing whose pause has passed.
    fn add_open(&mut self, now: Instant, reads: &mut ReadSet) {
        self.open.retain(|name, open| {
            if reads.files.get(name) == Some(&Trust::Settled) {
                return false;
            }
            if open.due() > now {
                return true;
            }
            let trust = if open.looked_at { Trust::Rested } else { Trust::Open };
            reads.files.insert(name.clone(), trust);
            open.looked_at = true;
            trust == Trust::Open
        });
    }

    /// Checks for a replaced directory and for changed targets of links, of which inotify doesn't notify.
    fn check(&mut self, now: Instant, reads: &mut ReadSet) {
        if self.watch.is_some() && now < self.next_check {
            return;
        }
        if self.watch.as_ref().is_some_and(|watch| !watch.is_current(&self.path)) {
            self.watch = None;
        }
        if self.watch.is_none() {
            self.watch_anew(reads);
        }
        // A missing directory says nothing about its links.
        let is_there = self.watch.is_some();
        let links = self.files.iter().filter(|(_, seen)| seen.link && is_there);
        let mut count = 0;
        for (name, seen) in links {
            count += 1;
            let stamp = Stamp::of(&self.path_of(name)).ok().flatten();
            if stamp.is_none() || stamp != seen.stamp {
                // A file that has rested stays so: doubted anew, it would wait for another pause, at each late check.
                let trust = reads.files.entry(name.clone()).or_insert(Trust::Settled);
                *trust = (*trust).max(Trust::Settled);
            }
        }
        let pause = if self.watch.is_some() { CHECK_INTERVAL } else { SEARCH };
        self.next_check = now + pause.max(CHECK_PER_LINK.saturating_mul(count));
    }

    fn watch_anew(&mut self, reads: &mut ReadSet) {
        match DirectoryWatch::new(&self.path) {
            Ok(watch) => {
                self.watch = Some(watch);
                self.missing = false;
                reads.all = true;
            }
            Err(error) if !self.missing => {
                tracing::warn!(
                    directory = %self.path.display(),
                    err = %error,
                    "Manifest directory is missing, keeping its last known objects"
                );
                self.missing = true;
            }
            Err(_) => {}
        }
    }

    fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Sorted names in the directory; empty if it is unreadable.
    fn names(&self) -> BTreeSet<FileName> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(directory = %self.path.display(), err = %error, "Listing the manifest directory failed");
                return self.files.keys().cloned().collect();
            }
        };
        let names = entries.filter_map(|entry| entry.ok().map(|entry| entry.file_name()));
        names.filter(|name| file::is_manifest(name)).map(FileName::from).collect()
    }

    fn refresh_all(&mut self, mut reads: ReadSet, changes: &mut CatalogChanges) {
        if reads.all {
            let mut names = self.names();
            names.extend(self.files.keys().cloned());
            for name in names {
                if !self.is_unchanged(&name) {
                    let trust = if self.open.contains_key(&name) { Trust::Open } else { Trust::Settled };
                    reads.files.entry(name).or_insert(trust);
                }
            }
        }
        // Removed files first: an object that moves to another file is never defined twice.
        let is_gone = |name: &FileName| !self.path_of(name).exists();
        let (gone, there): (Vec<_>, Vec<_>) = reads.files.into_iter().partition(|(name, _)| is_gone(name));
        for (name, trust) in gone.into_iter().chain(there) {
            self.refresh(&name, trust, changes);
        }
        while let Some(name) = changes.reread.pop_first() {
            self.reread(&name, changes);
        }
    }

    fn is_unchanged(&self, name: &FileName) -> bool {
        let stamp = Stamp::of(&self.path_of(name)).ok().flatten();
        self.files.get(name).is_some_and(|seen| stamp.is_some() && seen.stamp == stamp)
    }

    /// Reads a file regardless of its stamp.
    fn refresh(&mut self, name: &FileName, trust: Trust, changes: &mut CatalogChanges) {
        let path = self.path_of(name);
        let stamp = match Stamp::of(&path) {
            Ok(Some(stamp)) => stamp,
            Ok(None) => {
                self.forget(name);
                return self.catalog.update(name, Vec::new(), &[], changes);
            }
            Err(error) => return self.remember(name, None, vec![error.into()]),
        };
        match file::read(&path) {
            // A half-written file is often malformed at its end.
            Ok(contents) if trust == Trust::Open && !contents.broken.is_empty() => {}
            Ok(contents) => {
                let doubted = match trust {
                    Trust::Open => true,
                    Trust::Settled => contents.objects.is_empty(),
                    Trust::Rested => false,
                };
                if doubted && self.catalog.would_lose(name, &contents) {
                    let waits = OpenFile { written: Instant::now(), looked_at: true };
                    self.open.entry(name.clone()).or_insert(waits);
                    return;
                }
                self.catalog.update(name, contents.objects, &contents.broken, changes);
                self.remember(name, Some(stamp), contents.broken);
            }
            Err(_) if trust == Trust::Open => {}
            Err(error) => self.remember(name, Some(stamp), vec![error]),
        }
    }

    /// Reads a file again that takes over an object from another one.
    fn reread(&mut self, name: &FileName, changes: &mut CatalogChanges) {
        if let Ok(contents) = file::read(&self.path_of(name)) {
            self.catalog.update(name, contents.objects, &contents.broken, changes);
        }
        self.catalog.disown(name, changes);
    }

    /// Removes a missing file; a dangling link stays on the list of links to check.
    fn forget(&mut self, name: &FileName) {
        self.files.remove(name);
        if self.path_of(name).is_symlink() {
            self.files.insert(name.clone(), FileState { stamp: None, link: true, broken: Vec::new(), whole: false });
        }
    }

    /// Stores the state of a file, and logs each fault once.
    fn remember(&mut self, name: &FileName, stamp: Option<Stamp>, broken: Vec<Broken>) {
        let before = self.files.get(name);
        let whole = broken.is_empty() || before.is_some_and(|seen| seen.whole);
        let said = before.map(|seen| seen.broken.as_slice()).unwrap_or_default();
        for error in broken.iter().filter(|error| !said.contains(error)) {
            tracing::error!(
                file = %self.path_of(name).display(),
                line = error.line,
                column = error.column,
                err = error.message,
                "Malformed manifest, keeping the last good state of its objects"
            );
        }
        let path = self.path_of(name);
        let link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        let stamp = stamp.filter(|stamp| stamp.is_reliable(SystemTime::now()));
        self.files.insert(name.clone(), FileState { stamp, link, broken, whole });
    }
}

// === impl OpenFile ===

impl OpenFile {
    /// Time of the next read.
    fn due(&self) -> Instant {
        self.written + if self.looked_at { LONG_PAUSE } else { PAUSE }
    }
}

// === impl ReadSet ===

impl ReadSet {
    fn add(&mut self, name: OsString, trust: Trust) {
        if file::is_manifest(&name) {
            self.files.insert(name.into(), trust);
        }
    }
}
