//! Objects that the proxy adds to those of its source: the self-test's.

use ferry_api::object::{KubeObject, ObjectName};
use ferry_model::store::Event;

/// The namespace of these objects. A snapshot, and the objects of the run before, may have them without what is behind them.
pub const OWN_NAMESPACE: &str = "ferry-self-test";

/// True for the name of one of these objects.
pub fn is_own(name: &ObjectName) -> bool {
    name.namespace() == OWN_NAMESPACE
}

/// The objects that are there now.
#[derive(Debug, Default)]
pub(super) struct OwnObjects(Vec<KubeObject>);

// === impl OwnObjects ===

impl OwnObjects {
    /// Replaces all of them; returns what the store has to apply.
    pub(super) fn replace(&mut self, objects: Vec<KubeObject>) -> Vec<Event> {
        let is_there =
            |old: &KubeObject| objects.iter().any(|new| (new.kind(), new.name()) == (old.kind(), old.name()));
        let gone = self.0.iter().filter(|old| !is_there(old));
        let mut events: Vec<Event> = gone.map(|old| Event::Delete(old.kind(), old.name().clone())).collect();
        events.extend(objects.iter().cloned().map(Event::Upsert));
        self.0 = objects;
        events
    }

    /// Completes what a source delivers: its lists don't have these objects.
    pub(super) fn complete(&self, events: Vec<Event>) -> Vec<Event> {
        // Each change of an object comes here; lists are rare.
        if !events.iter().any(|event| matches!(event, Event::Restart(_))) {
            return events;
        }
        let with_own = |event: Event| {
            let of_kind = match &event {
                Event::Restart(kind) => self.0.iter().filter(|own| own.kind() == *kind).cloned().collect(),
                Event::Upsert(_) | Event::Delete(..) | Event::Unreadable(..) | Event::Synced(_) => Vec::new(),
            };
            std::iter::once(event).chain(of_kind.into_iter().map(Event::Upsert))
        };
        events.into_iter().flat_map(with_own).collect()
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Kind;
    use ferry_api::wire::decode_object;

    use super::*;

    fn service(name: &str) -> KubeObject {
        let text = serde_json::json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}}).to_string();
        decode_object(&text).unwrap()
    }

    #[test]
    fn objects_survive_a_new_list_and_are_replaced() {
        let mut own = OwnObjects::default();
        let list = [Event::Restart(Kind::Node), Event::Restart(Kind::Service), Event::Synced(Kind::Service)];
        assert_eq!(own.complete(list.to_vec()), list);
        assert_eq!(own.replace(vec![service("a")]), [Event::Upsert(service("a"))]);
        let [node, restart, synced] = list;
        assert_eq!(
            own.complete(vec![node.clone(), restart.clone(), synced.clone()]),
            [node, restart, Event::Upsert(service("a")), synced]
        );
        let gone = Event::Delete(Kind::Service, service("a").name().clone());
        assert_eq!(own.replace(vec![service("b")]), [gone, Event::Upsert(service("b"))]);
        assert_eq!(own.replace(vec![service("b")]), [Event::Upsert(service("b"))]);
    }
}
