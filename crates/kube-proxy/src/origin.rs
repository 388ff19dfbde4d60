//! Opens the source of objects: a directory of manifests or the API server.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use ferry_model::Settings;
use sha2::{Digest as _, Sha256};

use crate::core::{NodeFacts, NodeWait};
use crate::events::{self, Recorder};
use crate::health::Freshness;
use crate::metrics::Metrics;
use crate::platform;
use crate::source::Sink;
use crate::source::api::{self, ApiSource};
use crate::source::directory::DirectorySource;
use ferry_client::{self as client, Access, Client};

/// The configured source of objects.
#[derive(Debug)]
pub enum Origin {
    /// a directory of manifests
    Manifests(PathBuf),
    /// the API server of a cluster
    Cluster {
        /// server and credentials
        access: Box<Access>,
        /// request settings
        options: Box<client::ClientOptions>,
        /// requests streaming lists; without, paged lists only
        streaming_lists: bool,
    },
}

/// An opened source, and what the rest of the program gets with it.
#[derive(Debug)]
pub struct Opened {
    /// delivers the objects
    pub source: Source,
    /// where the facts about this node come from
    pub node: NodeFacts,
    /// staleness of objects; `None` with manifests
    pub freshness: Option<Arc<Freshness>>,
    /// recorder of Events
    pub recorder: Recorder,
    /// the cluster; `None` with manifests
    pub cluster: Option<CurrentCluster>,
}

/// A cluster whose identity can be asked for at any time: its certificate authorities may be replaced while the proxy runs.
#[derive(Clone)]
pub struct CurrentCluster(Arc<dyn Fn() -> ClusterIdentity + Send + Sync>);

/// Identity of a cluster, known without asking its API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterIdentity {
    /// URL of the API server, without credentials
    pub server: String,
    /// SHA-256 of its certificate authorities, in hexadecimal; empty without any
    pub authorities: String,
}

/// A source, which delivers objects until the core has ended.
#[derive(Debug)]
pub enum Source {
    /// from files
    Directory(Box<DirectorySource>),
    /// from an API server
    Api(Box<ApiSource>),
}

// === impl Origin ===

impl Origin {
    /// Prepares the source: configuration errors fail here, before the kernel is changed.
    ///
    /// # Errors
    /// If the directory can't be read, or the client can't be created.
    pub fn open(self, settings: &Settings, metrics: &Metrics) -> anyhow::Result<Opened> {
        match self {
            Self::Manifests(path) => {
                let directory = DirectorySource::open(&path)
                    .with_context(|| format!("reading the manifests in {}", path.display()))?;
                let source = Source::Directory(Box::new(directory));
                Ok(Opened {
                    source,
                    node: NodeFacts::Local,
                    freshness: None,
                    recorder: Recorder::nobody(),
                    cluster: None,
                })
            }
            Self::Cluster { access, options, streaming_lists } => {
                let freshness = Arc::new(Freshness::new(Instant::now(), &api::KINDS));
                let server = access.server().to_owned();
                let client = Client::new(*access, *options, metrics.rest.clone())?;
                let cluster = CurrentCluster::of(server.clone(), client.clone());
                // Events have a rate limit of their own, as upstream: many events must not delay lists.
                let own = client.with_own_limit();
                let (recorder, writer) = events::open(own, &platform::machine_name(), events::EventTiming::default());
                let setup = api::ApiSetup {
                    server,
                    client,
                    node_name: settings.node_name.clone(),
                    freshness: Arc::clone(&freshness),
                    timing: api::SourceTiming { streaming_lists, ..api::SourceTiming::default() },
                };
                let source = ApiSource::new(setup, writer).context("creating the runtime of the API client")?;
                let node = NodeFacts::Cluster(NodeWait::new(&settings.detect_local));
                Ok(Opened {
                    source: Source::Api(Box::new(source)),
                    node,
                    freshness: Some(freshness),
                    recorder,
                    cluster: Some(cluster),
                })
            }
        }
    }
}

// === impl CurrentCluster ===

impl CurrentCluster {
    /// The cluster with the identity that this function returns.
    pub fn new(identity: impl Fn() -> ClusterIdentity + Send + Sync + 'static) -> Self {
        Self(Arc::new(identity))
    }

    /// The cluster of this client, whose server has this URL.
    fn of(server: String, client: Client) -> Self {
        Self::new(move || ClusterIdentity::of(&server, client.authorities().as_deref()))
    }

    /// The identity now.
    pub fn identity(&self) -> ClusterIdentity {
        (self.0)()
    }
}

impl fmt::Debug for CurrentCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CurrentCluster").field(&self.identity()).finish()
    }
}

// === impl ClusterIdentity ===

impl ClusterIdentity {
    /// Of the server with this URL and these certificate authorities, PEM.
    fn of(server: &str, authorities: Option<&[u8]>) -> Self {
        let digest = |pem: &[u8]| Sha256::digest(pem).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { server: server.to_owned(), authorities: authorities.map_or_else(String::new, digest) }
    }
}

// === impl Source ===

impl Source {
    /// Runs until the core has ended.
    pub fn run(self, sink: &Sink) {
        match self {
            Self::Directory(directory) => drop(directory.run(sink)),
            Self::Api(source) => drop(source.run(sink)),
        }
    }
}

#[cfg(test)]
mod tests;
