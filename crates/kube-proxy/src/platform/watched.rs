//! The kernel's trace events of a flow's packets, in types that exist on every system.

use std::time::Duration;

use ferry_plane::PacketPath;

/// When watching ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchLimits {
    /// at the latest
    pub time: Duration,
    /// after as many packets
    pub packets: usize,
}

/// The packets that came.
#[derive(Clone, Debug, Default)]
pub struct WatchedFlow {
    /// in their order
    pub packets: Vec<WatchedPacket>,
    /// reports were lost: there were too many
    pub lost: bool,
}

/// A packet that came.
#[derive(Clone, Debug)]
pub struct WatchedPacket {
    /// the rules that it has reached
    pub path: PacketPath,
    /// where it has ended
    pub fate: PacketEnd,
}

/// Where a packet has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketEnd {
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
