//! The variants of the tool, and its releases.

use std::fmt;

/// The first release of the legacy variant that takes the lock file's name from its environment.
const LEGACY_NEEDS: Version = Version([1, 8, 6]);

/// The first release of the nft variant that can be relied on: those before deny rules that exist, and say that they have
/// done what they have not.
const NFT_NEEDS: Version = Version([1, 8, 4]);

/// By which of the kernel's interfaces the tool works. The tables of one are not those of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// nf_tables: `iptables-nft`
    Nft,
    /// `iptables-legacy`
    Legacy,
}

/// A release of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(
    /// major, minor and patch
    pub [u16; 3],
);

// === impl Backend ===

impl Backend {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Nft, Self::Legacy];

    /// As it stands in the names of programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }

    /// The first release that serves.
    pub(super) fn needs(self) -> Version {
        match self {
            Self::Nft => NFT_NEEDS,
            Self::Legacy => LEGACY_NEEDS,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Version ===

impl Version {
    /// Reads `iptables v1.8.9 (nf_tables)`. Releases before 1.8, which have only one variant, do not name it.
    pub(super) fn read(text: &str) -> Option<(Self, Backend)> {
        let mut words = text.lines().next()?.split(' ');
        let number = words.by_ref().nth(1)?.strip_prefix('v')?;
        let mut parts = [0; 3];
        for (part, digits) in parts.iter_mut().zip(number.split('.')) {
            *part = digits.parse().ok()?;
        }
        let backend = match words.next() {
            Some("(nf_tables)") => Backend::Nft,
            Some("(legacy)") | None => Backend::Legacy,
            Some(_) => return None,
        };
        Some((Self(parts), backend))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}
