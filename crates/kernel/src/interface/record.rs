//! The file that records which addresses are the program's own, so that its next start can remove them after a crash.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// An address and its interface.
pub(super) type Owned = (IpAddr, String);

/// The file: a line for each address, `ADDRESS INTERFACE`.
#[derive(Clone, Debug)]
pub struct AddressRecord {
    path: PathBuf,
}

// === impl AddressRecord ===

impl AddressRecord {
    /// The record in this file, which need not exist; its folder has to.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The recorded addresses.
    ///
    /// # Errors
    /// The system's error, or `InvalidData` if the file is not a record: the program never leaves a partial one.
    pub(super) fn read(&self) -> io::Result<BTreeSet<Owned>> {
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            text => text?,
        };
        let mut owned = BTreeSet::new();
        for (number, line) in (1..).zip(text.lines()) {
            let parsed = line.split_once(' ').and_then(|(address, interface)| {
                let address = address.parse().ok()?;
                (!interface.is_empty()).then(|| (address, interface.to_owned()))
            });
            owned.insert(parsed.ok_or_else(|| {
                let text = format!("line {number} is not an address and an interface: {}", line.escape_debug());
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?);
        }
        Ok(owned)
    }

    /// Replaces the record, as a whole or not at all; removes it if there is nothing to record.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn write(&self, owned: &BTreeSet<Owned>) -> io::Result<()> {
        if owned.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            };
        }
        let lines: String = owned.iter().map(|(address, interface)| format!("{address} {interface}\n")).collect();
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        fs::write(&new, lines)?;
        fs::rename(&new, &self.path)
    }
}
