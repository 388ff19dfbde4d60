//! The health of the metrics server: `/healthz` with its one check, which only shows that the process answers, and its counts at
//! `/metrics/slis`.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::metrics::{number, process};
use crate::serve::http::{HttpRequest, HttpResponse};

/// The only check of this server.
#[derive(Debug, Default)]
pub struct Ping {
    /// times that it has run, and succeeded
    runs: Cell<u64>,
}

const CHECK: &str = "ping";

// === impl Ping ===

impl Ping {
    /// The answer of `/healthz`: `?verbose` lists the check, `?exclude=ping` leaves it out. Names that aren't checks can't be
    /// excluded, which only the list says.
    pub(super) fn healthz(&self, received: &HttpRequest) -> HttpResponse {
        let mut excluded: BTreeSet<_> = received.parameters("exclude").collect();
        let state = if excluded.remove(CHECK) {
            "excluded: ok"
        } else {
            self.runs.set(self.runs.get() + 1);
            "ok"
        };
        if received.parameters("verbose").next().is_none() {
            return HttpResponse::text("ok");
        }
        let mut body = format!("[+]{CHECK} {state}\n");
        if !excluded.is_empty() {
            let names: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
            // Writing to a String cannot fail.
            let _ = writeln!(body, "warn: some health checks cannot be excluded: no matches for {}", names.join(","));
        }
        body.push_str("healthz check passed\n");
        HttpResponse::text(body)
    }

    /// The metrics of the check. It has none before its first run.
    pub(super) fn slis(&self) -> String {
        let mut page = String::new();
        let runs = self.runs.get();
        if runs > 0 {
            let _ = write!(
                page,
                "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.\n\
                 # TYPE kubernetes_healthcheck gauge\n\
                 kubernetes_healthcheck{{name=\"{CHECK}\",type=\"healthz\"}} 1\n\
                 # HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.\n\
                 # TYPE kubernetes_healthchecks_total counter\n\
                 kubernetes_healthchecks_total{{name=\"{CHECK}\",status=\"success\",type=\"healthz\"}} {}\n",
                number(runs as f64)
            );
        }
        let _ = write!(
            page,
            "# HELP process_start_time_seconds [ALPHA] Start time of the process since unix epoch in seconds.\n\
             # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {}\n",
            number(process::start_time())
        );
        page
    }

    /// Forgets the runs so far.
    pub(super) fn reset(&self) -> HttpResponse {
        self.runs.set(0);
        HttpResponse::text("metrics reset\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(ping: &Ping, query: &str) -> String {
        ping.healthz(&HttpRequest::get(&format!("/healthz{query}"))).body
    }

    /// The texts are upstream's, measured.
    #[test]
    fn checks_are_listed_and_excluded() {
        let ping = Ping::default();
        for (query, wanted) in [
            ("", "ok"),
            ("?verbose", "[+]ping ok\nhealthz check passed\n"),
            ("?verbose=0", "[+]ping ok\nhealthz check passed\n"),
            ("?exclude=ping", "ok"),
            ("?exclude=ping&verbose", "[+]ping excluded: ok\nhealthz check passed\n"),
            ("?exclude=foo", "ok"),
            (
                "?exclude=foo,bar&exclude=baz&verbose",
                "[+]ping ok\nwarn: some health checks cannot be excluded: no matches for \"baz\",\"foo,bar\"\n\
                 healthz check passed\n",
            ),
        ] {
            assert_eq!(body(&ping, query), wanted, "{query}");
        }
    }

    #[test]
    fn runs_are_counted_until_they_are_reset() {
        let ping = Ping::default();
        assert!(!ping.slis().contains("kubernetes_"));
        for query in ["", "?verbose", "?exclude=ping"] {
            body(&ping, query);
        }
        let page = ping.slis();
        assert!(page.contains("kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 2\n"));
        assert!(page.contains("\nkubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"));
        assert_eq!(ping.reset().body, "metrics reset\n");
        assert!(!ping.slis().contains("kubernetes_"));
        assert!(ping.slis().contains("\nprocess_start_time_seconds 1."));
    }
}
