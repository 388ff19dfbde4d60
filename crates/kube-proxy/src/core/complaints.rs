//! Diagnostics, said once per object until they change.

use std::collections::{BTreeMap, BTreeSet};

use ferry_api::object::ObjectName;
use ferry_model::Diagnostic;

/// What diagnostics belong to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// node addresses, ServiceCIDRs
    Base,
    /// slices that belong to no service
    Orphans,
    /// a Service with its slices
    Service(ObjectName),
}

/// What has been said already.
#[derive(Debug, Default)]
pub(super) struct Complaints(BTreeMap<Topic, BTreeSet<Diagnostic>>);

// === impl Complaints ===

impl Complaints {
    /// Whether anything is said about the topic now.
    pub(super) fn has(&self, topic: &Topic) -> bool {
        self.0.contains_key(topic)
    }

    /// These are all that hold now; what wasn't among them before is logged, and given back.
    pub(super) fn replace(&mut self, topic: Topic, now: impl IntoIterator<Item = Diagnostic>) -> Vec<Diagnostic> {
        let now: BTreeSet<Diagnostic> = now.into_iter().collect();
        let before = if now.is_empty() { self.0.remove(&topic) } else { self.0.insert(topic, now.clone()) };
        let before = before.unwrap_or_default();
        let fresh: Vec<Diagnostic> = now.into_iter().filter(|diagnostic| !before.contains(diagnostic)).collect();
        for diagnostic in &fresh {
            tracing::warn!(
                kind = %diagnostic.kind,
                object = %diagnostic.name,
                field = diagnostic.field,
                problem = diagnostic.message,
                "An object is not served as written"
            );
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Kind;
    use ferry_model::Cause;

    use super::*;

    fn diagnostic(message: &str) -> Diagnostic {
        let name = ObjectName::new("default", "web");
        Diagnostic {
            kind: Kind::Service,
            name,
            field: "spec".to_owned(),
            message: message.to_owned(),
            cause: Cause::Object,
        }
    }

    #[test]
    fn said_once_until_it_changes() {
        let mut complaints = Complaints::default();
        let topic = || Topic::Service(ObjectName::new("default", "web"));
        assert_eq!(complaints.replace(topic(), [diagnostic("a"), diagnostic("a")]).len(), 1);
        assert_eq!(complaints.replace(topic(), [diagnostic("a")]).len(), 0);
        assert_eq!(complaints.replace(topic(), [diagnostic("b"), diagnostic("a")]).len(), 1);
        assert_eq!(complaints.replace(topic(), []).len(), 0);
        assert!(!complaints.has(&topic()));
        assert_eq!(complaints.replace(topic(), [diagnostic("a")]).len(), 1);
    }
}
