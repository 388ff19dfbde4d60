//! The traffic matrix: derives the treatment of new connections to a frontend from its kind, the traffic policies and the source
//! of the connection.

use crate::profile::Profile;
use crate::select::Selection;
use crate::state::{Action, FrontendKind, Scope, Snat, Treatment};

/// Inputs of a frontend's treatment besides its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub(crate) profile: &'a Profile,
    /// internalTrafficPolicy Local
    pub(crate) internal_local: bool,
    /// externalTrafficPolicy Local
    pub(crate) external_local: bool,
    /// there is a detector of connections from pods of this node
    pub(crate) detects_pods: bool,
    pub(crate) masquerade_all: bool,
    /// a usable endpoint exists on some node
    pub(crate) any: bool,
    pub(crate) has_cluster: bool,
    pub(crate) has_local: bool,
}

const DROP: Treatment = Treatment::all(Action::Drop);
const REJECT: Treatment = Treatment::all(Action::Reject);

// === impl Matrix ===

impl Matrix<'_> {
    /// With the facts of a port's endpoints.
    pub(crate) fn with(self, selection: &Selection) -> Self {
        Self {
            any: selection.any,
            has_cluster: !selection.cluster.is_empty(),
            has_local: !selection.local.is_empty(),
            ..self
        }
    }

    /// The treatment of new connections to a frontend of this kind.
    pub(crate) fn treatment(&self, kind: FrontendKind) -> Treatment {
        let treatment = match kind {
            FrontendKind::ClusterIp => self.internal(),
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer | FrontendKind::NodePort if !self.any => {
                self.unreachable(kind)
            }
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer | FrontendKind::NodePort => self.external(),
        };
        let treatment = if self.profile.relays() { treatment.map(relayed) } else { treatment };
        // Without a detector, pods count as other sources.
        if self.detects_pods { treatment } else { Treatment { pod: treatment.other, ..treatment } }
    }

    /// To the cluster IP: pods keep their address, other sources get the node's, so that replies return through it.
    fn internal(&self) -> Treatment {
        let to = match (self.internal_local, self.has_local, self.has_cluster) {
            (false, _, true) => Scope::Cluster,
            (true, true, _) => Scope::Local,
            (true, false, true) if self.profile.local_falls_back => Scope::Cluster,
            _ => return if self.any { DROP } else { REJECT },
        };
        let pod = if self.masquerade_all { Snat::Masquerade } else { Snat::Keep };
        let rest = if self.masquerade_all || self.detects_pods { Snat::Masquerade } else { Snat::Keep };
        // The node's own connections to an address that it has bound come from that address, to which replies wouldn't return.
        let host = if self.profile.binds_addresses { Snat::Masquerade } else { rest };
        Treatment {
            pod: Action::Forward { to, snat: pod },
            host: Action::Forward { to, snat: host },
            other: Action::Forward { to, snat: rest },
        }
    }

    /// To an external frontend of a service that has an endpoint somewhere. Under policy Local connections from outside
    /// keep their address and stay on the node, while pods and the node itself may go on to any endpoint.
    fn external(&self) -> Treatment {
        let cluster = |snat| if self.has_cluster { Action::Forward { to: Scope::Cluster, snat } } else { Action::Drop };
        if !self.external_local {
            return Treatment::all(cluster(Snat::Masquerade));
        }
        let local = |snat| match (self.has_local, self.profile.local_falls_back) {
            (true, _) => Action::Forward { to: Scope::Local, snat },
            (false, true) => cluster(snat),
            (false, false) => Action::Drop,
        };
        let of_host = if self.profile.masquerades_host_on_local { Snat::Masquerade } else { Snat::Keep };
        if self.profile.short_circuit {
            Treatment { pod: cluster(Snat::Keep), host: cluster(of_host), other: local(Snat::Keep) }
        } else {
            Treatment { pod: local(Snat::Keep), host: local(of_host), other: local(Snat::Keep) }
        }
    }

    /// To an external frontend of a service without any endpoint.
    fn unreachable(&self, kind: FrontendKind) -> Treatment {
        if kind == FrontendKind::NodePort || self.profile.rejects_host_to_external {
            REJECT
        } else {
            Treatment { host: Action::Pass, ..REJECT }
        }
    }
}

/// A relay's connection to an endpoint is one of the node.
fn relayed(action: Action) -> Action {
    match action {
        Action::Forward { to, .. } => Action::Forward { to, snat: Snat::Masquerade },
        Action::Drop | Action::Reject | Action::Pass => action,
    }
}

#[cfg(test)]
mod tests;
