//! What a proxy runs in: a network namespace with an API server that has all the objects, and files for its start.

use std::cell::Cell;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use ferry_kernel::netns::Namespace;
use ferry_testkit::Mode;
use ferry_testkit::api::{ApiServer, Options, Told, objects};

use super::PROTOBUF;
use super::tools::Tools;
use crate::objects::ENDPOINTS;

/// The name of the node.
pub(super) const NODE: &str = "bench";

/// What the objects and the way they come are like.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) mode: Mode,
    pub(super) services: usize,
    /// of each service
    pub(super) endpoints: usize,
    /// how the proxy asks for objects
    pub(super) content_type: &'static str,
    /// the server knows streaming lists
    pub(super) streaming: bool,
}

/// The server is in this process, which isn't the proxy's.
pub(super) struct Site {
    pub(super) shape: Shape,
    /// of iptables mode
    pub(super) tools: Option<Tools>,
    server: ApiServer,
    folder: PathBuf,
    changes: Cell<usize>,
}

impl Shape {
    /// Protobuf in streaming lists.
    pub(super) fn of(mode: Mode, services: usize) -> anyhow::Result<Self> {
        let endpoints = usize::try_from(ENDPOINTS)?;
        Ok(Self { mode, services, endpoints, content_type: PROTOBUF, streaming: true })
    }
}

/// Runs something at a site of its own.
pub(super) fn at(shape: Shape, work: impl FnOnce(&Site) -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    namespace.raise_loopback()?;
    namespace.run(|| work(&Site::new(shape)?))?
}

// === impl Site ===

impl Site {
    fn new(shape: Shape) -> anyhow::Result<Self> {
        let server = ApiServer::start(Options { streaming_lists: shape.streaming, ..Options::secure() });
        server.load([
            objects::node(NODE, Ipv4Addr::new(10, 0, 0, 1), "zone-0"),
            objects::service_cidr("kubernetes", &["10.96.0.0/12"]),
        ]);
        for index in 0..shape.services {
            server.load([objects::service(index), objects::slice(index, &endpoints(index, shape.endpoints))]);
        }
        let folder = std::env::temp_dir().join(format!("ferry-bench-api-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let tools = match shape.mode.backend {
            None => None,
            Some(variant) => Some(Tools::new(folder.join("tools"), variant)?),
        };
        let site = Self { shape, tools, server, folder, changes: Cell::new(0) };
        site.server.kubeconfig(&site.file("kubeconfig"));
        // A namespace that isn't the machine's first has no limits of the connection tracker to set.
        let config = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {}\n\
             clusterCIDR: 10.244.0.0/16\nhostnameOverride: {NODE}\nhealthzBindAddress: 127.0.0.1:10256\n\
             metricsBindAddress: 127.0.0.1:10249\nclientConnection: {{kubeconfig: {}, contentType: {}}}\n\
             conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n",
            shape.mode.name,
            site.file("kubeconfig").display(),
            shape.content_type
        );
        fs::write(site.file("config.yaml"), config)?;
        Ok(site)
    }

    /// A file of the proxy.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The cluster IP of the service that comes last.
    pub(super) fn last_vip(&self) -> Ipv4Addr {
        objects::vip(self.shape.services.saturating_sub(1))
    }

    /// Replaces one endpoint of one service, of another one each time. Returns the resourceVersion.
    pub(super) fn replace(&self) -> u64 {
        let change = self.changes.replace(self.changes.get() + 1);
        let index = change.wrapping_mul(7919) % self.shape.services;
        let round = u32::try_from(1 + change / self.shape.services).unwrap_or(u32::MAX);
        self.server.put(objects::replaced(index, round).json())
    }

    /// Creates or replaces an object.
    pub(super) fn put(&self, json: &str) {
        self.server.put(json);
    }

    /// When the proxy was told of the last change.
    pub(super) fn told(&self) -> Option<Told> {
        self.server.last_told()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // In a temporary directory, so what can't be removed does no harm.
        let _ = fs::remove_dir_all::<&Path>(&self.folder);
    }
}

/// The first ones are those that replacing knows.
fn endpoints(index: usize, count: usize) -> Vec<Ipv4Addr> {
    let mut endpoints = objects::first_endpoints(index);
    let first = 0x0b00_0000 + 64 * u32::try_from(index).unwrap_or(0);
    endpoints.extend((first..).map(Ipv4Addr::from_bits).take(count.saturating_sub(endpoints.len())));
    endpoints
}
