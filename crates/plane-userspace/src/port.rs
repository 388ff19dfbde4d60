//! Service ports: their identity, and the facts about them that the relay needs.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use ferry_api::object::{ObjectName, Protocol};
use ferry_model::{Endpoint, Pool, PortState, Scope};

/// The scopes of endpoints.
pub(crate) const SCOPES: [Scope; 2] = [Scope::Cluster, Scope::Local];

/// Identifies a service port in one family, as it is served with endpoints of one scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId {
    /// the Service
    pub service: ObjectName,
    /// the port's name; empty when unnamed
    pub name: Arc<str>,
    /// its protocol
    pub protocol: Protocol,
    /// the scope of its endpoints
    pub scope: Scope,
}

/// The facts about a service port that the relay needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortSpec {
    /// the timeout of session affinity by client address, in seconds
    pub affinity_seconds: Option<NonZeroU32>,
    /// the endpoints
    pub pool: Arc<[Endpoint]>,
    /// those that are chosen no more, or for other clients only, and keep their connections: they are in the slices. The pool of the other
    /// scope, and those in neither
    pub kept: [Arc<[Endpoint]>; 2],
}

// === impl PortId ===

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, name, protocol, scope } = self;
        let colon = if name.is_empty() { "" } else { ":" };
        write!(f, "{service}{colon}{name}/{}/{}", protocol.lower(), scope_word(*scope))
    }
}

/// The word for a scope in names.
pub(crate) const fn scope_word(scope: Scope) -> &'static str {
    match scope {
        Scope::Cluster => "cluster",
        Scope::Local => "local",
    }
}

/// The other scope of a service port.
pub(crate) const fn other(scope: Scope) -> Scope {
    match scope {
        Scope::Cluster => Scope::Local,
        Scope::Local => Scope::Cluster,
    }
}

// === impl PortSpec ===

impl PortSpec {
    /// Of a service port with the endpoints of a scope.
    pub(crate) fn new(state: &PortState, scope: Scope) -> Self {
        let pool = |pool: &Pool| Arc::clone(&pool.0);
        Self {
            affinity_seconds: state.affinity.map(|affinity| affinity.timeout_seconds),
            pool: pool(state.pool(scope)),
            kept: [pool(state.pool(other(scope))), pool(&state.lingering)],
        }
    }

    /// The endpoints of a service port that no frontend leads to, in scope [`Scope::Cluster`]: all are unready, or on other nodes under policy
    /// Local, or another Service owns the frontends. The balancer, which keeps track of established connections, stays as long as endpoints
    /// are in the slices. `None` without any, and over UDP, whose associations end with their listener.
    pub(crate) fn held(state: &PortState) -> Option<Self> {
        let is_listed = [&state.cluster, &state.local, &state.lingering].iter().any(|pool| !pool.0.is_empty());
        (is_listed && state.protocol == Protocol::Tcp).then(|| Self::new(state, Scope::Cluster))
    }

    /// The addresses of the endpoints, in their order.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.pool.iter().map(address)
    }

    /// The addresses of the endpoints that keep their connections.
    pub(crate) fn kept(&self) -> impl Iterator<Item = SocketAddr> {
        self.kept.iter().flat_map(|pool| pool.iter()).map(address)
    }
}

fn address(endpoint: &Endpoint) -> SocketAddr {
    SocketAddr::new(endpoint.address, endpoint.port)
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seconds) = self.affinity_seconds {
            write!(f, " affinity {seconds}s")?;
        }
        self.addresses().try_for_each(|at| write!(f, " {at}"))?;
        let own: BTreeSet<SocketAddr> = self.addresses().collect();
        let kept: BTreeSet<SocketAddr> = self.kept().filter(|at| !own.contains(at)).collect();
        if kept.is_empty() {
            return Ok(());
        }
        f.write_str(" keeps")?;
        kept.iter().try_for_each(|at| write!(f, " {at}"))
    }
}
