//! The environment of a proxy under measurement: a network namespace with an API server that has all objects, and the
//! proxy's files.

use std::cell::Cell;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use ferry_kernel::netns::Namespace;
use ferry_lab::Mode;
use ferry_lab::api::{ApiServer, ApiServerOptions, Delivery, objects};

use super::PROTOBUF;
use super::tools::Tools;
use crate::objects::ENDPOINTS;

/// The name of the node.
pub(super) const NODE: &str = "bench";

/// Numbers of objects, and how the API server delivers them.
#[derive(Clone, Copy)]
pub(super) struct Workload {
    pub(super) mode: Mode,
    pub(super) services: usize,
    /// endpoints of each service
    pub(super) endpoints: usize,
    /// content type that the proxy requests
    pub(super) content_type: &'static str,
    /// the server supports streaming lists
    pub(super) streaming: bool,
}

/// A namespace with an API server, which runs in this process, not in the proxy's.
pub(super) struct Site {
    pub(super) workload: Workload,
    /// the tools of iptables mode
    pub(super) tools: Option<Tools>,
    server: ApiServer,
    folder: PathBuf,
    changes: Cell<usize>,
}

impl Workload {
    /// The default delivery: protobuf in streaming lists.
    pub(super) fn of(mode: Mode, services: usize) -> anyhow::Result<Self> {
        let endpoints = usize::try_from(ENDPOINTS)?;
        Ok(Self { mode, services, endpoints, content_type: PROTOBUF, streaming: true })
    }
}

/// Runs a measurement in a new site.
pub(super) fn at(workload: Workload, work: impl FnOnce(&Site) -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    namespace.raise_loopback()?;
    namespace.run(|| work(&Site::new(workload)?))?
}

// === impl Site ===

impl Site {
    fn new(workload: Workload) -> anyhow::Result<Self> {
        let server =
            ApiServer::start(ApiServerOptions { streaming_lists: workload.streaming, ..ApiServerOptions::secure() });
        server.load([
            objects::node(NODE, Ipv4Addr::new(10, 0, 0, 1), "zone-0"),
            objects::service_cidr("kubernetes", &["10.96.0.0/12"]),
        ]);
        for index in 0..workload.services {
            server.load([objects::service(index), objects::slice(index, &endpoints(index, workload.endpoints))]);
        }
        let folder = std::env::temp_dir().join(format!("ferry-bench-api-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let tools = match workload.mode.backend {
            None => None,
            Some(variant) => Some(Tools::new(folder.join("tools"), variant)?),
        };
        let site = Self { workload, tools, server, folder, changes: Cell::new(0) };
        site.server.kubeconfig(&site.file("kubeconfig"));
        // Conntrack limits can only be set in the initial network namespace. In mode ipvs upstream's proxy would begin the next
        // sync of everything before it has ended the one before, on an emulated machine, and never be quiet.
        let config = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {}\n\
             clusterCIDR: 10.244.0.0/16\nhostnameOverride: {NODE}\nhealthzBindAddress: 127.0.0.1:10256\n\
             metricsBindAddress: 127.0.0.1:10249\nclientConnection: {{kubeconfig: {}, contentType: {}}}\n\
             conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n\
             ipvs: {{syncPeriod: 1h}}\n",
            workload.mode.name,
            site.file("kubeconfig").display(),
            workload.content_type
        );
        fs::write(site.file("config.yaml"), config)?;
        Ok(site)
    }

    /// Path of a file of the proxy.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The cluster IP of the last service.
    pub(super) fn last_vip(&self) -> Ipv4Addr {
        objects::vip(self.workload.services.saturating_sub(1))
    }

    /// An endpoint of the last service.
    pub(super) fn first_endpoint(&self) -> Ipv4Addr {
        objects::endpoint(self.workload.services.saturating_sub(1), 0)
    }

    /// The cluster IP of the service that the next [`Site::replace`] changes.
    pub(super) fn next_replaced(&self) -> Ipv4Addr {
        objects::vip(self.index_of(self.changes.get()))
    }

    /// Replaces one endpoint of one service, of another service at each call. Returns the resourceVersion.
    pub(super) fn replace(&self) -> u64 {
        let change = self.changes.replace(self.changes.get() + 1);
        let index = self.index_of(change);
        let round = u32::try_from(1 + change / self.workload.services).unwrap_or(u32::MAX);
        self.server.put(objects::replaced(index, round).json())
    }

    /// Leaves the last service this endpoint alone. Returns the resourceVersion.
    pub(super) fn lead_last_to(&self, endpoint: Ipv4Addr) -> u64 {
        self.server.put(objects::slice(self.workload.services.saturating_sub(1), &[endpoint]).json())
    }

    /// The service of a change.
    fn index_of(&self, change: usize) -> usize {
        change.wrapping_mul(7919) % self.workload.services
    }

    /// Creates or replaces an object.
    pub(super) fn put(&self, json: &str) {
        self.server.put(json);
    }

    /// The times of sending the last change to the proxy.
    pub(super) fn last_delivery(&self) -> Option<Delivery> {
        self.server.last_delivery()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // A leftover in the temporary directory is harmless.
        let _ = fs::remove_dir_all::<&Path>(&self.folder);
    }
}

/// Endpoints of a service. The first ones are the builder's, which [`Site::replace`] replaces.
fn endpoints(index: usize, count: usize) -> Vec<Ipv4Addr> {
    let mut endpoints = objects::first_endpoints(index);
    let first = 0x0b00_0000 + 64 * u32::try_from(index).unwrap_or(0);
    endpoints.extend((first..).map(Ipv4Addr::from_bits).take(count.saturating_sub(endpoints.len())));
    endpoints
}
