//! The machine.

use std::io;

use windows_sys::Win32::System::SystemInformation::{ComputerNamePhysicalDnsHostname, GetComputerNameExW};

/// The most characters of a host name, and the terminating zero.
const CHARACTERS: usize = 256;

/// The host's name in the DNS, without its domain.
///
/// # Errors
/// The system's error.
#[expect(unsafe_code, reason = "writes the name by a pointer")]
pub fn host_name() -> io::Result<String> {
    let mut name = [0; CHARACTERS];
    let mut length = CHARACTERS as u32;
    // SAFETY: the function writes at most this number of characters and their number without the terminating zero.
    let done = unsafe { GetComputerNameExW(ComputerNamePhysicalDnsHostname, name.as_mut_ptr(), &raw mut length) };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    let length = usize::try_from(length).unwrap_or(CHARACTERS);
    Ok(String::from_utf16_lossy(name.get(..length).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name() {
        let name = host_name().unwrap();
        assert!(!name.is_empty() && !name.contains('\0'), "{name:?}");
    }
}
