//! Checks whether an executable needs a dynamic linker.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Type of the program header that names the dynamic linker (`PT_INTERP` of elf(5)).
const INTERPRETER: u32 = 3;

/// True if this executable needs shared libraries at run time.
///
/// # Errors
/// If the file can't be read, or is no 64-bit little-endian ELF file.
pub fn is_dynamic(executable: &Path) -> Result<bool> {
    let bytes = std::fs::read(executable).with_context(|| format!("reading {}", executable.display()))?;
    ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "{} is no 64-bit ELF executable", executable.display());
    let headers = headers(&bytes).with_context(|| format!("{}: truncated ELF header", executable.display()))?;
    Ok(headers.contains(&INTERPRETER))
}

/// The types of all program headers.
fn headers(bytes: &[u8]) -> Option<Vec<u32>> {
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let table = usize::try_from(u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
    let header = |index: usize| {
        let at = table.checked_add(size.checked_mul(index)?)?;
        Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
    };
    (0..count).map(header).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_dynamic_and_other_files_are_refused() {
        assert!(is_dynamic(Path::new("/proc/self/exe")).unwrap());
        let error = is_dynamic(Path::new("/proc/self/cmdline")).unwrap_err();
        assert!(error.to_string().contains("no 64-bit ELF"), "{error}");
        assert_eq!(headers(&[0; 60]), Some(vec![]));
        assert_eq!(headers(&[0; 40]), None);
    }
}
