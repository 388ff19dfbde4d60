//! The relay of mode userspace as this process runs it: its limits, its threads, and what the program asks it for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use ferry_api::config::{KubeProxyConfiguration, PortRange};
use ferry_api::object::Family;
use ferry_model::Endpoint;
use ferry_plane_userspace::{ListenerReports, Relay, RelayConfig, Removal, SharedRelay, Worker, raise_limit};

use crate::input::{Input, NodeProblem, NodeWarning};
use crate::planes::{Opening, Serving};
use crate::platform::OpenSocket;
use crate::threads::{STACK_BYTES, Threads};

/// The names of the relay's threads. More threads than this share nothing worth it.
const WORKERS: [&str; 4] = ["relay-0", "relay-1", "relay-2", "relay-3"];

/// The relay of this process.
pub(super) struct OwnRelay {
    pub(super) shared: SharedRelay,
    pub(super) patience: Duration,
    pub(super) at_end: Box<dyn Fn() + Send + Sync>,
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
        let left = self.shared.relay.drain(within);
        (self.at_end)();
        left
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

/// A relay whose connections to endpoints carry this mark, and its threads, which are not started.
///
/// # Errors
/// The system's, or that of a setting.
pub(super) fn relay(opening: &Opening<'_>, mark: Option<u32>) -> anyhow::Result<(SharedRelay, Vec<Worker>)> {
    let config = RelayConfig { mark, ..relay_config(opening.config) };
    let (relay, workers) = Relay::new(config).context("starting the relay")?;
    Ok((shared(opening, relay)?, workers))
}

/// The relay with these settings, with limits that fit the descriptors of this process.
fn relay_config(config: &KubeProxyConfiguration) -> RelayConfig {
    let userspace = &config.ferry.userspace;
    let grace = userspace.termination_grace_period.to_std();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut relay = RelayConfig {
        workers: cores.min(WORKERS.len()),
        removal: if grace.is_zero() { Removal::Cut } else { Removal::Grace(grace) },
        udp_idle: userspace.udp_timeout.to_std().max(Duration::from_millis(1)),
        max_connections: count(userspace.max_connections),
        max_associations: count(userspace.max_associations),
        ..RelayConfig::default()
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
        names: Default::default(),
        directory: Default::default(),
        datagrams: Default::default(),
    })
}

/// A validated number is not negative.
fn count(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// Starts the relay's threads.
///
/// # Errors
/// The system's.
pub(super) fn start(workers: Vec<Worker>, threads: &Threads) -> anyhow::Result<()> {
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

/// Reports listeners of a family that are not open as a problem of the node.
pub(super) fn listener_reports(opening: &Opening<'_>, family: Family) -> ListenerReports {
    let inputs = opening.inputs.clone();
    ListenerReports(Arc::new(move |note| {
        let warning = NodeWarning { problem: NodeProblem::ListenerFailed, family, note: note.map(str::to_owned) };
        // Without a receiver the program is ending.
        let _ = inputs.send(Input::NodeWarning(warning));
    }))
}
