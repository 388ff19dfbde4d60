//! All modes of this build, the rule domains of each, and the choice of the mode that runs. A mode is a file below. The rest of the
//! crate distinguishes modes only for settings that some of them have.

mod candidates;
#[cfg(target_os = "linux")]
mod forward;
#[cfg(target_os = "linux")]
mod iptables;
#[cfg(target_os = "linux")]
mod ipvs;
#[cfg(target_os = "linux")]
mod nftables;
mod userspace;

use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::anyhow;
use ferry_api::config::KubeProxyConfiguration;
use ferry_api::object::Family;
use ferry_model::{Endpoint, Profile, Settings};
use ferry_plane::{CommitError, Delta, Inspector, Served, SyncEngine};

pub use ferry_plane_userspace::Onward;

pub use self::candidates::{Candidates, EffectiveMode, Failures};
use crate::input::Input;
use crate::metrics::MetricRow;
use crate::metrics::mode::Register;
use crate::platform::{self, OpenSocket};
use crate::threads::Threads;

/// The result of opening the engine of one family.
pub type Opened = (Family, Result<Box<dyn SyncEngine>, CommitError>);

/// A mode of this build, a row of [`PLANES`].
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    /// its name in the configuration
    pub mode: &'static str,
    /// its capabilities
    pub profile: Profile,
    /// each sync runs a process, however few changes it has
    pub paced: bool,
    /// every domain that can hold its rules, in any variant; no other mode has any of them
    pub domains: &'static [RuleDomain],
    /// its metrics besides those of all modes
    pub metrics: &'static [MetricRow],
    /// names of network devices that the mode creates for itself: their addresses don't count as the node's
    pub devices: &'static [&'static str],
    open: fn(&Opening<'_>) -> anyhow::Result<Engines>,
    initialize: fn(&Settings) -> anyhow::Result<()>,
    remove_leftovers: fn(Family) -> io::Result<Leftovers>,
    in_use: fn(Family) -> io::Result<bool>,
    /// it can't be opened without `CAP_NET_ADMIN`
    needs_net_admin: bool,
    offline: fn(&KubeProxyConfiguration) -> Offline,
    /// opens engines that show what is in the kernel: they prepare nothing, and no thread is started. `None` if the mode holds objects in
    /// the process that runs, so that another one can't tell what is there
    inspect: Option<OpenInspectors>,
}

/// The result of opening an engine that shows what is in the kernel.
pub type OpenedInspector = (Family, Result<Box<dyn Inspector>, CommitError>);

type OpenInspectors = fn(&Opening<'_>) -> anyhow::Result<Vec<OpenedInspector>>;

/// The functions of a mode that need no kernel, on any machine.
#[derive(Clone, Copy, Debug)]
pub struct Offline {
    /// its capabilities, by the way that the configuration chooses
    pub profile: Profile,
    /// prints what it would have in the kernel: parts in the order in which they are loaded
    pub render: fn(&Rendering<'_>) -> Vec<RenderedPart>,
}

/// The desired state to render.
#[derive(Clone, Copy, Debug)]
pub struct Rendering<'a> {
    /// the desired state of each family
    pub families: &'a [(Family, Delta)],
    /// valid, with all defaults
    pub config: &'a KubeProxyConfiguration,
}

/// The part of a rendered mode that one tool loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPart {
    /// its name on the command line
    pub name: &'static str,
    /// the command that loads it from its input; `None` for what is held in the process of the proxy
    pub loader: Option<&'static str>,
    /// the text, without the comments of a loader that has none
    pub text: String,
}

/// The name of the thread that waits for foreign changes and wakes the engines.
#[cfg(target_os = "linux")]
const LISTENER: &str = "listener";

/// The inputs of a mode.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// the families that the kernel supports
    pub families: &'a [Family],
    /// valid, with all defaults; `mode` is the mode that is opened, also where another one is configured. A mode reads its own
    /// section, and what concerns it in `ferry`
    pub config: &'a KubeProxyConfiguration,
    /// the settings of that configuration that affect traffic, the same for every mode
    pub settings: &'a Settings,
    /// starts the threads that a mode runs beside its engines, such as a relay. A mode that can't be opened must have started
    /// none: their end would end the program, which may run in another mode
    pub threads: &'a Threads,
    /// listening sockets of the process before, for a mode that listens
    pub sockets: &'a InheritedSockets,
    /// the inputs of the core, for a mode's threads. The core takes them once all engines are opened: until then only a few dozen
    /// fit in, and one more would block
    pub inputs: &'a SyncSender<Input>,
}

/// The engines of a mode.
pub struct Engines {
    /// prepared engines of all requested families; an error names what the machine lacks
    pub families: Vec<Opened>,
    /// their metrics
    pub metrics: Register,
    /// the domains that they write to, some or all of the mode's. Hand-over leaves these alone
    pub domains: &'static [RuleDomain],
    /// what serves connections in this process, if the mode does
    pub serving: Option<Arc<dyn Serving>>,
    /// the way in which traffic reaches the mode, if there are several
    pub way: Option<Way>,
}

/// A way in which traffic reaches a mode.
#[derive(Clone, Debug)]
pub struct Way {
    /// its name in the configuration
    pub name: &'static str,
    /// the capabilities of the mode by this way
    pub profile: Profile,
    /// what the machine lacks for the way that would have been preferred
    pub why: Option<String>,
}

/// Connections that this process serves itself, and that end with it.
pub trait Serving: Send + Sync {
    /// Duplicates of the listening sockets, each with its name, for the process that takes over: connections wait in them.
    ///
    /// # Errors
    /// The system's error if descriptors are exhausted.
    fn sockets(&self) -> io::Result<Vec<(String, OpenSocket)>>;
    /// The endpoints to which the UDP listener at this port leads; `None` if there is none.
    fn endpoints_of_datagrams(&self, family: Family, port: u16) -> Option<Arc<[Endpoint]>>;
    /// The rules of this family are in force: sockets of the process before that nothing has taken are closed.
    fn settled(&self, family: Family);
    /// Accepts no more connections, and returns when the last one has ended, or after this time: then the rest is reset. Returns
    /// their number.
    fn end(&self, within: Duration) -> usize;
    /// The time that established connections have when the program is asked to end.
    fn patience(&self) -> Duration;
}

/// Listening sockets of the process before, each with its name. They are closed with this, unless a mode takes them.
#[derive(Debug, Default)]
pub struct InheritedSockets(Mutex<Vec<(String, OpenSocket)>>);

/// A part of the kernel that holds rules of one mode, in both families: the tables that one tool writes, an nf_tables table of
/// its own, the virtual servers. Two modes may have domains of the same sort, such as tables of different names, never the
/// same domain.
#[derive(Clone, Copy, Debug)]
pub struct RuleDomain {
    /// the mode
    pub mode: &'static str,
    /// identifies it among all domains, and stands in the log
    pub name: &'static str,
    pub(crate) retire: fn(Family, Retirement<'_>, &mut Vec<Served>) -> Result<usize, RetireError>,
}

/// The treatment of established connections that need the rules which are to be removed. In most domains there are none:
/// connection tracking goes on translating them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// their rules stay until they have ended
    Spared,
    /// they end with their rules
    Ended,
}

/// The inputs of a removal of rules.
#[derive(Clone, Copy, Debug)]
pub struct Retirement<'a> {
    /// what happens to established connections
    pub established: Established,
    /// a mode reads its own section, also where another mode runs
    pub config: &'a KubeProxyConfiguration,
}

/// Reason for which nothing was removed.
#[derive(Debug, thiserror::Error)]
pub enum RetireError {
    /// established connections need the rules, which take no new ones
    #[error("{0}")]
    Waits(#[source] anyhow::Error),
    /// the machine lacks the subsystem that holds this mode's rules, so there are none
    #[error("{0}")]
    Absent(#[source] anyhow::Error),
    /// rules may still exist
    #[error("{0}")]
    Failed(#[source] anyhow::Error),
}

/// The result for leftovers of this mode in places that another program has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// nothing of this mode is there
    None,
    /// no other program has taken over: the rules are in use
    InUse,
    /// another proxy of this mode manages all of them
    Adopted,
    /// number of removed objects
    Removed(usize),
}

/// The mode isn't in this build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("mode {mode:?} {}", missing(mode))]
pub struct NoPlane {
    /// its name
    mode: String,
}

/// The list of modes. Tests compare other lists with a row for each mode with it.
#[cfg(target_os = "linux")]
pub const PLANES: &[Plane] = &[iptables::PLANE, ipvs::PLANE, nftables::PLANE, userspace::PLANE];

/// The list of modes.
#[cfg(not(target_os = "linux"))]
pub const PLANES: &[Plane] = &[userspace::PLANE];

// === impl InheritedSockets ===

impl InheritedSockets {
    /// These sockets.
    pub fn new(sockets: Vec<(String, OpenSocket)>) -> Self {
        Self(Mutex::new(sockets))
    }

    /// Those of these names; a second call returns none.
    pub fn take_where(&self, wanted: impl Fn(&str) -> bool) -> Vec<(String, OpenSocket)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extract_if(.., |(name, _)| wanted(name)).collect()
    }

    /// All of them; a second call returns none.
    pub fn take(&self) -> Vec<(String, OpenSocket)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl RuleDomain ===

impl RuleDomain {
    /// Removes all rules of one family from it, whichever program wrote them; returns the number of objects.
    ///
    /// # Errors
    /// If some are, or may be, left. Their frontends are added to `served` nevertheless, since some may have been removed.
    pub fn retire(
        &self,
        family: Family,
        retirement: Retirement<'_>,
        served: &mut Vec<Served>,
    ) -> Result<usize, RetireError> {
        (self.retire)(family, retirement, served)
    }
}

// === impl Plane ===

impl Plane {
    /// The mode of this name.
    ///
    /// # Errors
    /// If this build lacks it.
    pub fn named(mode: &str) -> Result<Self, NoPlane> {
        let plane = PLANES.iter().find(|plane| plane.mode == mode);
        plane.copied().ok_or_else(|| NoPlane { mode: mode.to_owned() })
    }

    /// Opens the engines of all families.
    ///
    /// # Errors
    /// If the mode can't be used on this machine, whatever the family.
    fn engines(&self, opening: &Opening<'_>) -> anyhow::Result<Engines> {
        (self.open)(opening)
    }

    /// The functions of the mode that need no kernel.
    pub fn offline(&self, config: &KubeProxyConfiguration) -> Offline {
        (self.offline)(config)
    }

    /// Engines that show what is in the kernel, of all families.
    ///
    /// # Errors
    /// If the mode can't be used on this machine, or its objects can't be read by another process than the one that runs.
    pub fn inspectors(&self, opening: &Opening<'_>) -> anyhow::Result<Vec<OpenedInspector>> {
        let mode = self.mode;
        let open = self.inspect.ok_or_else(|| {
            anyhow!(
                "mode {mode} holds its objects in the process that runs: only that could tell what is there; see render"
            )
        })?;
        if self.needs_net_admin {
            platform::require_net_admin()?;
        }
        open(opening)
    }

    /// Sets the kernel parameters that the first sync would set, and that opening the engines doesn't.
    ///
    /// # Errors
    /// If one can't be set.
    pub fn initialize(&self, settings: &Settings) -> anyhow::Result<()> {
        (self.initialize)(settings)
    }

    /// Deletes leftovers of this mode in places that another program has taken over.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove_leftovers(&self, family: Family) -> io::Result<Leftovers> {
        (self.remove_leftovers)(family)
    }
}

/// The rule domains of all modes.
pub fn domains() -> impl Iterator<Item = RuleDomain> {
    PLANES.iter().flat_map(|plane| plane.domains).copied()
}

/// The devices of all modes, since those of an earlier run may still be there.
pub fn devices() -> Vec<&'static str> {
    PLANES.iter().flat_map(|plane| plane.devices).copied().collect()
}

/// True if rules of some mode, of an earlier run or another program, forward packets of some service in this family. Changes
/// nothing.
///
/// # Errors
/// If it can't be determined.
pub fn in_use(family: Family) -> io::Result<bool> {
    let mut unknown = None;
    for plane in PLANES {
        match (plane.in_use)(family) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            // A kernel without the subsystem of the mode's rules has none of them.
            Err(error) if platform::lacks_subsystem(&error) => {}
            Err(error) => unknown = Some(error),
        }
    }
    unknown.map_or(Ok(false), Err)
}

/// Why there is no such mode here, and what there is.
fn missing(mode: &str) -> String {
    let names: Vec<&str> = PLANES.iter().map(|plane| plane.mode).collect();
    let names = if names.is_empty() { "no mode yet".to_owned() } else { names.join(", ") };
    match platform::why_missing(mode) {
        Some(why) => format!("{why}; this build has: {names}"),
        None => format!("is not supported by this build, which has: {names}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use ferry_lab::Mode;

    use super::*;

    #[test]
    fn no_two_modes_share_a_name_or_a_domain() {
        let modes: BTreeSet<&str> = PLANES.iter().map(|plane| plane.mode).collect();
        assert_eq!(modes.len(), PLANES.len());
        let names: BTreeSet<&str> = domains().map(|domain| domain.name).collect();
        assert_eq!(names.len(), domains().count());
        for plane in PLANES {
            assert!(!plane.domains.is_empty(), "{}: no domain to clean up", plane.mode);
            assert!(plane.domains.iter().all(|domain| domain.mode == plane.mode), "{}", plane.mode);
        }
    }

    #[test]
    fn every_mode_is_tested_and_documented() {
        assert_eq!(Mode::names(), PLANES.iter().map(|plane| plane.mode).collect::<Vec<_>>(), "rows of the lab");
        for mode in Mode::ALL {
            let plane = PLANES.iter().find(|plane| plane.mode == mode.name).unwrap();
            let is_of_way = mode.way.is_some() && mode.profile == Profile::USERSPACE_BIND;
            assert!(plane.profile == mode.profile || is_of_way, "{mode}");
        }
        // Mode userspace comes last, and has a second way.
        let of_modes = PLANES.iter().map(|plane| plane.profile);
        let profiles: Vec<Profile> = of_modes.chain([Profile::USERSPACE_BIND]).collect();
        assert_eq!(profiles, Profile::ALL);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
        for Plane { mode, .. } in PLANES {
            assert!(root.join(format!("docs/modes/{mode}.md")).is_file(), "docs/modes/{mode}.md");
            assert!(readme.contains(&format!("docs/modes/{mode}.md")), "README.md has no link to docs/modes/{mode}.md");
        }
    }
}
