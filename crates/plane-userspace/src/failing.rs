//! Listeners that are not open: reported once until they change.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Failing listeners that a report names; it counts the others.
const NAMED: usize = 3;

/// What an operator can do.
const ADVICE: &str = "end the program that has the port, or change the Service; ports below 1024 need the capability CAP_NET_BIND_SERVICE";

/// The receiver of the reports about one family: the listeners that are not open, as a text for operators; `None` once all are.
#[derive(Clone)]
pub struct ListenerReports(pub Arc<Report>);

/// See [`ListenerReports`].
pub type Report = dyn Fn(Option<&str>) + Send + Sync;

/// The listeners of one family that are not open, with their errors.
#[derive(Debug)]
pub(crate) struct FailingListeners<K> {
    reports: ListenerReports,
    failing: BTreeMap<K, String>,
    /// the last report
    reported: Option<String>,
}

// === impl ListenerReports ===

impl fmt::Debug for ListenerReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerReports").finish_non_exhaustive()
    }
}

// === impl FailingListeners ===

impl<K: Ord> FailingListeners<K> {
    pub(crate) fn new(reports: ListenerReports) -> Self {
        Self { reports, failing: BTreeMap::new(), reported: None }
    }

    /// Notes that a listener is not open. The error names its address.
    pub(crate) fn insert(&mut self, listener: K, error: String) {
        self.failing.insert(listener, error);
    }

    /// Notes that a listener is open, or gone.
    pub(crate) fn remove(&mut self, listener: &K) {
        self.failing.remove(listener);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.failing.is_empty()
    }

    /// Reports what has changed since the last report.
    pub(crate) fn report(&mut self) {
        let text = self.text();
        if text != self.reported {
            (self.reports.0)(text.as_deref());
            self.reported = text;
        }
    }

    fn text(&self) -> Option<String> {
        let named: Vec<&str> = self.failing.values().take(NAMED).map(String::as_str).collect();
        let others = self.failing.len().saturating_sub(NAMED);
        let others = if others == 0 { String::new() } else { format!("; and {others} more") };
        (!named.is_empty()).then(|| {
            format!(
                "{} of Services without a listener, tried again: {}{others}; {ADVICE}",
                ports(self.failing.len()),
                named.join("; ")
            )
        })
    }
}

fn ports(count: usize) -> String {
    if count == 1 { "1 port".to_owned() } else { format!("{count} ports") }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_report_names_three_and_is_made_once() {
        let made = Arc::new(Mutex::new(Vec::new()));
        let reports = Arc::clone(&made);
        let reports = move |text: Option<&str>| reports.lock().unwrap().push(text.map(str::to_owned));
        let mut failing = FailingListeners::new(ListenerReports(Arc::new(reports)));
        failing.report();
        assert!(failing.is_empty());
        for number in 0..5 {
            failing.insert(number, format!("{number} is taken"));
        }
        failing.report();
        failing.report();
        (0..4).for_each(|number| failing.remove(&number));
        assert!(!failing.is_empty());
        failing.remove(&4);
        failing.report();
        let expected =
            "5 ports of Services without a listener, tried again: 0 is taken; 1 is taken; 2 is taken; and 2 more";
        assert_eq!(*made.lock().unwrap(), [Some(format!("{expected}; {ADVICE}")), None]);
    }

    #[test]
    fn a_single_port_is_named_in_the_singular() {
        let mut failing = FailingListeners::new(ListenerReports(Arc::new(|_| {})));
        failing.insert(1, "it is taken".to_owned());
        let expected = format!("1 port of Services without a listener, tried again: it is taken; {ADVICE}");
        assert_eq!(failing.text(), Some(expected));
        assert!(format!("{failing:?}").contains("ListenerReports"));
    }
}
