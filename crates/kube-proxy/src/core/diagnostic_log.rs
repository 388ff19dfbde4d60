//! Logs diagnostics once per object until they change.

use std::collections::BTreeMap;

use ferry_api::object::ObjectName;
use ferry_model::Diagnostic;

/// Owner of diagnostics.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// node addresses, ServiceCIDRs
    Base,
    /// EndpointSlices without a Service
    Orphans,
    /// a Service with its slices
    Service(ObjectName),
}

/// The present diagnostics of each owner, by [`Diagnostic::topic`].
#[derive(Debug, Default)]
pub(super) struct DiagnosticLog(BTreeMap<Topic, BTreeMap<Diagnostic, Diagnostic>>);

// === impl DiagnosticLog ===

impl DiagnosticLog {
    /// True if the topic has diagnostics.
    pub(super) fn has(&self, topic: &Topic) -> bool {
        self.0.contains_key(topic)
    }

    /// The present diagnostics of all owners.
    pub(super) fn all(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0.values().flat_map(BTreeMap::values)
    }

    /// Replaces a topic's diagnostics; logs and returns the new ones.
    pub(super) fn replace(&mut self, topic: Topic, now: impl IntoIterator<Item = Diagnostic>) -> Vec<Diagnostic> {
        // Both families may report the same problem.
        let now: BTreeMap<Diagnostic, Diagnostic> = now.into_iter().map(|found| (found.topic(), found)).collect();
        let before = self.0.remove(&topic).unwrap_or_default();
        let is_fresh = |(topic, _): &(&Diagnostic, &Diagnostic)| !before.contains_key(topic);
        let fresh: Vec<Diagnostic> = now.iter().filter(is_fresh).map(|(_, found)| found.clone()).collect();
        if !now.is_empty() {
            self.0.insert(topic, now);
        }
        for Diagnostic { kind, name, field, message, count, winner, .. } in &fresh {
            let winner = winner.as_ref().map(tracing::field::display);
            tracing::warn!(
                %kind, object = %name, field, problem = message, count, winner, "Object is not served as specified"
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
            count: 1,
            winner: None,
        }
    }

    #[test]
    fn said_once_until_it_changes() {
        let mut log = DiagnosticLog::default();
        let topic = || Topic::Service(ObjectName::new("default", "web"));
        assert_eq!(log.replace(topic(), [diagnostic("a"), diagnostic("a")]).len(), 1);
        assert_eq!(log.replace(topic(), [diagnostic("a")]).len(), 0);
        assert_eq!(log.replace(topic(), [diagnostic("b"), diagnostic("a")]).len(), 1);
        assert_eq!(log.replace(topic(), []).len(), 0);
        assert!(!log.has(&topic()));
        assert_eq!(log.replace(topic(), [diagnostic("a")]).len(), 1);
    }

    /// The lines of the log when these are the diagnostics of a Service.
    fn lines(log: &mut DiagnosticLog, found: &[Diagnostic]) -> Vec<String> {
        let topic = Topic::Service(ObjectName::new("default", "web"));
        let text = crate::logging::logged(0, || drop(log.replace(topic, found.iter().cloned())));
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_line_per_sort_that_names_the_first_and_the_number() {
        let mut log = DiagnosticLog::default();
        let bad_ports = |count| Diagnostic { count, ..diagnostic("0 is no port") };
        let contest = |count| Diagnostic {
            count,
            cause: Cause::Contest,
            winner: Some(ObjectName::new("other", "api")),
            ..diagnostic("taken")
        };
        let said = lines(&mut log, &[bad_ports(95_000), contest(2)]);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said.iter().any(|line| line.contains("count=95000") && !line.contains("winner")), "{said:?}");
        assert!(said.iter().any(|line| line.contains("count=2") && line.contains("other/api")), "{said:?}");
        // A changed count alone is not logged again; another contested address is.
        assert_eq!(lines(&mut log, &[bad_ports(94_000), contest(2)]), [""; 0]);
        assert!(log.all().any(|one| one.count == 94_000), "the present count is kept");
        let said = lines(&mut log, &[bad_ports(93_000), contest(3)]);
        assert!(said.len() == 1 && said[0].contains("count=3"), "{said:?}");
        assert_eq!(lines(&mut log, &[]), [""; 0]);
        assert_eq!(lines(&mut log, &[bad_ports(1)]).len(), 1);
    }
}
