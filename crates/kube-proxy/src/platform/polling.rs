//! Watches a directory by listing it: for systems whose notifications have no safe interface. A change is noticed within half a
//! second, for some microseconds of processor time per file and look.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{FileNotice, change_times, identity};

/// A watch on the current directory at a path; another directory at the same path needs another watch.
#[derive(Debug)]
pub struct DirectoryWatch {
    path: PathBuf,
    identity: (u64, u64),
    seen: BTreeMap<OsString, Stamp>,
    next_look: Instant,
}

/// Another stamp means that the file was replaced or written.
type Stamp = ((u64, u64), u64, (i128, i128));

/// Interval of looks.
const LOOK: Duration = Duration::from_millis(500);

// === impl DirectoryWatch ===

impl DirectoryWatch {
    /// Watches the directory that the path currently leads to.
    ///
    /// # Errors
    /// If it is missing or can't be listed.
    pub fn new(path: &Path) -> io::Result<Self> {
        // The identity first: if the directory is replaced in between, the next check finds another identity.
        let own = identity(&fs::metadata(path)?);
        Ok(Self { path: path.to_owned(), identity: own, seen: list(path)?, next_look: Instant::now() + LOOK })
    }

    /// True if the path still leads to the watched directory.
    pub fn is_current(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|metadata| identity(&metadata) == self.identity)
    }

    /// Waits for notifications up to a time limit.
    ///
    /// # Errors
    /// If the directory can't be listed.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Vec<FileNotice>> {
        let now = Instant::now();
        let pause = self.next_look.saturating_duration_since(now);
        if timeout < pause {
            std::thread::sleep(timeout);
            return Ok(Vec::new());
        }
        std::thread::sleep(pause);
        self.next_look = Instant::now() + LOOK;
        let found = match list(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![FileNotice::Gone]),
            found => found?,
        };
        let before = std::mem::replace(&mut self.seen, found);
        let gone = before.keys().filter(|name| !self.seen.contains_key(*name)).cloned().map(FileNotice::Settled);
        // The writer of a file may not have finished.
        let written = self.seen.iter().filter(|&(name, stamp)| before.get(name) != Some(stamp));
        Ok(gone.chain(written.map(|(name, _)| FileNotice::Touched(name.clone()))).collect())
    }
}

/// The names in a directory with their stamps.
fn list(path: &Path) -> io::Result<BTreeMap<OsString, Stamp>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // One that was removed in between is gone with the next look, too.
        if let Ok(metadata) = entry.metadata() {
            found.insert(entry.file_name(), stamp(&metadata));
        }
    }
    Ok(found)
}

fn stamp(metadata: &Metadata) -> Stamp {
    (identity(metadata), metadata.len(), change_times(metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until there are notices.
    fn notices(watch: &mut DirectoryWatch) -> Vec<FileNotice> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let found = watch.wait(Duration::from_secs(1)).unwrap();
            if !found.is_empty() {
                return found;
            }
            assert!(Instant::now() < end, "no notice");
        }
    }

    #[test]
    fn files_that_are_written_replaced_and_removed_are_noticed() {
        let folder = std::env::temp_dir().join(format!("ferry-polling-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (one, two) = (folder.join("one.yaml"), folder.join("two.yaml"));
        fs::write(&one, "1").unwrap();
        let mut watch = DirectoryWatch::new(&folder).unwrap();
        assert_eq!(watch.wait(Duration::ZERO).unwrap(), []);
        let touched = |name: &str| FileNotice::Touched(name.into());
        fs::write(&one, "12").unwrap();
        assert_eq!(notices(&mut watch), [touched("one.yaml")]);
        fs::write(&two, "12").unwrap();
        assert_eq!(notices(&mut watch), [touched("two.yaml")]);
        fs::rename(&two, &one).unwrap();
        assert_eq!(notices(&mut watch), [FileNotice::Settled("two.yaml".into()), touched("one.yaml")]);
        assert!(watch.is_current(&folder));
        fs::remove_dir_all(&folder).unwrap();
        assert!(!watch.is_current(&folder));
        // The files vanish before their directory does.
        while notices(&mut watch) != [FileNotice::Gone] {}
    }
}
