//! What the kernel reports about the packets of a flow, whatever the system.

use std::time::Duration;

use ferry_plane::Way;

/// When watching ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// at the latest
    pub time: Duration,
    /// after as many packets
    pub packets: usize,
}

/// The packets that came.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// in their order
    pub packets: Vec<WatchedPacket>,
    /// reports were lost: there were too many
    pub lost: bool,
}

/// A packet that came.
#[derive(Clone, Debug)]
pub struct WatchedPacket {
    /// what it met
    pub way: Way,
    /// where that has led to
    pub fate: Fate,
}

/// Where a packet's way has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// no rule that was reported has dropped or refused it
    WentOn,
    /// it was dropped or refused
    Ended {
        /// the table and chain
        place: String,
        /// the rule, or the policy
        by: String,
    },
}
