//! Reads the files that a kubeconfig names.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use super::error::opening;

/// Largest file that is read; kubeconfigs, certificates, keys and tokens are smaller.
pub(super) const MAX_FILE_BYTES: u64 = 4 << 20;

/// The content of a file of limited size.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}

/// The content of a file that a field names; the error has its path.
pub(super) fn read_named(path: &str) -> Result<Vec<u8>, String> {
    let path = Path::new(path);
    read(path).map_err(|error| opening(path, &error))
}
