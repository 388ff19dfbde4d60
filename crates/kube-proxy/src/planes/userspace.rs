//! Mode userspace: starts the relay and opens its engines, one table per family that leads to it; removes upstream's chains of this
//! mode.

mod metrics;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use ferry_api::config::{KubeProxyConfiguration, MODE_USERSPACE, PortRange, WAY_BIND};
use ferry_api::object::Family;
use ferry_model::{Endpoint, Profile};
use ferry_plane::{CommitError, Kernel as _, Served, SyncEngine};
use ferry_plane_userspace::{
    Config, Datagrams, Directory, Readings, Relay, Removal, SharedRelay, UserspaceCommitLock, Worker, raise_limit,
};

use self::metrics::{USERSPACE_TABLE, UserspaceMetrics};
use super::nftables::TABLE;
use super::{Engines, LISTENER, Leftovers, Opened, Opening, Plane, RetireError, Retirement, RuleDomain, Serving};
use crate::platform::OpenSocket;
use crate::threads::{STACK_BYTES, Threads};

pub(super) const PLANE: Plane = Plane {
    mode: MODE_USERSPACE,
    profile: Profile::USERSPACE,
    paced: false,
    domains: &[PORTALS],
    metrics: USERSPACE_TABLE,
    devices: &[],
    open,
    // It needs none.
    initialize: |_| Ok(()),
    remove_leftovers,
    // Rules of an earlier run lead to listeners that have ended with it.
    in_use: |_| Ok(false),
};

/// The chains of upstream's mode userspace. This mode has none.
const PORTALS: RuleDomain =
    RuleDomain { mode: MODE_USERSPACE, name: "iptables chains of mode userspace", retire: retire_portals };
/// The table replaces that of mode nftables.
const OWN: &[RuleDomain] = &[TABLE];

/// The names of the relay's threads. More threads than this share nothing worth it.
const WORKERS: [&str; 4] = ["relay-0", "relay-1", "relay-2", "relay-3"];

fn open(opening: &Opening<'_>) -> anyhow::Result<Engines> {
    let config = opening.config;
    ensure!(config.ferry.userspace.way != WAY_BIND, "userspaceWay bind is not in this build: use redirect");
    let mark = 1 << config.effective().masquerade_bit;
    let relay_config = Config { mark: Some(mark), ..relay_config(config) };
    let (relay, workers) = Relay::new(relay_config).context("starting the relay")?;
    let shared = shared(opening, relay)?;
    let commit_lock = UserspaceCommitLock::default();
    let open = |family| -> Result<Box<dyn SyncEngine>, CommitError> {
        let engine = ferry_plane_userspace::engine(family, &commit_lock, &shared);
        let mut engine = engine.map_err(CommitError::Unusable)?;
        // What the kernel lacks is reported at the start.
        engine.kernel_mut().prepare()?;
        Ok(Box::new(engine))
    };
    let families: Vec<Opened> = opening.families.iter().map(|family| (*family, open(*family))).collect();
    if families.iter().any(|(_, opened)| opened.is_ok()) {
        let (listen, failed) = (ferry_plane_userspace::listener(commit_lock)?, opening.threads.clone());
        opening.threads.spawn(LISTENER, STACK_BYTES, move || {
            failed.fail(anyhow::Error::new(listen()).context("waiting for nf_tables notifications"));
        })?;
        start(workers, opening.threads)?;
        // A mode that can't start leaves them to the one that does, which passes on what waits there.
        shared.inheritance.add(opening.sockets.take());
    }
    let readings = Readings::new(shared.directory.clone(), Arc::clone(&shared.relay));
    let patience = config.ferry.userspace.drain_timeout.to_std();
    Ok(Engines {
        families,
        metrics: Box::new(move |registry| UserspaceMetrics::register(readings, registry)),
        domains: OWN,
        serving: Some(Arc::new(OwnRelay { shared, patience })),
    })
}

/// The relay of this process.
struct OwnRelay {
    shared: SharedRelay,
    patience: Duration,
}

impl Serving for OwnRelay {
    fn sockets(&self) -> io::Result<Vec<(String, OpenSocket)>> {
        self.shared.sockets()
    }

    fn endpoints_of_datagrams(&self, family: Family, port: u16) -> Option<Arc<[Endpoint]>> {
        self.shared.datagrams.endpoints(family, port)
    }

    fn settled(&self, family: Family) {
        self.shared.forget_inherited(family);
    }

    fn end(&self, within: Duration) -> usize {
        self.shared.relay.drain(within)
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

/// The relay with these settings, with limits that fit the descriptors of this process.
fn relay_config(config: &KubeProxyConfiguration) -> Config {
    let userspace = &config.ferry.userspace;
    let grace = userspace.termination_grace_period.to_std();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut relay = Config {
        workers: cores.min(WORKERS.len()),
        removal: if grace.is_zero() { Removal::Cut } else { Removal::Grace(grace) },
        udp_idle: userspace.udp_timeout.to_std().max(Duration::from_millis(1)),
        max_connections: count(userspace.max_connections),
        max_associations: count(userspace.max_associations),
        ..Config::default()
    };
    let wanted = (relay.max_connections, relay.max_associations);
    relay.fit(raise_limit(relay.descriptors()));
    let fits = (relay.max_connections, relay.max_associations);
    if fits != wanted {
        let (connections, associations) = fits;
        tracing::info!(
            connections,
            associations,
            "Limits of connections fit the limit of open files, which is lower than userspaceMaxConnections and \
             userspaceMaxAssociations need"
        );
    }
    relay
}

fn shared(opening: &Opening<'_>, relay: Relay) -> anyhow::Result<SharedRelay> {
    let config = opening.config;
    let ports = PortRange::parse(&config.port_range).map_err(|why| anyhow!("portRange {why}"))?;
    let of_port = count(config.ferry.userspace.max_connections_per_port);
    Ok(SharedRelay {
        relay: Arc::new(relay),
        inheritance: Arc::default(),
        ports: ports.ports(),
        limit_per_port: if of_port == 0 { usize::MAX } else { of_port },
        next_listener: Arc::default(),
        names: Arc::default(),
        directory: Directory::default(),
        datagrams: Datagrams::default(),
    })
}

/// A validated number is not negative.
fn count(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}

fn start(workers: Vec<Worker>, threads: &Threads) -> anyhow::Result<()> {
    for (worker, name) in workers.into_iter().zip(WORKERS) {
        threads.spawn(name, STACK_BYTES, move || {
            worker.run();
            // The relay ends before the program does, which the end of this thread would end with an error.
            loop {
                std::thread::park();
            }
        })?;
    }
    Ok(())
}

fn retire_portals(family: Family, _: Retirement<'_>, _: &mut Vec<Served>) -> Result<usize, RetireError> {
    ferry_plane_iptables::retire_of_userspace(family).map_err(|error| {
        RetireError::Failed(anyhow::Error::new(error).context("removing chains of upstream's mode userspace"))
    })
}

/// Another proxy that has taken over has replaced the table, or deleted it.
fn remove_leftovers(_: Family) -> io::Result<Leftovers> {
    Ok(Leftovers::None)
}
