//! Logs problems of the node that a mode has found, and makes Events of them, once until their text changes.

use std::collections::BTreeMap;

use ferry_api::object::Family;

use crate::events::KubeEvent;
use crate::input::{NodeProblem, NodeWarning};

/// The reported problems that have not ended, with their texts.
#[derive(Debug, Default)]
pub(super) struct NodeWarnings(BTreeMap<(NodeProblem, Family), String>);

// === impl NodeWarnings ===

impl NodeWarnings {
    /// Logs a warning that differs from the last one about the same, or its end; returns the Event of a new one.
    pub(super) fn replace(&mut self, warning: NodeWarning, node: &str) -> Option<KubeEvent> {
        let NodeWarning { problem, family, note } = warning;
        let reason = problem.reason();
        let Some(note) = note else {
            if self.0.remove(&(problem, family)).is_some() {
                tracing::info!(reason, %family, "Problem of this node has ended");
            }
            return None;
        };
        if self.0.get(&(problem, family)) == Some(&note) {
            return None;
        }
        tracing::warn!(reason, %family, problem = note, "Node may drop traffic of Services");
        let event = KubeEvent::node_warning(node, reason, &format!("{family}: {note}"));
        self.0.insert((problem, family), note);
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_once_until_it_changes_or_ends() {
        let mut warnings = NodeWarnings::default();
        let mut report = |family, note: Option<&str>| {
            let note = note.map(str::to_owned);
            let warning = NodeWarning { problem: NodeProblem::ForwardPolicyDrop, family, note };
            let mut event = None;
            let log = crate::logging::logged(0, || event = warnings.replace(warning, "node"));
            (event.map(|event| event.note().to_owned()), log.lines().count())
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(report(Family::V4, None), (None, 0));
        assert_eq!(report(Family::V4, Some("drop")), (text("IPv4: drop"), 1));
        assert_eq!(report(Family::V6, Some("drop")), (text("IPv6: drop"), 1));
        assert_eq!(report(Family::V4, Some("drop")), (None, 0));
        assert_eq!(report(Family::V4, Some("drop in nft")), (text("IPv4: drop in nft"), 1));
        assert_eq!(report(Family::V4, None), (None, 1));
        assert_eq!(report(Family::V4, Some("drop")), (text("IPv4: drop"), 1));
    }
}
