//! Capabilities of the calling thread.

use std::io;

use rustix::thread::{CapabilitySet, capabilities};

/// True if `CAP_NET_ADMIN`, the right to change the network, is effective for the calling thread.
///
/// # Errors
/// The system's error.
pub fn net_admin() -> io::Result<bool> {
    Ok(capabilities(None)?.effective.contains(CapabilitySet::NET_ADMIN))
}

/// True if `CAP_NET_RAW`, the right to open raw sockets, is effective for the calling thread.
///
/// # Errors
/// The system's error.
pub fn net_raw() -> io::Result<bool> {
    Ok(capabilities(None)?.effective.contains(CapabilitySet::NET_RAW))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::set_capabilities;

    #[test]
    fn a_dropped_capability_is_detected() {
        assert!(net_admin().unwrap(), "the tests of this crate need root");
        // capabilities are per thread, and this one ends here
        let after = std::thread::spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::NET_ADMIN);
            set_capabilities(None, sets).unwrap();
            let without_admin = (net_admin().unwrap(), net_raw().unwrap());
            sets.effective.remove(CapabilitySet::NET_RAW);
            set_capabilities(None, sets).unwrap();
            (without_admin, net_raw().unwrap())
        });
        assert_eq!(after.join().unwrap(), ((false, true), false));
    }
}
