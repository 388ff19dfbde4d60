//! Mode name → engines: the only place that tells modes apart.

use std::io;

use ferry_api::config::{KubeProxyConfiguration, MODE_NFTABLES};
use ferry_api::object::Family;
use ferry_model::Profile;
use ferry_plane::{CommitError, Kernel as _, SyncEngine};
use ferry_plane_nftables::CommitTurn;

/// What came of opening the engine of one family.
pub type Opened = (Family, Result<Box<dyn SyncEngine>, CommitError>);

/// A mode of this build.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    /// its name in the configuration
    pub mode: &'static str,
    /// what it can express
    pub profile: Profile,
    open: fn(&[Family], Purpose) -> Vec<Opened>,
    remove_leftovers: fn(Family) -> io::Result<Leftovers>,
    /// whether an earlier run's rules send packets of some service anywhere in this family; changes nothing
    pub in_use: fn(Family) -> io::Result<bool>,
}

/// What became of what this mode left in places that somebody else has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// nothing of this mode is there
    None,
    /// nobody has taken over: it is in use
    InUse,
    /// so many objects are gone
    Removed(usize),
}

/// What engines are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// to work: what the machine lacks should show at once
    Work,
    /// to remove what is there, on whatever machine
    Retire,
}

/// The configured mode isn't in this build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlane {
    /// blank, which upstream takes for iptables
    #[error(
        "no mode is configured, and upstream's default, iptables, is not in this build, which has: {}; \
         set \"mode: nftables\" in the configuration file or pass --proxy-mode=nftables",
        names()
    )]
    Blank,
    /// a mode that upstream has or had
    #[error("mode {mode:?} is not in this build, which has: {}", names())]
    Absent {
        /// its name
        mode: String,
    },
}

/// Every mode of this build.
pub const PLANES: &[Plane] = &[Plane {
    mode: MODE_NFTABLES,
    profile: Profile::NFTABLES,
    open: nftables,
    remove_leftovers: nftables_leftovers,
    in_use: ferry_plane_nftables::in_use,
}];

// === impl Plane ===

impl Plane {
    /// The configured mode.
    pub fn of(config: &KubeProxyConfiguration) -> Result<Self, NoPlane> {
        if config.mode.is_empty() {
            return Err(NoPlane::Blank);
        }
        let plane = PLANES.iter().find(|plane| plane.mode == config.mode);
        plane.copied().ok_or_else(|| NoPlane::Absent { mode: config.mode.clone() })
    }

    /// Engines of these families that are ready to work. Where the machine lacks something, the error names it.
    pub fn engines(&self, families: &[Family]) -> Vec<Opened> {
        (self.open)(families, Purpose::Work)
    }

    /// Removes all of these families that is ours, and goes on after an error.
    pub fn retire(&self, families: &[Family]) -> Vec<(Family, Vec<CommitError>)> {
        let opened = (self.open)(families, Purpose::Retire).into_iter();
        let retired = opened.map(|(family, engine)| {
            let errors = match engine {
                Ok(engine) => engine.retire().err().unwrap_or_default(),
                Err(error) => vec![error],
            };
            (family, errors)
        });
        retired.collect()
    }

    /// Deletes what this mode left of its own in places that somebody else has taken over.
    pub fn remove_leftovers(&self, family: Family) -> io::Result<Leftovers> {
        (self.remove_leftovers)(family)
    }
}

fn names() -> String {
    let names: Vec<&str> = PLANES.iter().map(|plane| plane.mode).collect();
    names.join(", ")
}

fn nftables(families: &[Family], purpose: Purpose) -> Vec<Opened> {
    let turn = CommitTurn::default();
    let open = |family| -> Result<Box<dyn SyncEngine>, CommitError> {
        let mut engine = ferry_plane_nftables::engine(family, turn.clone()).map_err(CommitError::Unusable)?;
        if purpose == Purpose::Work {
            engine.kernel_mut().prepare()?;
        }
        Ok(Box::new(engine))
    };
    families.iter().map(|family| (*family, open(*family))).collect()
}

fn nftables_leftovers(family: Family) -> io::Result<Leftovers> {
    use ferry_plane_nftables::leftovers;
    Ok(match leftovers::remove(family)? {
        leftovers::Leftovers::NoTable => Leftovers::None,
        leftovers::Leftovers::NotTakenOver => Leftovers::InUse,
        leftovers::Leftovers::Removed(objects) => Leftovers::Removed(objects),
    })
}
