//! From what the server says about one kind to events for the core.

use std::collections::HashMap;

use ferry_api::object::{Kind, KubeObject, ObjectName};
use ferry_api::wire::stream::Unreadable;
use ferry_model::store::Event;

use crate::source::{Closed, Sink};

/// Collects a kind's events and hands them over.
#[derive(Debug)]
pub(super) struct Outlet {
    kind: Kind,
    sink: Sink,
    events: Vec<Event>,
    /// a list has begun and the core has not been told
    restart: bool,
    /// objects of the list that runs, readable or not
    listed: usize,
    /// the list that runs has an object that can't be read, not even its name
    nameless: bool,
    /// a list was complete
    synced: bool,
    /// for Nodes only
    node: Option<OwnNode>,
    unreadable: UnreadableObjects,
}

/// Our own Node. Its last facts stay in force when it is gone, so its lists never say that it is.
#[derive(Debug)]
struct OwnNode {
    name: ObjectName,
    /// the list that runs has it
    seen: bool,
    /// it has been said that there is none
    missing: bool,
}

/// Objects whose last state could not be read, with the reason.
#[derive(Debug, Default)]
struct UnreadableObjects {
    reasons: HashMap<Option<ObjectName>, String>,
    /// it has been said that there are too many to name
    overflown: bool,
}

/// Unreadable objects that are remembered.
const MOST_UNREADABLE: usize = 1024;

// === impl Outlet ===

impl Outlet {
    /// For one kind; of Nodes only this one counts.
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

    /// A list begins.
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

    /// An object of a list or watch, if it could be read.
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
                tracing::info!(node = %node.name, "The Node is there");
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
            // Of one without a name this is not known; that it is there is more likely than that it is gone.
            node.seen = true;
        }
        let (name, misnamed) = (object.name.clone(), object.misnamed);
        self.unreadable.complain(object);
        match name {
            Some(name) => self.push(Event::Unreadable(self.kind, name)),
            // It is none of those that are known.
            None if misnamed => {}
            None => self.nameless = true,
        }
    }

    /// An object is gone.
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

    /// There is no list, and none to wait for. What is known stays.
    pub(super) fn complete_without(&mut self) {
        self.events.push(Event::Synced(self.kind));
    }

    /// The list that runs is complete.
    pub(super) fn complete(&mut self) {
        let again = std::mem::replace(&mut self.synced, true);
        if let Some(node) = self.node.as_mut().filter(|node| !node.seen) {
            node.miss();
        }
        // An object without a name may be any of those that the list seems to lack, so none of them is taken for gone.
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

    /// Hands over what has come since the last time. Waits while the core is busy.
    pub(super) async fn deliver(&mut self) -> Result<(), Closed> {
        self.sink.deliver_in_turn(std::mem::take(&mut self.events)).await
    }
}

// === impl OwnNode ===

impl OwnNode {
    fn miss(&mut self) {
        if !std::mem::replace(&mut self.missing, true) {
            tracing::warn!(node = %self.name, "The cluster has no Node of this name, what is known of it stays");
        }
    }
}

// === impl UnreadableObjects ===

impl UnreadableObjects {
    /// Says it, unless it has been said.
    fn complain(&mut self, object: Unreadable) {
        let Unreadable { kind, name, message, misnamed: _ } = object;
        if self.reasons.get(&name) == Some(&message) {
            return;
        }
        if self.reasons.len() >= MOST_UNREADABLE && !self.reasons.contains_key(&name) {
            if !std::mem::replace(&mut self.overflown, true) {
                tracing::error!(%kind, "Too many objects can't be read, further ones are not named");
            }
            return;
        }
        let object = name.as_ref().map_or_else(|| "unknown".to_owned(), ObjectName::to_string);
        tracing::error!(%kind, object, err = message, "An object can't be read, what is known of it stays");
        self.reasons.insert(name, message);
    }

    /// This one can be read or is gone.
    fn forget(&mut self, name: &ObjectName) {
        // Almost always there are none, and this is done for each object.
        if !self.reasons.is_empty() && self.reasons.remove(&Some(name.clone())).is_some() {
            self.overflown = false;
        }
    }
}

#[cfg(test)]
mod tests;
