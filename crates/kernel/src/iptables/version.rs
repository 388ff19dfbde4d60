//! Variants and versions of the iptables tools.

use std::fmt;

/// The first release of the legacy variant that takes the lock file's name from its environment.
const LEGACY_NEEDS: Version = Version([1, 8, 6]);

/// The first reliable release of the nft variant: earlier ones deny the existence of rules that exist, and report success for
/// changes that they have not made.
const NFT_NEEDS: Version = Version([1, 8, 4]);

/// The first release of the nft variant that prints a comment of its input at once, with `--verbose`.
const PRINTS_COMMENTS: Version = Version([1, 8, 5]);

/// The variant of the tool: the kernel interface that it uses. The variants have separate tables.
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
    /// Both variants.
    pub const ALL: [Self; 2] = [Self::Nft, Self::Legacy];

    /// The variant's name, as in the names of programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }

    /// The minimum version.
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
    /// True if the nft variant of this release prints a comment of its input at once, with `--verbose`.
    pub(super) fn prints_comments(self) -> bool {
        self >= PRINTS_COMMENTS
    }

    /// Parses `iptables v1.8.9 (nf_tables)`. Releases before 1.8, which have only the legacy variant, do not name it.
    pub(super) fn parse(text: &str) -> Option<(Self, Backend)> {
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
