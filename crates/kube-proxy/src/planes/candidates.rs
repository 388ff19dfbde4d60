//! The modes that a start tries in order: the configured one and, where the machine lacks what it needs, its fallbacks.

use std::fmt;
use std::sync::Arc;

use anyhow::anyhow;
use ferry_api::config::KubeProxyConfiguration;
use ferry_api::object::Family;
use ferry_model::{Profile, Settings};
use ferry_plane::{CommitError, SyncEngine};

use super::{Engines, NoPlane, Opening, Plane, RuleDomain, Serving, Way};
use crate::metrics::mode::Register;
use crate::platform;

/// The modes that a start tries, in order: the configured one, then its fallbacks.
#[derive(Clone, Debug)]
pub struct Candidates {
    configured: String,
    planes: Vec<Result<Plane, NoPlane>>,
}

/// The mode that runs: the first candidate that could be opened. Everything in it is of this mode.
pub struct EffectiveMode {
    /// the mode
    pub plane: Plane,
    /// the configuration in this mode
    pub config: KubeProxyConfiguration,
    /// its settings that affect traffic
    pub settings: Settings,
    /// one engine for each family that this mode can serve here; at least one
    pub engines: Vec<(Family, Box<dyn SyncEngine>)>,
    /// the metrics of the mode
    pub metrics: Register,
    /// the domains that the engines write to
    pub domains: &'static [RuleDomain],
    /// what serves connections in this process, if the mode does
    pub serving: Option<Arc<dyn Serving>>,
    /// the way in which traffic reaches it, if the mode has several
    pub way: Option<Way>,
    /// its capabilities by this way
    pub profile: Profile,
    /// the candidates before it
    pub failures: Failures,
}

/// The candidates that could not be opened, each with the reason.
#[derive(Debug, Default)]
pub struct Failures(Vec<(String, anyhow::Error)>);

/// Reason for which a mode can't be opened, by what its caller does next.
#[derive(Debug)]
enum OpenError {
    /// the machine or this build lacks something: try the next mode
    Lacking(anyhow::Error),
    /// the same mode may start later: end, so that the next start tries it again
    Temporary(anyhow::Error),
}

// === impl Candidates ===

impl Candidates {
    /// The configured mode and its fallbacks.
    ///
    /// # Errors
    /// If this build has none of them.
    pub fn of(config: &KubeProxyConfiguration) -> Result<Self, NoPlane> {
        let planes: Vec<_> = config.modes_to_try().into_iter().map(Plane::named).collect();
        match planes.first() {
            Some(Err(missing)) if planes.iter().all(Result::is_err) => Err(missing.clone()),
            _ => Ok(Self { configured: config.configured_mode().to_owned(), planes }),
        }
    }

    /// The configured mode, which may not be the effective one.
    pub fn configured(&self) -> &str {
        &self.configured
    }

    /// Opens the engines of the first mode for which that is possible. `opening` has the configuration and the settings of the
    /// configured mode; each candidate is opened with its own.
    ///
    /// # Errors
    /// If there is no such mode, or one of them may start later: the reason of each mode that was tried.
    pub fn open(&self, opening: &Opening<'_>) -> anyhow::Result<EffectiveMode> {
        let mut failures = Failures::default();
        for plane in &self.planes {
            let opened = match plane {
                Ok(plane) => open(*plane, opening).map_err(|error| (plane.mode.to_owned(), error)),
                Err(missing) => Err((missing.mode.clone(), OpenError::Lacking(missing.clone().into()))),
            };
            match opened {
                Ok(mode) => return Ok(EffectiveMode { failures, ..mode }),
                Err((mode, OpenError::Lacking(error))) => failures.0.push((mode, error)),
                Err((mode, OpenError::Temporary(error))) => {
                    failures.0.push((mode, error));
                    break;
                }
            }
        }
        Err(failures.into_error())
    }
}

// === impl Failures ===

impl Failures {
    /// True if the configured mode runs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The error of a start without a mode: that of the only mode that was tried, or the reason of each.
    fn into_error(mut self) -> anyhow::Error {
        match self.0.pop() {
            Some((_, only)) if self.0.is_empty() => only,
            last => {
                self.0.extend(last);
                anyhow!("no mode can start: {self}")
            }
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (mode, error)) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{mode}: {error:#}")?;
        }
        Ok(())
    }
}

/// Opens the engines of one mode, and logs the families that it can't serve.
fn open(plane: Plane, opening: &Opening<'_>) -> Result<EffectiveMode, OpenError> {
    let mode = plane.mode;
    let config = opening.config.in_mode(mode);
    let settings = Settings::from_config(&config, &opening.settings.node_name);
    if plane.needs_net_admin {
        platform::require_net_admin().map_err(OpenError::Lacking)?;
    }
    let opened = plane.engines(&Opening { config: &config, settings: &settings, ..*opening });
    let Engines { families, metrics, domains, serving, way } = opened.map_err(OpenError::Lacking)?;
    let (mut engines, mut failed) = (Vec::new(), Vec::new());
    for (family, opened) in families {
        match opened {
            Ok(engine) => engines.push((family, engine)),
            Err(error) => failed.push((family, error)),
        }
    }
    if engines.is_empty() {
        let reasons: Vec<_> = failed.iter().map(|(family, error)| format!("{family}: {error}")).collect();
        let error = anyhow!("mode {mode} can't be used on this machine: {}", reasons.join("; "));
        let may_pass = failed.iter().any(|(_, error)| is_temporary(error));
        return Err(if may_pass { OpenError::Temporary(error) } else { OpenError::Lacking(error) });
    }
    for (family, error) in failed {
        tracing::error!(%family, mode, err = %error, "Family can't be served, keeping its rules of an earlier run");
    }
    let failures = Failures::default();
    let profile = way.as_ref().map_or(plane.profile, |way| way.profile);
    Ok(EffectiveMode { plane, config, settings, engines, metrics, domains, serving, way, profile, failures })
}

fn is_temporary(error: &CommitError) -> bool {
    match error {
        CommitError::Resources(_) | CommitError::Busy(_) => true,
        CommitError::Drifted { .. } | CommitError::Refused(_) | CommitError::Unusable(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::flows::testing::Holds;
    use crate::metrics::mode::NftablesMetrics;
    use crate::planes::{InheritedSockets, PLANES};
    use crate::threads::Threads;

    /// Engines for IPv4, if that is not an error, without IPv6.
    fn engines(v4: Result<(), CommitError>) -> Engines {
        let v4 = v4.map(|()| -> Box<dyn SyncEngine> { Box::new(Holds(Vec::new())) });
        let v6 = Err(CommitError::Unusable(io::Error::other("no such table")));
        let families = vec![(Family::V4, v4), (Family::V6, v6)];
        Engines { families, metrics: Box::new(NftablesMetrics::register), domains: &[], serving: None, way: None }
    }

    fn starts(_: &Opening<'_>) -> anyhow::Result<Engines> {
        Ok(engines(Ok(())))
    }

    fn fails(_: &Opening<'_>) -> anyhow::Result<Engines> {
        Err(anyhow!("not found in PATH").context("no tool"))
    }

    fn unusable(_: &Opening<'_>) -> anyhow::Result<Engines> {
        Ok(engines(Err(CommitError::Unusable(io::Error::other("no module")))))
    }

    fn busy(_: &Opening<'_>) -> anyhow::Result<Engines> {
        Ok(engines(Err(CommitError::Busy(io::Error::other("lock")))))
    }

    type Open = fn(&Opening<'_>) -> anyhow::Result<Engines>;

    fn plane(mode: &'static str, open: Open) -> Result<Plane, NoPlane> {
        PLANES.first().map(|plane| Plane { mode, open, ..*plane }).ok_or_else(|| NoPlane { mode: mode.to_owned() })
    }

    fn missing(mode: &str) -> Result<Plane, NoPlane> {
        Err(NoPlane { mode: mode.to_owned() })
    }

    fn config() -> KubeProxyConfiguration {
        let mut config = KubeProxyConfiguration { mode: "ipvs".to_owned(), ..KubeProxyConfiguration::default() };
        config.nftables.masquerade_bit = 3;
        config
    }

    fn open_first(planes: Vec<Result<Plane, NoPlane>>) -> anyhow::Result<EffectiveMode> {
        let (config, threads, (inputs, _core)) = (config(), Threads::new().0, sync_channel(1));
        let settings = Settings::from_config(&config, "node");
        let opening = Opening {
            families: &Family::ALL,
            config: &config,
            settings: &settings,
            threads: &threads,
            sockets: &InheritedSockets::default(),
            inputs: &inputs,
        };
        Candidates { configured: "ipvs".to_owned(), planes }.open(&opening)
    }

    #[test]
    fn the_configured_mode_runs_if_it_can() {
        let planes = vec![plane("ipvs", starts), plane("nftables", fails)];
        let mut mode = None;
        let log = crate::logging::logged(0, || mode = Some(open_first(planes).unwrap()));
        let mode = mode.unwrap();
        assert_eq!((mode.plane.mode, mode.engines.len(), mode.failures.is_empty()), ("ipvs", 1, true));
        assert!(log.contains("family=\"IPv6\" mode=\"ipvs\" err=\"not usable here: no such table\""), "{log}");
    }

    #[test]
    fn the_first_fallback_that_starts_runs_with_its_own_settings() {
        let planes =
            vec![plane("ipvs", unusable), missing("ebpf"), plane("iptables", fails), plane("nftables", starts)];
        let mut mode = None;
        let log = crate::logging::logged(0, || mode = Some(open_first(planes).unwrap()));
        let mode = mode.unwrap();
        assert_eq!(mode.plane.mode, "nftables");
        assert_eq!((mode.config.mode.as_str(), mode.settings.masquerade_bit), ("nftables", 3));
        let missing = NoPlane { mode: "ebpf".to_owned() };
        let wanted = format!(
            "ipvs: mode ipvs can't be used on this machine: IPv4: not usable here: no module; IPv6: not usable here: no such \
             table; ebpf: {missing}; iptables: no tool: not found in PATH"
        );
        assert_eq!(mode.failures.to_string(), wanted);
        assert!(!log.contains("mode=\"ipvs\""), "its families are not left out, the mode is: {log}");
    }

    #[test]
    fn without_a_mode_every_reason_is_named() {
        let error = |planes| format!("{:#}", open_first(planes).err().unwrap());
        assert_eq!(error(vec![plane("ipvs", fails)]), "no tool: not found in PATH");
        let both = error(vec![missing("ipvs"), plane("iptables", fails)]);
        assert!(both.starts_with("no mode can start: ipvs: mode \"ipvs\" is not supported"), "{both}");
        assert!(both.ends_with("; iptables: no tool: not found in PATH"), "{both}");
    }

    #[test]
    fn a_mode_that_may_start_later_has_no_fallback() {
        let error = open_first(vec![plane("ipvs", busy), plane("nftables", starts)]).err().unwrap().to_string();
        assert!(error.starts_with("mode ipvs can't be used on this machine: IPv4: busy: lock; IPv6: "), "{error}");
    }

    #[test]
    fn the_mode_of_windows_is_refused_with_advice() {
        let config = KubeProxyConfiguration { mode: "winuserspace".to_owned(), ..config() };
        let error = Candidates::of(&config).unwrap_err().to_string();
        assert!(
            error.starts_with("mode \"winuserspace\" adds Service addresses to an interface of Windows: use "),
            "{error}"
        );
        assert!(error.ends_with("this build has: iptables, ipvs, nftables, userspace"), "{error}");
    }

    #[test]
    fn a_mode_that_this_build_lacks_needs_a_fallback() {
        let mut config = KubeProxyConfiguration { mode: "ebpf".to_owned(), ..config() };
        assert_eq!(Candidates::of(&config).unwrap_err(), NoPlane { mode: "ebpf".to_owned() });
        config.ferry.proxy_mode_fallback = vec!["nftables".to_owned(), "iptables".to_owned()];
        let candidates = Candidates::of(&config).unwrap();
        let modes: Vec<_> = candidates.planes.iter().flatten().map(|plane| plane.mode).collect();
        assert_eq!((candidates.configured(), modes), ("ebpf", vec!["nftables", "iptables"]));
        let blank = Candidates::of(&KubeProxyConfiguration { mode: String::new(), ..config }).unwrap();
        assert_eq!((blank.configured(), blank.planes.len()), ("iptables", 2));
    }
}
