//! The dashboard and the alerts: valid for Prometheus, tested, and over metrics that exist.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{fresh_folder, read, repository, run};

const ALERTS: &str = "deploy/monitoring/alerts.yaml";
const TESTS: &str = "deploy/monitoring/alerts.test.yaml";
const DASHBOARD: &str = "deploy/monitoring/dashboard.json";
/// The beginnings of all names of the proxy's metrics.
const PREFIXES: [&str; 4] = ["kubeproxy_", "kubernetes_", "process_", "rest_client_"];

fn promtool(arguments: &[&str]) -> String {
    run(Command::new("promtool").args(arguments).current_dir(repository()))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rules() -> Vec<Value> {
    let groups = yaml(ALERTS)["groups"].as_array().expect("groups").clone();
    groups.into_iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
}

fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("the dashboard is JSON");
    dashboard["panels"].as_array().expect("panels").clone()
}

/// The queries of the dashboard.
fn queries() -> Vec<String> {
    let targets = panels().into_iter().flat_map(|panel| panel["targets"].as_array().expect("targets").clone());
    targets.map(|target| target["expr"].as_str().expect("a query").to_owned()).collect()
}

/// The names of all series that the proxy exports: a test of the metrics compares this document with what is registered.
fn exported() -> BTreeSet<String> {
    let mut names = BTreeSet::from(["up".to_owned()]);
    for line in read("docs/metrics.md").lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`');
        if cells[2] == "histogram" {
            names.extend(["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}")));
        } else {
            names.insert(name.to_owned());
        }
    }
    names
}

/// The names of metrics in a query.
fn used(query: &str) -> BTreeSet<&str> {
    let words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| *word == "up" || PREFIXES.iter().any(|prefix| word.starts_with(prefix))).collect()
}

#[test]
fn prometheus_accepts_the_alerts_and_their_tests_pass() {
    promtool(&["check", "rules", ALERTS]);
    promtool(&["test", "rules", TESTS]);
}

#[test]
fn every_alert_is_tested_and_tells_what_to_do() {
    let tests = read(TESTS);
    for rule in rules() {
        let name = rule["alert"].as_str().expect("a name");
        assert!(tests.contains(&format!("alertname: {name}}}")), "{name} isn't tested to stay silent");
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} isn't tested to fire");
        for text in [&rule["annotations"]["summary"], &rule["annotations"]["description"], &rule["labels"]["severity"]]
        {
            assert!(text.as_str().is_some_and(|text| !text.is_empty()), "{rule}");
        }
    }
}

#[test]
fn every_metric_that_is_used_is_exported() {
    let exported = exported();
    let alerts = rules().into_iter().map(|rule| rule["expr"].as_str().expect("an expression").to_owned());
    for query in alerts.chain(queries()) {
        let used = used(&query);
        assert!(!used.is_empty(), "{query}");
        for name in used {
            assert!(exported.contains(name), "{name} in {query}");
        }
    }
    // so that a misspelt name would be found
    assert!(!exported.contains("kubeproxy_sync_proxy_rules_duration_seconds") && exported.len() > 60);
}

#[test]
fn prometheus_can_parse_the_dashboards_queries() {
    let rules: Vec<Value> = queries()
        .iter()
        .enumerate()
        .map(|(number, query)| json!({"record": format!("query:{number}"), "expr": query.replace("$__rate_interval", "5m")}))
        .collect();
    assert!(rules.len() > 20, "{rules:?}");
    let file = fresh_folder("dashboard").join("rules.json");
    // JSON is YAML
    std::fs::write(&file, json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string()).unwrap();
    promtool(&["check", "rules", &file.display().to_string()]);
}

#[test]
fn panels_have_titles_units_and_places_of_their_own() {
    let panels = panels();
    let distinct = |pointer: &str| {
        let of = |panel: &Value| panel.pointer(pointer).unwrap_or_else(|| panic!("{pointer}: {panel}")).to_string();
        panels.iter().map(of).collect::<BTreeSet<_>>().len()
    };
    assert_eq!((distinct("/id"), distinct("/title"), distinct("/gridPos")), (panels.len(), panels.len(), panels.len()));
    assert!(panels.iter().all(|panel| panel.pointer("/fieldConfig/defaults/unit").is_some_and(Value::is_string)));
}
