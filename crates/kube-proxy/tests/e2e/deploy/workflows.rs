//! The workflows of the repository's host: what they run exists.

use serde_json::Value;

use crate::support::{read, repository};

/// The commands of a workflow.
fn commands(file: &str) -> Vec<String> {
    let path = format!(".github/workflows/{file}");
    let workflow: Value = serde_saphyr::from_str(&read(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let jobs = workflow["jobs"].as_object().expect("jobs");
    let steps = jobs.values().flat_map(|job| job["steps"].as_array().expect("steps"));
    steps.filter_map(|step| step["run"].as_str().map(str::to_owned)).collect()
}

#[test]
fn checks_are_those_of_ci_run() {
    assert_eq!(commands("ci.yml"), ["bash .ci/run"]);
    assert!(repository().join(".ci/run").is_file());
}

#[test]
fn a_release_is_what_cargo_xt_package_writes() {
    let commands = commands("release.yml").join("\n");
    for part in ["cargo xt package --out dist", "sha256sum --check SHA256SUMS", "kube-proxy:Containerfile "] {
        assert!(commands.contains(part), "{part}\n{commands}");
    }
    for definition in ["Containerfile", "Containerfile.iptables"] {
        assert!(
            repository().join("deploy/images").join(definition).is_file()
                && commands.contains(&format!(":{definition}"))
        );
    }
}
