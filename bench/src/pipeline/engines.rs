//! The engine of each mode for IPv4, with the settings of the mode's defaults, as the pipeline drives it without the executable.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ferry_api::config::{KubeProxyConfiguration, PortRange};
use ferry_api::object::Family;
use ferry_kernel::iptables::{Backend, Tool};
use ferry_lab::Mode;
use ferry_model::Scheduler;
use ferry_plane::SyncEngine;
use ferry_plane_iptables::{Counters, Features, IptablesCommitLock, IptablesEngine, why_no_sets};
use ferry_plane_ipvs::{IpvsEngine, IpvsOptions, Pings, ServerOptions, Shared};
use ferry_plane_nftables::kernel::Written;
use ferry_plane_nftables::{NftablesCommitLock, NftablesEngine};
use ferry_plane_userspace::bind::{self, BindEngine};
use ferry_plane_userspace::redirect::{self, UserspaceCommitLock, UserspaceEngine};
use ferry_plane_userspace::{ListenerReports, Relay, RelayConfig, SharedRelay, raise_limit};

/// The family.
const V4: Family = Family::V4;
/// Most descriptors that the relay may take: a listener for each of 16,000 ports, and connections.
const DESCRIPTORS: u64 = 100_000;

/// An engine with counters of the data sent to the kernel or the tool.
pub(super) trait Measured: SyncEngine {
    /// The data sent so far; in mode iptables, runs of the tool and the bytes of their input. Zeros where it is not counted.
    fn written(&self) -> Written {
        Written::default()
    }

    /// True before the first acknowledgement.
    fn is_new(&self) -> bool;
}

/// Opens the engine of a mode, and starts what runs beside it.
///
/// # Errors
/// If root, the tool or the kernel's part of the mode is missing.
pub(super) fn open(mode: Mode) -> anyhow::Result<Box<dyn Measured>> {
    Ok(match mode {
        Mode::IPVS => Box::new(ipvs()?),
        Mode::USERSPACE => Box::new(relaying(&mode)?),
        Mode::USERSPACE_BIND => Box::new(binding(&mode)?),
        Mode { backend: Some(variant), .. } => Box::new(iptables(variant)?),
        Mode::NFTABLES => Box::new(
            ferry_plane_nftables::engine(V4, NftablesCommitLock::default())
                .context("opening the engine, which needs root")?,
        ),
        other => bail!("mode {other} is not measured inside one process"),
    })
}

fn iptables(variant: Backend) -> anyhow::Result<IptablesEngine> {
    let tool = Tool::find(V4, Some(variant))?;
    let features = Features { has_sets: why_no_sets(&tool).is_none(), ..Features::default() };
    Ok(ferry_plane_iptables::engine(features, tool, IptablesCommitLock::default(), Arc::new(Counters::default())))
}

fn ipvs() -> anyhow::Result<IpvsEngine> {
    let servers = ServerOptions {
        scheduler: Scheduler::default(),
        excluded: Vec::new(),
        timeouts: None,
        grace: Duration::ZERO,
        reports: None,
        forwarding_reports: None,
    };
    let options = IpvsOptions { servers, strict_arp: false, pings: Pings::default() };
    ferry_plane_ipvs::engine(V4, &Shared::default(), options).context("opening the engine")
}

fn relaying(mode: &Mode) -> anyhow::Result<UserspaceEngine> {
    let mark = 1 << defaults(mode).effective().masquerade_bit;
    redirect::engine(V4, &UserspaceCommitLock::default(), &relay(mode, Some(mark))?, reports())
        .context("opening the engine")
}

fn binding(mode: &Mode) -> anyhow::Result<BindEngine> {
    let (engine, listener) = bind::engine(V4, &relay(mode, None)?, reports()).context("opening the engine")?;
    std::thread::spawn(move || println!("waiting for routes: {}", listener()));
    Ok(engine)
}

/// A relay whose threads run.
fn relay(mode: &Mode, mark: Option<u32>) -> anyhow::Result<SharedRelay> {
    raise_limit(DESCRIPTORS);
    let (relay, workers) = Relay::new(RelayConfig { mark, ..RelayConfig::default() })?;
    workers.into_iter().for_each(|worker| drop(std::thread::spawn(|| worker.run())));
    let ports = PortRange::parse(&defaults(mode).port_range).map_err(anyhow::Error::msg)?;
    Ok(SharedRelay {
        relay: Arc::new(relay),
        inheritance: Arc::default(),
        ports: ports.ports(),
        limit_per_port: usize::MAX,
        names: Default::default(),
        directory: Default::default(),
        datagrams: Default::default(),
    })
}

/// Prints listeners that are not open.
fn reports() -> ListenerReports {
    ListenerReports(Arc::new(|note| note.into_iter().for_each(|note| println!("{note}"))))
}

/// The configuration of a mode without settings.
pub(super) fn defaults(mode: &Mode) -> KubeProxyConfiguration {
    let mut config = KubeProxyConfiguration::default();
    mode.name.clone_into(&mut config.mode);
    "NodeCIDR".clone_into(&mut config.detect_local_mode);
    config.apply_platform_defaults();
    config
}

impl Measured for NftablesEngine {
    fn written(&self) -> Written {
        self.kernel().written()
    }

    fn is_new(&self) -> bool {
        self.acked().is_empty()
    }
}

impl Measured for IptablesEngine {
    fn written(&self) -> Written {
        let counters = self.kernel().counters();
        let (runs, bytes) = (counters.runs(), counters.bytes());
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Written { commits: count(runs), messages: count(runs), bytes: count(bytes) }
    }

    fn is_new(&self) -> bool {
        self.acked().is_empty()
    }
}

impl Measured for IpvsEngine {
    fn is_new(&self) -> bool {
        self.acked().is_empty()
    }
}

impl Measured for UserspaceEngine {
    fn is_new(&self) -> bool {
        self.acked().is_empty()
    }
}

impl Measured for BindEngine {
    fn is_new(&self) -> bool {
        self.acked().is_empty()
    }
}
