//! Detects when a proxy is up to date by a marker: a Service and an EndpointSlice that are changed last. A proxy is up to
//! date when a connection from its node to the marker's cluster IP and newest port reaches the endpoint's newest port, which
//! needs both changes in force.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ferry_lab::Host;

use super::network::HUB;
use super::objects::{MARKER_IP, mark, marker_port, marker_target};
use super::server::MeasuredServer;

/// Interval between attempts of a node.
const POLL: Duration = Duration::from_millis(100);
/// Time limit of one attempt.
const ATTEMPT: Duration = Duration::from_millis(300);

/// The marker at its newest version, whose endpoint is the only one with a server.
pub(super) struct Marker<'a> {
    hub: &'a Host,
    version: u16,
    /// connections complete in its backlog without being accepted: one per node
    served: TcpListener,
}

// === impl Marker ===

impl<'a> Marker<'a> {
    /// The marker at the initial version of the objects.
    pub(super) fn new(hub: &'a Host) -> anyhow::Result<Self> {
        Ok(Self { hub, version: 0, served: listen(hub, 0)? })
    }

    /// Writes the next version. Returns the time just before its last write.
    pub(super) fn advance(&mut self, server: &MeasuredServer<'_>) -> anyhow::Result<Instant> {
        self.version += 1;
        self.served = listen(self.hub, self.version)?;
        let [slice, service] = mark(self.version);
        server.ask(&slice);
        let last = Instant::now();
        server.ask(&service);
        Ok(last)
    }

    /// Waits until each node is up to date, at most until a deadline; returns the time at which each was.
    pub(super) fn wait(&self, nodes: &[Host], until: Instant) -> anyhow::Result<Vec<Option<Instant>>> {
        let at = SocketAddr::from((MARKER_IP, marker_port(self.version)));
        let probes: Vec<_> = nodes.iter().map(|node| node.thread(move || probe(at, until))).collect();
        probes.into_iter().map(|probe| probe.join().ok().context("a probe panicked")).collect()
    }
}

fn listen(hub: &Host, version: u16) -> anyhow::Result<TcpListener> {
    let address = (HUB, marker_target(version));
    hub.run(move || TcpListener::bind(address)).with_context(|| format!("listening on {address:?}"))
}

fn probe(at: SocketAddr, until: Instant) -> Option<Instant> {
    while Instant::now() < until {
        if TcpStream::connect_timeout(&at, ATTEMPT).is_ok() {
            return Some(Instant::now());
        }
        std::thread::sleep(POLL);
    }
    None
}
