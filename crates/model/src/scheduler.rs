//! The schedulers of IPVS.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// A scheduler of IPVS, which chooses the endpoint of a new connection (`net/netfilter/ipvs` in Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheduler {
    /// round robin
    #[default]
    Rr,
    /// weighted round robin
    Wrr,
    /// least connections
    Lc,
    /// weighted least connections
    Wlc,
    /// locality-based least connections: by destination address
    Lblc,
    /// locality-based least connections with replication
    Lblcr,
    /// hash of the destination address
    Dh,
    /// hash of the source address
    Sh,
    /// shortest expected delay
    Sed,
    /// never queue
    Nq,
    /// weighted failover
    Fo,
    /// weighted overflow
    Ovf,
    /// Maglev hash of the source
    Mh,
    /// power of two choices
    Twos,
}

/// A name that no [`Scheduler`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownScheduler;

/// Schedulers that the kernel doesn't have, each with the text that tells an operator what to do.
pub type MissingSchedulers = BTreeMap<Scheduler, String>;

// === impl Scheduler ===

impl Scheduler {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Rr,
        Self::Wrr,
        Self::Lc,
        Self::Wlc,
        Self::Lblc,
        Self::Lblcr,
        Self::Dh,
        Self::Sh,
        Self::Sed,
        Self::Nq,
        Self::Fo,
        Self::Ovf,
        Self::Mh,
        Self::Twos,
    ];

    /// The kernel's name for it; its module is `ip_vs_` and this name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Wrr => "wrr",
            Self::Lc => "lc",
            Self::Wlc => "wlc",
            Self::Lblc => "lblc",
            Self::Lblcr => "lblcr",
            Self::Dh => "dh",
            Self::Sh => "sh",
            Self::Sed => "sed",
            Self::Nq => "nq",
            Self::Fo => "fo",
            Self::Ovf => "ovf",
            Self::Mh => "mh",
            Self::Twos => "twos",
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scheduler {
    type Err = UnknownScheduler;

    fn from_str(name: &str) -> Result<Self, UnknownScheduler> {
        Self::ALL.into_iter().find(|scheduler| scheduler.name() == name).ok_or(UnknownScheduler)
    }
}

// === impl UnknownScheduler ===

impl fmt::Display for UnknownScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no scheduler has this name")
    }
}

impl Error for UnknownScheduler {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheduler_has_a_name_of_its_own() {
        for scheduler in Scheduler::ALL {
            assert_eq!(scheduler.to_string().parse(), Ok(scheduler));
        }
        for name in ["", "RR", "wlc ", "ip_vs_rr"] {
            assert_eq!(name.parse::<Scheduler>(), Err(UnknownScheduler), "{name:?}");
        }
        assert_eq!(UnknownScheduler.to_string(), "no scheduler has this name");
        assert_eq!(Scheduler::default().name(), "rr");
    }
}
