//! Switches off the kernel's module loading, to simulate a kernel without a module. It affects the whole machine: for tests in virtual
//! machines only.

use std::fs;

/// The program that the kernel runs to load a module.
const LOADER: &str = "/proc/sys/kernel/modprobe";

/// The kernel can't load modules as long as this exists.
#[derive(Debug)]
pub struct NoLoader(String);

// === impl NoLoader ===

impl NoLoader {
    /// Switches it off.
    #[must_use]
    pub fn new() -> Self {
        let before = fs::read_to_string(LOADER).expect("a kernel with modules");
        fs::write(LOADER, "/bin/false").expect("root");
        Self(before)
    }
}

impl Default for NoLoader {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for NoLoader {
    fn drop(&mut self) {
        fs::write(LOADER, self.0.trim()).expect("root");
    }
}
