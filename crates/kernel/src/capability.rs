//! What this process may do.

use std::io;

use rustix::thread::{CapabilitySet, capabilities};

/// Whether the calling thread may change the network: `CAP_NET_ADMIN` is effective.
///
/// # Errors
/// What the system says.
pub fn net_admin() -> io::Result<bool> {
    Ok(capabilities(None)?.effective.contains(CapabilitySet::NET_ADMIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::set_capabilities;

    #[test]
    fn a_dropped_capability_is_seen() {
        assert!(net_admin().unwrap(), "the tests of this crate need root");
        // of this thread only, which ends here
        let after = std::thread::spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::NET_ADMIN);
            set_capabilities(None, sets).unwrap();
            net_admin().unwrap()
        });
        assert!(!after.join().unwrap());
    }
}
