//! Logs failures of one kind once, and its recovery.

use std::sync::Arc;

use super::failure::{FailureCause, RequestFailure};
use ferry_client::Verb;

/// Failures of one kind that were logged since it last worked.
#[derive(Debug)]
pub(super) struct Report {
    resource: &'static str,
    server: Arc<str>,
    /// messages without their numbers, which may be times, ports or versions, and differ each time
    said: Vec<(Verb, FailureCause, String)>,
    /// a failure came after a response head: then a response head is no proof of recovery
    late: bool,
}

/// Most distinct failures that are logged before a recovery.
const MOST: usize = 16;

impl Report {
    pub(super) fn new(resource: &'static str, server: Arc<str>) -> Self {
        Self { resource, server, said: Vec::new(), late: false }
    }

    /// Logs a failed request of this verb, unless the same was logged before.
    pub(super) fn failed(&mut self, verb: Verb, failure: &RequestFailure, answered: bool) {
        self.late |= answered;
        let text = (verb, failure.cause, without_numbers(&failure.to_string()));
        if self.said.contains(&text) || self.said.len() >= MOST {
            return self.passed(verb, failure);
        }
        let (verb, resource, server) = (verb.as_str(), self.resource, &*self.server);
        if failure.is_refused_access() {
            tracing::error!(verb, resource, server, err = %failure, "API server refuses access, retrying");
        } else {
            tracing::warn!(verb, resource, server, err = %failure, "Request to the API server failed, keeping the known state");
        }
        self.said.push(text);
    }

    /// Traces an expected failure.
    pub(super) fn passed(&self, verb: Verb, failure: &RequestFailure) {
        tracing::trace!(verb = verb.as_str(), resource = self.resource, err = %failure, "Request to the API server ended");
    }

    /// Notes a response head.
    pub(super) fn answered(&mut self) {
        if !self.late {
            self.works();
        }
    }

    /// Notes new data of the server: logs the recovery.
    pub(super) fn works(&mut self) {
        if self.said.is_empty() {
            return;
        }
        tracing::info!(resource = self.resource, server = &*self.server, "Requests to the API server succeed again");
        self.said.clear();
        self.late = false;
    }
}

fn without_numbers(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::logged;
    use super::*;

    fn refused(code: u16, text: &str) -> RequestFailure {
        RequestFailure::new(FailureCause::Refused { code, within: false }, text)
    }

    fn unreached(text: &str) -> RequestFailure {
        RequestFailure::new(FailureCause::Unreached, text)
    }

    fn report() -> Report {
        Report::new("services", "https://127.0.0.1:6443".into())
    }

    #[test]
    fn once_until_the_text_changes() {
        let log = logged(|| {
            let mut report = report();
            for text in ["connection refused", "connection refused", "no route", "connection refused", "no route"] {
                report.failed(Verb::Watch, &unreached(text), false);
            }
        });
        assert_eq!(log.len(), 2, "{log:?}");
        assert!(log[0].starts_with('W'), "{}", log[0]);
        for part in ["watch", "services", "https://127.0.0.1:6443", "connection refused"] {
            assert!(log[0].contains(part), "{part}: {}", log[0]);
        }
        assert!(log[1].contains("no route"));
    }

    #[test]
    fn refused_access_is_an_error_that_names_all() {
        let text = "403 Forbidden: services is forbidden: User \"u\" cannot list resource \"services\"";
        let log = logged(|| report().failed(Verb::List, &refused(403, text), false));
        assert!(log[0].starts_with('E'), "{}", log[0]);
        for part in ["list", "services", "User", "cannot list"] {
            assert!(log[0].contains(part), "{part}: {}", log[0]);
        }
    }

    #[test]
    fn the_end_is_said_once_and_only_after_a_failure() {
        let log = logged(|| {
            let mut report = report();
            report.works();
            report.answered();
            report.failed(Verb::Watch, &unreached("refused"), false);
            report.answered();
            report.answered();
            report.failed(Verb::Watch, &unreached("refused"), false);
        });
        assert_eq!(log.len(), 3, "{log:?}");
        assert!(log[1].starts_with('I') && log[1].contains("succeed again"), "{}", log[1]);
        assert!(log[2].contains("refused"));
    }

    #[test]
    fn after_a_late_failure_an_answer_proves_nothing() {
        let log = logged(|| {
            let mut report = report();
            for _ in 0..5 {
                report.failed(Verb::Watch, &RequestFailure::new(FailureCause::Interrupted, "cut"), true);
                report.answered();
            }
            report.works();
        });
        assert_eq!(log.len(), 2, "{log:?}");
    }

    #[test]
    fn texts_that_always_differ_are_bounded() {
        let log = logged(|| {
            let mut report = report();
            (0..1000).for_each(|count| report.failed(Verb::Watch, &unreached(&"x".repeat(count)), false));
        });
        assert_eq!(log.len(), MOST);
    }

    #[test]
    fn numbers_make_no_other_text_but_the_status_does() {
        let log = logged(|| {
            let mut report = report();
            for second in 0..100 {
                report.failed(Verb::Watch, &unreached(&format!("expired {second} seconds ago")), false);
            }
            for code in [500, 503, 500] {
                report.failed(Verb::Watch, &refused(code, &format!("{code}: trouble")), false);
            }
        });
        assert_eq!(log.len(), 3, "{log:?}");
    }
}
