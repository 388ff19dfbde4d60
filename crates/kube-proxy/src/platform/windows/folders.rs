//! No watch of the folders of files: their content is looked at in intervals.

use std::convert::Infallible;
use std::path::Path;

/// No watch, as the system's notifications have no safe interface.
pub struct FolderWatch(Infallible);

// === impl FolderWatch ===

impl FolderWatch {
    /// None.
    pub fn open() -> Option<Self> {
        None
    }

    /// Watches a folder, too.
    pub fn add(&mut self, _folder: &Path) {
        match self.0 {}
    }

    /// Waits for a change in a folder.
    pub async fn changed(&mut self) {
        match self.0 {}
    }
}
