//! The core's part in snapshots: it copies objects for one, and takes the objects of one at a start without the API server.

use std::collections::BTreeMap;

use ferry_api::object::{Kind, KubeObject, ObjectName};
use ferry_model::store::{ServiceObjects, Store};

use super::{Core, any_in_use, is_own};

/// Copies of some objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPage {
    /// the copies; the first page begins with the Node and the ServiceCIDRs
    pub objects: Vec<KubeObject>,
    /// the last Service of the page, behind which the next one begins; `None` on the last page
    pub last: Option<ObjectName>,
}

/// Result of handing over the objects of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// they are in force, or will be as soon as the Node has an address
    Done,
    /// the lists of the API server came first
    Late,
    /// rules of an earlier run serve, and may be newer than the objects
    RulesInUse,
}

/// The kinds of a snapshot. One without objects has none in the cluster, and counts as complete, too.
const KINDS: [Kind; 4] = [Kind::Node, Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr];
/// Services of a page: copying them takes far less than a millisecond, for which events may have to wait.
const PAGE: usize = 64;

// === impl Core ===

impl Core {
    /// All objects.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Takes the objects of a snapshot, without deciding anything: for the kinds whose lists aren't complete, and only while no
    /// rules of an earlier run serve. Those may be newer than the snapshot, and stay in force until the lists arrive.
    pub(super) fn restore(&mut self, objects: Vec<KubeObject>) -> Restored {
        if !self.started && any_in_use(self.in_use, &self.engines) {
            return Restored::RulesInUse;
        }
        self.take_over(objects)
    }

    /// Takes the objects of a former run of this program, which has stopped its changes before it gave them: no rules are newer.
    pub(super) fn take_over(&mut self, objects: Vec<KubeObject>) -> Restored {
        if self.started {
            return Restored::Late;
        }
        let mut kinds: BTreeMap<Kind, Vec<KubeObject>> = KINDS.iter().map(|kind| (*kind, Vec::new())).collect();
        for object in objects.into_iter().filter(|object| !is_own(object.name())) {
            kinds.entry(object.kind()).or_default().push(object);
        }
        for (kind, objects) in kinds {
            let dirty = self.store.restore(kind, objects);
            self.dirty.merge(dirty);
        }
        Restored::Done
    }

    /// The copies of the next page behind this Service; `None` before the first hand-over.
    pub(super) fn page(&self, after: Option<&ObjectName>) -> Option<ObjectPage> {
        if !self.started {
            return None;
        }
        let mut objects = Vec::new();
        if after.is_none() {
            objects.extend(self.store.node().cloned().map(KubeObject::Node));
            objects.extend(self.store.service_cidrs().cloned().map(KubeObject::ServiceCidr));
        }
        let mut services = self.store.services_after(after);
        let mut last = None;
        for (name, ServiceObjects { service, slices }) in services.by_ref().take(PAGE) {
            objects.extend(service.cloned().map(KubeObject::Service));
            objects.extend(slices.into_iter().cloned().map(KubeObject::EndpointSlice));
            last = Some(name);
        }
        let last = last.filter(|_| services.next().is_some()).cloned();
        Some(ObjectPage { objects, last })
    }
}
