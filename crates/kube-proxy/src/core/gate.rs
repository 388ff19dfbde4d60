//! Delays the first hand-over of units to the engines until all required objects are known. Until then the kernel isn't changed,
//! so that the rules of an earlier run keep serving.

use std::time::{Duration, Instant};

use ferry_api::object::{Kind, Node};
use ferry_model::{DetectLocal, Store};

/// Time limits of waiting for the Node of a cluster, from the server's first answer about it. Upstream's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeWait {
    /// for an address; then the proxy continues with loopback
    pub address: Duration,
    /// after that, for a pod range if the local detector needs one; then the proxy fails
    pub pod_range: Option<Duration>,
}

/// Readiness for the first hand-over of units to the engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartReadiness {
    /// units may be handed over
    Ready,
    /// a required object is missing: check again after a change, and at this time
    Waiting(Option<Instant>),
    /// a required object will not arrive, for this reason
    Failed(String),
}

/// Decides on the first hand-over.
#[derive(Debug)]
pub(super) struct StartGate {
    /// kinds whose initial lists must be complete
    awaited: Vec<Kind>,
    node: Option<NodeWait>,
    node_name: String,
    /// time of the server's first answer about the Node
    answered: Option<Instant>,
    /// time at which the Node had an address, or the wait for it ended
    addressed: Option<Instant>,
    /// time at which everything else was complete
    ready: Option<Instant>,
}

/// Longest wait for ServiceCIDRs while an earlier run's rules serve. They may arrive shortly after the rest, and without them the
/// first sync would remove a rule that the next one writes again. There is no wait if no rules serve.
const GRACE: Duration = Duration::from_secs(1);

// === impl NodeWait ===

impl NodeWait {
    /// No wait, for objects that a proxy serves already.
    pub const OVER: Self = Self { address: Duration::ZERO, pod_range: None };

    /// Upstream's time limits for this local detector.
    pub fn new(detect_local: &DetectLocal) -> Self {
        Self {
            address: Duration::from_secs(30),
            pod_range: (*detect_local == DetectLocal::NodeCidr).then_some(Duration::from_secs(300)),
        }
    }
}

// === impl StartGate ===

impl StartGate {
    /// A closed gate.
    pub(super) fn new(awaited: Vec<Kind>, node: Option<NodeWait>, node_name: &str) -> Self {
        Self { awaited, node, node_name: node_name.to_owned(), answered: None, addressed: None, ready: None }
    }

    /// Updates and returns the readiness. `serving`: true if an earlier run's rules serve.
    pub(super) fn readiness(&mut self, store: &Store, now: Instant, serving: impl FnOnce() -> bool) -> StartReadiness {
        let listed = self.awaited.iter().all(|kind| store.synced(*kind));
        let node = match self.node {
            Some(wait) => self.node_readiness(wait, store, now),
            None => StartReadiness::Ready,
        };
        match node {
            StartReadiness::Ready if !listed => StartReadiness::Waiting(None),
            StartReadiness::Ready => self.grace(store, now, serving),
            readiness => readiness,
        }
    }

    fn grace(&mut self, store: &Store, now: Instant, serving: impl FnOnce() -> bool) -> StartReadiness {
        let end = *self.ready.get_or_insert(now) + GRACE;
        if self.node.is_none() || store.synced(Kind::ServiceCidr) || now >= end || !serving() {
            return StartReadiness::Ready;
        }
        StartReadiness::Waiting(Some(end))
    }

    fn node_readiness(&mut self, wait: NodeWait, store: &Store, now: Instant) -> StartReadiness {
        if !store.synced(Kind::Node) {
            return StartReadiness::Waiting(None);
        }
        let answered = *self.answered.get_or_insert(now);
        let addressed = match self.addressed {
            Some(addressed) => addressed,
            None if store.node().is_some_and(has_address) => now,
            None if now < answered + wait.address => return StartReadiness::Waiting(Some(answered + wait.address)),
            None => {
                let missing = if store.node().is_some() { "an address" } else { "its Node object" };
                tracing::error!(
                    node = self.node_name,
                    missing,
                    "Timed out waiting for the node, continuing with loopback addresses"
                );
                now
            }
        };
        self.addressed = Some(addressed);
        let Some(patience) = wait.pod_range else { return StartReadiness::Ready };
        match store.node() {
            Some(node) if !node.pod_cidrs.is_empty() => StartReadiness::Ready,
            _ if now < addressed + patience => StartReadiness::Waiting(Some(addressed + patience)),
            Some(_) => {
                StartReadiness::Failed(format!("timeout waiting for PodCIDR allocation on node {:?}", self.node_name))
            }
            None => StartReadiness::Failed(format!("timeout waiting for node {:?} to exist", self.node_name)),
        }
    }
}

fn has_address(node: &Node) -> bool {
    node.addresses.iter().any(|entry| entry.address.is_ok())
}

#[cfg(test)]
mod tests {
    use ferry_api::object::{KubeObject, ObjectName};
    use ferry_api::wire::{Document, decode_manifest};
    use ferry_model::store::Event;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WAIT: NodeWait = NodeWait { address: Duration::from_secs(30), pod_range: None };
    const POD_RANGE: NodeWait = NodeWait { pod_range: Some(Duration::from_secs(300)), ..WAIT };

    fn node(spec: &str, status: &str) -> Event {
        let text =
            format!("apiVersion: v1\nkind: Node\nmetadata: {{name: here}}\nspec: {{{spec}}}\nstatus: {{{status}}}\n");
        match decode_manifest(&text).complete().unwrap().remove(0) {
            Document::Object(object @ KubeObject::Node(_)) => Event::Upsert(object),
            other => panic!("{other:?}"),
        }
    }

    const ADDRESS: &str = "addresses: [{type: InternalIP, address: 10.0.0.1}]";

    fn gate(wait: Option<NodeWait>) -> (StartGate, Store) {
        (StartGate::new(vec![Kind::Service, Kind::EndpointSlice], wait, "here"), Store::new("here"))
    }

    fn nobody() -> bool {
        false
    }

    fn list(store: &mut Store, kinds: &[Kind]) {
        kinds.iter().for_each(|kind| drop(store.apply(Event::Synced(*kind))));
    }

    #[test]
    fn lists_are_waited_for_without_limit() {
        let start = Instant::now();
        let (mut gate, mut store) = gate(None);
        list(&mut store, &[Kind::Service]);
        assert_eq!(gate.readiness(&store, start + 9999 * SECOND, nobody), StartReadiness::Waiting(None));
        list(&mut store, &[Kind::EndpointSlice]);
        assert_eq!(gate.readiness(&store, start, nobody), StartReadiness::Ready);
    }

    #[test]
    fn an_address_is_waited_for_from_the_moment_the_server_answers() {
        let start = Instant::now();
        let (mut gate, mut store) = gate(Some(WAIT));
        list(&mut store, &[Kind::Service, Kind::EndpointSlice]);
        assert_eq!(gate.readiness(&store, start, nobody), StartReadiness::Waiting(None));
        store.apply(node("", ""));
        list(&mut store, &[Kind::Node]);
        let answered = start + 100 * SECOND;
        assert_eq!(gate.readiness(&store, answered, nobody), StartReadiness::Waiting(Some(answered + 30 * SECOND)));
        assert_eq!(
            gate.readiness(&store, answered + 29 * SECOND, nobody),
            StartReadiness::Waiting(Some(answered + 30 * SECOND))
        );
        store.apply(node("", ADDRESS));
        assert_eq!(gate.readiness(&store, answered + 29 * SECOND, nobody), StartReadiness::Ready);
    }

    #[test]
    fn without_an_address_it_goes_on_after_a_while() {
        let start = Instant::now();
        for known in [true, false] {
            let (mut gate, mut store) = gate(Some(WAIT));
            if known {
                store.apply(node("", ""));
            }
            list(&mut store, &[Kind::Service, Kind::EndpointSlice, Kind::Node]);
            assert_eq!(gate.readiness(&store, start, nobody), StartReadiness::Waiting(Some(start + 30 * SECOND)));
            let text = crate::logging::logged(0, || {
                assert_eq!(gate.readiness(&store, start + 30 * SECOND, nobody), StartReadiness::Ready);
            });
            assert!(text.contains(if known { "an address" } else { "its Node object" }), "{text}");
        }
    }

    #[test]
    fn a_pod_range_is_waited_for_after_the_address_and_then_it_fails() {
        let start = Instant::now();
        let (mut gate, mut store) = gate(Some(POD_RANGE));
        list(&mut store, &[Kind::Service, Kind::EndpointSlice, Kind::Node]);
        assert_eq!(gate.readiness(&store, start, nobody), StartReadiness::Waiting(Some(start + 30 * SECOND)));
        store.apply(node("", ADDRESS));
        let addressed = start + 10 * SECOND;
        assert_eq!(gate.readiness(&store, addressed, nobody), StartReadiness::Waiting(Some(addressed + 300 * SECOND)));
        let late = addressed + 300 * SECOND;
        let failed = StartReadiness::Failed("timeout waiting for PodCIDR allocation on node \"here\"".to_owned());
        assert_eq!(gate.readiness(&store, late, nobody), failed);
        store.apply(Event::Delete(Kind::Node, ObjectName::cluster_wide("here")));
        let gone = StartReadiness::Failed("timeout waiting for node \"here\" to exist".to_owned());
        assert_eq!(gate.readiness(&store, late, nobody), gone);
        store.apply(node("podCIDR: 10.1.0.0/24", ADDRESS));
        assert_eq!(gate.readiness(&store, late, nobody), StartReadiness::Ready);
    }

    #[test]
    fn service_cidrs_have_a_moment_where_earlier_rules_serve() {
        let start = Instant::now();
        let (mut gate, mut store) = gate(Some(WAIT));
        store.apply(node("", ADDRESS));
        list(&mut store, &[Kind::Service, Kind::EndpointSlice, Kind::Node]);
        assert_eq!(gate.readiness(&store, start, || true), StartReadiness::Waiting(Some(start + GRACE)));
        assert_eq!(gate.readiness(&store, start, || false), StartReadiness::Ready, "a start is never delayed");
        assert_eq!(gate.readiness(&store, start + GRACE, || true), StartReadiness::Ready);
        list(&mut store, &[Kind::ServiceCidr]);
        assert_eq!(gate.readiness(&store, start, || true), StartReadiness::Ready);
    }
}
