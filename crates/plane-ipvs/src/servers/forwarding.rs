//! Reports that the node doesn't forward IPv6, as replies of endpoints need it: packets of IPVS itself are not forwarded, but sent.
//!
//! The parameter is the operator's: when it becomes 1, the kernel deletes the default routes that router advertisements have added,
//! and ignores further ones, except on interfaces with `accept_ra` 2.

use std::sync::Arc;
use std::{fmt, io};

use ferry_api::object::Family;
use ferry_kernel::sysctl;

/// Takes the text of the problem for operators when it begins, and `None` when it has ended.
#[derive(Clone)]
pub struct ForwardingReports(pub Arc<dyn Fn(Option<&'static str>) + Send + Sync>);

/// The state of the node's forwarding, as reported.
#[derive(Debug)]
pub(super) struct Forwarding {
    family: Family,
    reports: Option<ForwardingReports>,
    is_reported: bool,
}

const PARAMETER: &str = "net.ipv6.conf.all.forwarding";

const NOTE: &str = "kernel parameter net.ipv6.conf.all.forwarding is 0, so the kernel drops replies of endpoints to other machines \
    and to pods; only the node's own connections to Services work: run `sysctl -w net.ipv6.conf.all.forwarding=1`, and write it \
    to /etc/sysctl.d/. Before that, if router advertisements give the node its default route, set \
    net.ipv6.conf.INTERFACE.accept_ra=2 for that interface: otherwise the route is deleted";

// === impl ForwardingReports ===

impl fmt::Debug for ForwardingReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ForwardingReports")
    }
}

// === impl Forwarding ===

impl Forwarding {
    pub(super) fn new(family: Family, reports: Option<ForwardingReports>) -> Self {
        Self { family, reports, is_reported: false }
    }

    /// Reads the parameter, in the network namespace of this thread, if the family has endpoints.
    pub(super) fn check(&mut self, has_endpoints: bool) {
        self.check_by(has_endpoints, || sysctl::read(PARAMETER));
    }

    fn check_by(&mut self, has_endpoints: bool, read: impl FnOnce() -> io::Result<String>) {
        // Mode ipvs itself sets that of IPv4, as upstream's proxy does.
        if self.family == Family::V6 {
            self.found(has_endpoints && read().is_ok_and(|value| value == "0"));
        }
    }

    /// Reports the problem if it has begun or ended.
    fn found(&mut self, is_problem: bool) {
        if std::mem::replace(&mut self.is_reported, is_problem) != is_problem
            && let Some(ForwardingReports(report)) = &self.reports
        {
            report(is_problem.then_some(NOTE));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Of a family, with what it reports.
    fn recording(family: Family) -> (Forwarding, Arc<Mutex<Vec<bool>>>) {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let take = Arc::clone(&reports);
        let report = ForwardingReports(Arc::new(move |note: Option<&str>| take.lock().unwrap().push(note.is_some())));
        (Forwarding::new(family, Some(report)), reports)
    }

    /// The reports of a family while the parameter has these values; `None`: the family has no endpoints.
    fn reported(family: Family, values: &[Option<&str>]) -> Vec<bool> {
        let (mut forwarding, reports) = recording(family);
        for value in values {
            forwarding.check_by(value.is_some(), || Ok(value.unwrap_or("0").to_owned()));
        }
        reports.lock().unwrap().clone()
    }

    #[test]
    fn reported_once_until_it_ends() {
        let values = [Some("1"), Some("0"), Some("0"), Some("1"), Some("1"), Some("0"), None];
        assert_eq!(reported(Family::V6, &values), [true, false, true, false]);
        assert!(reported(Family::V6, &values[..1]).is_empty(), "it is 1");
        assert!(reported(Family::V4, &values).is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_not_reported() {
        let report = ForwardingReports(Arc::new(|_| panic!("nothing is known")));
        let mut forwarding = Forwarding::new(Family::V6, Some(report));
        forwarding.check_by(true, || Err(io::ErrorKind::NotFound.into()));
    }

    #[test]
    fn the_text_names_the_parameter_and_keeps_the_default_route() {
        assert!(NOTE.contains(PARAMETER) && NOTE.contains("accept_ra=2"), "{NOTE}");
    }
    /// Whichever value it has on this machine.
    #[test]
    fn the_parameter_of_the_node_is_read_if_there_are_endpoints() {
        let is_zero = sysctl::read(PARAMETER).is_ok_and(|value| value == "0");
        let (mut forwarding, reports) = recording(Family::V6);
        forwarding.check(false);
        assert!(reports.lock().unwrap().is_empty());
        forwarding.check(true);
        assert_eq!(*reports.lock().unwrap(), if is_zero { vec![true] } else { vec![] });
    }

    #[test]
    fn options_are_printed_with_the_name_of_what_takes_reports() {
        assert_eq!(format!("{:?}", Some(ForwardingReports(Arc::new(|_| {})))), "Some(ForwardingReports)");
    }
}
