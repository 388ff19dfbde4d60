//! inotify watch of the folders of some files.

use std::path::Path;

use futures_util::StreamExt as _;
use inotify::{EventStream, Inotify, WatchMask};

/// The folders in which changes are seen.
pub struct FolderWatch(EventStream<Vec<u8>>);

/// Holds some hundred events.
const BUFFER_BYTES: usize = 16 * 1024;

// === impl FolderWatch ===

impl FolderWatch {
    /// Watches no folder yet; `None` if the kernel has no watches left.
    pub fn open() -> Option<Self> {
        let opened = Inotify::init().and_then(|inotify| inotify.into_event_stream(vec![0; BUFFER_BYTES]));
        opened
            .inspect_err(|error| {
                tracing::warn!(err = %error, "The files of the configuration can't be watched, looking every 30 s");
            })
            .ok()
            .map(Self)
    }

    /// Watches a folder, too. One that is watched already isn't watched twice.
    pub fn add(&mut self, folder: &Path) {
        let mask = WatchMask::CREATE | WatchMask::CLOSE_WRITE | WatchMask::MODIFY | WatchMask::MOVE | WatchMask::DELETE;
        // One that doesn't exist may do so at the next look.
        let _ = self.0.watches().add(folder, mask);
    }

    /// Waits for a change in a folder; which one it is doesn't matter.
    pub async fn changed(&mut self) {
        if self.0.next().await.is_none() {
            std::future::pending().await
        }
    }
}
