//! Watches files for new content, however it comes: written in place, renamed over the file, or by links that change, as those
//! of a mounted ConfigMap.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::platform::FolderWatch;

/// The files, and the folders in which changes of them are seen.
pub(super) struct Files {
    paths: Vec<PathBuf>,
    /// `None` if the system has no watch: then only looks find changes
    folders: Option<FolderWatch>,
    /// digest of the content that was seen last
    seen: u64,
}

/// The time without a further change after which content is read: a file that is written in place is incomplete before.
const SETTLED: Duration = Duration::from_millis(200);
/// The longest wait for that time.
const MOST: Duration = Duration::from_secs(2);
/// The interval of looks without a notification: a folder may itself have been replaced.
const LOOK: Duration = Duration::from_secs(30);

// === impl Files ===

impl Files {
    /// Watches these files, which needn't exist, from their present content on.
    pub(super) async fn watch(paths: Vec<PathBuf>) -> Self {
        let folders = if paths.is_empty() { None } else { FolderWatch::open() };
        let mut files = Self { seen: 0, folders, paths };
        files.read().await;
        files
    }

    /// Watches one file more, if it isn't watched already.
    pub(super) fn add(&mut self, path: PathBuf) {
        if !self.paths.contains(&path) {
            self.paths.push(path);
        }
    }

    /// Waits for other content than that seen last; for ever without files.
    pub(super) async fn changed(&mut self) {
        if self.paths.is_empty() {
            std::future::pending().await
        }
        loop {
            let _ = timeout(LOOK, self.notified()).await;
            let _ = timeout(MOST, async { while timeout(SETTLED, self.notified()).await.is_ok() {} }).await;
            if self.read().await {
                return;
            }
        }
    }

    /// Notes the present content. Returns true if it is new.
    pub(super) async fn read(&mut self) -> bool {
        self.watch_folders();
        let paths = self.paths.clone();
        // A file system may take long, and this thread answers probes.
        let Ok(now) = spawn_blocking(move || digest(&paths)).await else { return false };
        std::mem::replace(&mut self.seen, now) != now
    }

    /// Watches the folders that the paths go through now. One that is watched already isn't watched twice.
    fn watch_folders(&mut self) {
        let Some(folders) = &mut self.folders else { return };
        for folder in folders_of(&self.paths) {
            folders.add(&folder);
        }
    }

    /// Waits for a change in a folder; which one it is doesn't matter. If the system reports none, only looks find changes.
    async fn notified(&mut self) {
        match &mut self.folders {
            Some(folders) => folders.changed().await,
            None => std::future::pending().await,
        }
    }
}

/// The folders of the files, and of the files that links lead to.
fn folders_of(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let parent = |path: &Path| match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let targets = paths.iter().filter_map(|path| fs::canonicalize(path).ok());
    targets.chain(paths.iter().cloned()).map(|path| parent(&path)).collect()
}

/// Digest of the contents, or of the errors of reading them.
fn digest(paths: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in paths {
        match fs::read(path) {
            Ok(content) => content.hash(&mut hasher),
            Err(error) => error.kind().hash(&mut hasher),
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ferry-reload-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    async fn is_seen(files: &mut Files) -> bool {
        timeout(Duration::from_secs(10), files.changed()).await.is_ok()
    }

    async fn is_unseen(files: &mut Files) -> bool {
        timeout(SETTLED * 3, files.changed()).await.is_err()
    }

    #[tokio::test]
    async fn content_is_seen_however_it_comes_and_touches_are_not() {
        let folder = Folder::new("plain");
        let path = folder.0.join("config");
        fs::write(&path, "one").unwrap();
        let mut files = Files::watch(vec![path.clone()]).await;
        fs::write(&path, "one").unwrap();
        fs::set_permissions(&path, fs::metadata(&path).unwrap().permissions()).unwrap();
        assert!(is_unseen(&mut files).await, "the same content");
        fs::write(&path, "two").unwrap();
        assert!(is_seen(&mut files).await, "written in place");
        fs::write(folder.0.join("new"), "three").unwrap();
        fs::rename(folder.0.join("new"), &path).unwrap();
        assert!(is_seen(&mut files).await, "renamed over it");
        fs::remove_file(&path).unwrap();
        assert!(is_seen(&mut files).await, "removed");
        fs::write(&path, "three").unwrap();
        assert!(is_seen(&mut files).await, "made again");
    }

    #[tokio::test]
    async fn links_are_followed() {
        let folder = Folder::new("links");
        let at = |name: &str| folder.0.join(name);
        // as a ConfigMap is mounted
        for (name, content) in [("..1", "one"), ("..2", "two")] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("config"), content).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/config", at("config")).unwrap();
        let mut files = Files::watch(vec![at("config")]).await;
        symlink("..2", at("..tmp")).unwrap();
        fs::rename(at("..tmp"), at("..data")).unwrap();
        assert!(is_seen(&mut files).await, "..data leads elsewhere");
        fs::write(at("..2").join("config"), "three").unwrap();
        assert!(is_seen(&mut files).await, "the file that the link leads to now");
    }
}
