//! Keys and values of elements, stored inline.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Up to 64 bytes (the maximum of a key or a value), stored inline to avoid allocations: a dump returns 100,000 of them.
#[derive(Clone, Copy)]
pub struct Octets {
    length: u8,
    bytes: [u8; Self::MAX],
}

// === impl Octets ===

impl Octets {
    /// Capacity in bytes: the size of the kernel's registers.
    pub const MAX: usize = 64;

    /// Copies these bytes; `None` for more than [`Self::MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut octets = Self { length: u8::try_from(bytes.len()).ok()?, bytes: [0; Self::MAX] };
        octets.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(octets)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

impl Default for Octets {
    fn default() -> Self {
        Self { length: 0, bytes: [0; Self::MAX] }
    }
}

impl Deref for Octets {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Octets {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl PartialEq for Octets {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Octets {}

impl PartialOrd for Octets {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Octets {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl Hash for Octets {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl fmt::Debug for Octets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
