//! The list of tested and measured modes: one row per mode and variant of its tool.

use std::fmt;
use std::str::FromStr;

use ferry_api::config::{MODE_IPTABLES, MODE_IPVS, MODE_NFTABLES, MODE_USERSPACE, WAY_BIND, WAY_REDIRECT};
use ferry_model::Profile;

use crate::iptables::Backend;

/// A mode of the executable, in one variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// identifier of the row, on command lines and in paths
    pub word: &'static str,
    /// its name in the configuration
    pub name: &'static str,
    /// the section of the configuration that holds its settings
    pub section: &'static str,
    /// the way in which traffic reaches the proxy, as `userspaceWay` names it
    pub way: Option<&'static str>,
    /// its capabilities
    pub profile: Profile,
    /// the form in which it stores session affinity
    pub remembers: Remembers,
    /// the iptables variant of the machine's kubelet, if the mode runs that tool
    pub backend: Option<Backend>,
    /// the nf_tables table of each family that every change of a Service affects; `None` if the mode has none
    pub table: Option<&'static str>,
}

/// The form in which a mode stores the affinity of a client to a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembers {
    /// per traffic policy: the chosen endpoint
    ByPolicy,
    /// per frontend: the chosen endpoint (a virtual server with persistence)
    ByFrontend,
    /// per endpoint: its clients, for all frontends. Of the endpoints that have the client and are in the pool, the first one by
    /// the text of its address is chosen
    ByEndpoint,
}

/// The error of a word that identifies no mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMode(String);

// === impl Mode ===

impl Mode {
    /// Mode nftables.
    pub const NFTABLES: Self = Self {
        word: "nftables",
        name: MODE_NFTABLES,
        section: "nftables",
        way: None,
        profile: Profile::NFTABLES,
        remembers: Remembers::ByPolicy,
        backend: None,
        table: Some("kube-proxy"),
    };

    /// Mode iptables beside a kubelet with the nft variant.
    pub const IPTABLES: Self = Self {
        word: "iptables",
        name: MODE_IPTABLES,
        section: "iptables",
        way: None,
        profile: Profile::IPTABLES,
        remembers: Remembers::ByEndpoint,
        backend: Some(Backend::Nft),
        table: Some("nat"),
    };

    /// Mode iptables beside a kubelet with the legacy variant.
    pub const IPTABLES_LEGACY: Self =
        Self { word: "iptables-legacy", backend: Some(Backend::Legacy), table: None, ..Self::IPTABLES };

    /// Mode ipvs. Most machines' kernels lack IPVS: its tests run in virtual machines.
    pub const IPVS: Self = Self {
        word: "ipvs",
        name: MODE_IPVS,
        section: "ipvs",
        way: None,
        profile: Profile::IPVS,
        remembers: Remembers::ByFrontend,
        backend: None,
        table: Some("kube-proxy"),
    };

    /// Mode userspace, with a table that leads to the proxy.
    pub const USERSPACE: Self = Self {
        word: "userspace",
        name: MODE_USERSPACE,
        section: "iptables",
        way: Some(WAY_REDIRECT),
        profile: Profile::USERSPACE,
        remembers: Remembers::ByPolicy,
        backend: None,
        table: None,
    };

    /// Mode userspace, with listeners at the addresses of Services.
    pub const USERSPACE_BIND: Self =
        Self { word: "userspace-bind", way: Some(WAY_BIND), profile: Profile::USERSPACE_BIND, ..Self::USERSPACE };

    /// All rows, with the modes in the order of the executable's list.
    pub const ALL: &[Self] =
        &[Self::IPTABLES, Self::IPTABLES_LEGACY, Self::IPVS, Self::NFTABLES, Self::USERSPACE, Self::USERSPACE_BIND];

    /// True if each commit takes effect as a whole.
    pub fn is_atomic(&self) -> bool {
        self.backend.is_none() && !self.profile.binds_addresses && !self.profile.relays()
    }

    /// The names of the modes, each once.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<&str> = Self::ALL.iter().map(|mode| mode.name).collect();
        names.dedup();
        names
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|mode| mode.word == text);
        found.copied().ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word)
    }
}

// === impl UnknownMode ===

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = Mode::ALL.iter().map(|mode| mode.word).collect();
        write!(f, "there is no mode {}, only {}", self.0, words.join(", "))
    }
}

impl std::error::Error for UnknownMode {}
