//! Counts requests by verb and code from the API server's audit log.
//!
//! `apiserver_request_total` counts a watch only when it ends and doesn't distinguish clients; the audit log has every
//! request of the proxies at the time of its response, and none of the benchmark's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

/// Requests by verb and status code, for example `watch 200`.
pub(super) type Requests = BTreeMap<String, u64>;

/// The audit policy: all requests except those of the benchmark, which is cluster-admin, and of the script that waits for
/// the server.
pub(super) const POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, userGroups: ["system:masters"]}
- {level: None, nonResourceURLs: ["/readyz"]}
- {level: Metadata}
"#;

/// An audit log that is read as it grows.
pub(super) struct AuditLog {
    path: PathBuf,
    /// bytes read so far
    position: u64,
    /// requests that were counted at the start of their response
    begun: BTreeSet<String>,
}

impl AuditLog {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), position: 0, begun: BTreeSet::new() }
    }

    /// Counts the requests that were answered since the last call.
    pub(super) fn read(&mut self) -> anyhow::Result<Requests> {
        let mut file = File::open(&self.path).with_context(|| format!("opening {}", self.path.display()))?;
        file.seek(SeekFrom::Start(self.position))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // The server may be in the middle of a line.
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        text.truncate(whole);
        self.position += u64::try_from(whole)?;
        self.count(&String::from_utf8_lossy(&text))
    }

    fn count(&mut self, lines: &str) -> anyhow::Result<Requests> {
        let mut requests = Requests::new();
        for line in lines.lines() {
            let event: Value = serde_json::from_str(line).with_context(|| format!("an audit event: {line}"))?;
            let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            // A watch has two audit events: at the start and at the end of its response.
            let id = text("/auditID");
            if text("/stage") == "ResponseStarted" {
                self.begun.insert(id.to_owned());
            } else if self.begun.remove(id) {
                continue;
            }
            let code = event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default();
            *requests.entry(label(text("/verb"), text("/requestURI"), code)).or_default() += 1;
        }
        Ok(requests)
    }
}

/// Label of a kind of request: the API's verb, the form of a list or watch, and the status code of the response.
pub(super) fn label(verb: &str, uri: &str, code: u64) -> String {
    let has = |parameter: &str| uri.split(['?', '&']).any(|part| part == parameter);
    let version = uri.split(['?', '&']).find_map(|part| part.strip_prefix("resourceVersion="));
    // Without a version the response must be the latest state, which the server reads from etcd.
    let latest = version.is_none_or(str::is_empty);
    let what = match verb {
        "watch" if has("sendInitialEvents=true") && latest => "streaming list, latest",
        "watch" if has("sendInitialEvents=true") => "streaming list, from the cache",
        "list" if uri.contains("continue=") => "list, further page",
        "list" if latest => "list, latest",
        "list" => "list, from the cache",
        other => other,
    };
    format!("{what} {code}")
}

/// The verb of the API for a method of HTTP on a collection.
pub(super) fn verb(method: &str, uri: &str) -> &'static str {
    let watches = uri.split(['?', '&']).any(|part| matches!(part, "watch=true" | "watch=1"));
    match method {
        "GET" if watches => "watch",
        "GET" => "list",
        "POST" => "create",
        "PATCH" => "patch",
        "PUT" => "update",
        "DELETE" => "delete",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, stage: &str, verb: &str, uri: &str, code: u16) -> String {
        format!(
            r#"{{"auditID":"{id}","stage":"{stage}","verb":"{verb}","requestURI":"{uri}","responseStatus":{{"code":{code}}}}}"#
        ) + "\n"
    }

    #[test]
    fn a_watch_counts_once_and_when_it_begins() {
        let mut log = AuditLog::new(Path::new("unused"));
        let began = event("1", "ResponseStarted", "watch", "/api/v1/services?watch=true", 200);
        let ended = event("1", "ResponseComplete", "watch", "/api/v1/services?watch=true", 200);
        let listed = event("2", "ResponseComplete", "list", "/api/v1/services?resourceVersion=0", 200);
        let refused = event("3", "ResponseComplete", "watch", "/api/v1/services?watch=true", 410);
        let first = log.count(&(began + &listed)).unwrap();
        assert_eq!(first, Requests::from([("watch 200".into(), 1), ("list, from the cache 200".into(), 1)]));
        let second = log.count(&(ended + &refused)).unwrap();
        assert_eq!(second, Requests::from([("watch 410".into(), 1)]));
    }

    #[test]
    fn a_line_that_is_not_complete_waits() {
        let path = std::env::temp_dir().join(format!("ferry-bench-audit-{}", std::process::id()));
        let line = event("1", "ResponseComplete", "get", "/api/v1/nodes/a", 200);
        let (half, rest) = line.split_at(20);
        let mut log = AuditLog::new(&path);
        std::fs::write(&path, format!("{line}{half}")).unwrap();
        assert_eq!(log.read().unwrap(), Requests::from([("get 200".into(), 1)]));
        std::fs::write(&path, format!("{line}{half}{rest}")).unwrap();
        assert_eq!(log.read().unwrap(), Requests::from([("get 200".into(), 1)]));
        assert_eq!(log.read().unwrap(), Requests::new());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn lists_are_labelled_by_what_they_cost() {
        for (verb, uri, want) in [
            ("list", "/api/v1/services", "list, latest 200"),
            ("list", "/api/v1/services?limit=500&resourceVersion=", "list, latest 200"),
            ("list", "/api/v1/services?limit=500&resourceVersion=0", "list, from the cache 200"),
            ("list", "/api/v1/services?continue=x&limit=500", "list, further page 200"),
            ("watch", "/api/v1/services?sendInitialEvents=true&watch=true", "streaming list, latest 200"),
            (
                "watch",
                "/api/v1/services?resourceVersion=7&sendInitialEvents=true&watch=true",
                "streaming list, from the cache 200",
            ),
            ("watch", "/api/v1/services?resourceVersion=7&watch=true", "watch 200"),
            ("create", "/apis/events.k8s.io/v1/namespaces/default/events", "create 200"),
        ] {
            assert_eq!(label(verb, uri, 200), want, "{uri}");
        }
        assert_eq!(verb("GET", "/api/v1/services?watch=1"), "watch");
        assert_eq!(verb("GET", "/api/v1/services?limit=1"), "list");
        assert_eq!(verb("POST", "/api/v1/events"), "create");
    }
}
