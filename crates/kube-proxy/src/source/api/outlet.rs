//! Converts one kind's lists and watches to events for the core.

use std::collections::HashMap;

use ferry_api::object::{Kind, KubeObject, ObjectName};
use ferry_api::wire::stream::Unreadable;
use ferry_model::store::Event;

use crate::source::{Closed, Sink};

/// Collects a kind's events and delivers them.
#[derive(Debug)]
pub(super) struct Outlet {
    kind: Kind,
    sink: Sink,
    events: Vec<Event>,
    /// a list has begun, and its Restart isn't delivered yet
    restart: bool,
    /// objects of the current list, malformed ones included
    listed: usize,
    /// the current list has a malformed object whose name is unreadable, too
    nameless: bool,
    /// a list was complete
    synced: bool,
    /// for Nodes only
    node: Option<OwnNode>,
    unreadable: UnreadableObjects,
}

/// This node's Node object. Its last facts stay in force after its deletion, so no deletion is delivered.
#[derive(Debug)]
struct OwnNode {
    name: ObjectName,
    /// the current list has it
    seen: bool,
    /// its absence has been logged
    missing: bool,
}

/// Malformed objects, with the reason.
#[derive(Debug, Default)]
struct UnreadableObjects {
    reasons: HashMap<Option<ObjectName>, String>,
    /// it has been logged that there are too many to name
    overflown: bool,
}

/// Most malformed objects that are kept.
const MOST_UNREADABLE: usize = 1024;

// === impl Outlet ===

impl Outlet {
    /// An outlet for one kind; of Nodes, only this one is delivered.
    pub(super) fn new(kind: Kind, node_name: &str, sink: Sink) -> Self {
        let node = (kind == Kind::Node).then(|| OwnNode {
            name: ObjectName::cluster_wide(node_name),
            seen: false,
            missing: false,
        });
        Self {
            kind,
            sink,
            events: Vec::new(),
            restart: false,
            listed: 0,
            nameless: false,
            synced: false,
            node,
            unreadable: UnreadableObjects::default(),
        }
    }

    /// Begins a list.
    pub(super) fn begin(&mut self) {
        self.listed = 0;
        self.nameless = false;
        match &mut self.node {
            Some(node) => node.seen = false,
            None => self.restart = true,
        }
    }

    /// Objects since the list began.
    pub(super) fn listed(&self) -> usize {
        self.listed
    }

    /// Adds an object of a list or watch, or its decoding error.
    pub(super) fn object(&mut self, object: Result<KubeObject, Unreadable>) {
        self.listed += 1;
        match object {
            Ok(object) => self.readable(object),
            Err(object) => self.unreadable(object),
        }
    }

    fn readable(&mut self, object: KubeObject) {
        if let Some(node) = &mut self.node {
            if *object.name() != node.name {
                return;
            }
            node.seen = true;
            if std::mem::take(&mut node.missing) {
                tracing::info!(node = %node.name, "Found this node's Node object");
            }
        }
        self.unreadable.forget(object.name());
        self.push(Event::Upsert(object));
    }

    fn unreadable(&mut self, object: Unreadable) {
        if let Some(node) = &mut self.node {
            if object.name.as_ref().is_some_and(|name| *name != node.name) {
                return;
            }
            if object.misnamed {
                return;
            }
            // A nameless object may be this Node: more likely than that the Node is deleted.
            node.seen = true;
        }
        let (name, misnamed) = (object.name.clone(), object.misnamed);
        self.unreadable.complain(object);
        match name {
            Some(name) => self.push(Event::Unreadable(self.kind, name)),
            // It can't be any of the known objects.
            None if misnamed => {}
            None => self.nameless = true,
        }
    }

    /// Adds the deletion of an object.
    pub(super) fn gone(&mut self, name: ObjectName) {
        if let Some(node) = &mut self.node {
            if name == node.name {
                node.miss();
            }
            return;
        }
        self.unreadable.forget(&name);
        self.push(Event::Delete(self.kind, name));
    }

    /// Completes a kind that the server doesn't serve, without a list. Known objects stay.
    pub(super) fn complete_without(&mut self) {
        self.events.push(Event::Synced(self.kind));
    }

    /// Completes the current list.
    pub(super) fn complete(&mut self) {
        let again = std::mem::replace(&mut self.synced, true);
        if let Some(node) = self.node.as_mut().filter(|node| !node.seen) {
            node.miss();
        }
        // A nameless object may be any of those missing in the list, so none of them counts as deleted.
        let keeps_all = std::mem::take(&mut self.nameless) || self.node.is_some();
        if !(again && keeps_all) {
            self.push(Event::Synced(self.kind));
        }
    }

    fn push(&mut self, event: Event) {
        if std::mem::take(&mut self.restart) {
            self.events.push(Event::Restart(self.kind));
        }
        self.events.push(event);
    }

    /// Delivers the events collected since the last delivery. Waits while the core is busy.
    pub(super) async fn deliver(&mut self) -> Result<(), Closed> {
        self.sink.deliver_in_turn(std::mem::take(&mut self.events)).await
    }
}

// === impl OwnNode ===

impl OwnNode {
    fn miss(&mut self) {
        if !std::mem::replace(&mut self.missing, true) {
            tracing::warn!(
                node = %self.name,
                "No Node object of this name (see --hostname-override), keeping its last known state"
            );
        }
    }
}

// === impl UnreadableObjects ===

impl UnreadableObjects {
    /// Logs a malformed object once per reason.
    fn complain(&mut self, object: Unreadable) {
        let Unreadable { kind, name, message, misnamed: _ } = object;
        if self.reasons.get(&name) == Some(&message) {
            return;
        }
        if self.reasons.len() >= MOST_UNREADABLE && !self.reasons.contains_key(&name) {
            if !std::mem::replace(&mut self.overflown, true) {
                tracing::error!(%kind, "Too many malformed objects, not logging further ones");
            }
            return;
        }
        let object = name.as_ref().map_or_else(|| "unknown".to_owned(), ObjectName::to_string);
        tracing::error!(%kind, object, err = message, "Malformed object, keeping its last known state");
        self.reasons.insert(name, message);
    }

    /// Forgets an object that is readable again or deleted.
    fn forget(&mut self, name: &ObjectName) {
        // Fast path: called for each object, and the map is almost always empty.
        if !self.reasons.is_empty() && self.reasons.remove(&Some(name.clone())).is_some() {
            self.overflown = false;
        }
    }
}

#[cfg(test)]
mod tests;
