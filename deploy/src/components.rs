//! The list of the libraries in the executable (SBOM), in CycloneDX's JSON, from `cargo metadata` and `Cargo.lock`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use ferry_kube_proxy::version;
use serde_json::{Value, json};

use crate::epoch::Epoch;
use crate::tool;

/// The package of the executable.
const ROOT: &str = "ferry-kube-proxy";

/// Lists the packages that the executable of this workspace is linked from: normal dependencies on Linux, of any depth.
///
/// # Errors
/// If cargo fails, or its output isn't as expected.
pub fn list(workspace: &Path, epoch: Epoch) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new(cargo);
    command.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", &target]);
    let metadata = tool::output(command.current_dir(workspace))?;
    let metadata: Value = serde_json::from_str(&metadata).context("reading the output of cargo metadata")?;
    let lock = std::fs::read_to_string(workspace.join("Cargo.lock")).context("reading Cargo.lock")?;
    document(&metadata, &sums(&lock), epoch)
}

fn document(metadata: &Value, sums: &BTreeMap<(&str, &str), &str>, epoch: Epoch) -> Result<String> {
    let linked = linked(metadata).context("cargo metadata names no packages")?;
    let packages = metadata.get("packages").and_then(Value::as_array).context("cargo metadata lists no packages")?;
    let mut components: Vec<Value> = packages
        .iter()
        .filter(|package| {
            text(package, "id").is_some_and(|id| linked.contains(id)) && text(package, "name") != Some(ROOT)
        })
        .filter_map(|package| component(package, sums))
        .collect();
    components.sort_by_key(|component| component.get("purl").map(Value::to_string));
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": epoch.time(),
            "component": {"type": "application", "name": "kube-proxy", "version": version::FERRY, "licenses": [{"expression": "Apache-2.0"}]},
        },
        "components": components,
    });
    Ok(format!("{document:#}\n"))
}

/// The ids of all packages that are linked into the executable.
fn linked(metadata: &Value) -> Option<BTreeSet<&str>> {
    let nodes = metadata.pointer("/resolve/nodes")?.as_array()?;
    let by_id: BTreeMap<&str, &Value> = nodes.iter().filter_map(|node| Some((text(node, "id")?, node))).collect();
    let packages = metadata.get("packages")?.as_array()?;
    let root = packages.iter().find(|package| text(package, "name") == Some(ROOT))?;
    // procedural macros run in the compiler, and so does all that only they depend on
    let macros: BTreeSet<&str> =
        packages.iter().filter(|package| is_macro(package)).filter_map(|package| text(package, "id")).collect();
    let mut linked = BTreeSet::new();
    let mut waiting = vec![text(root, "id")?];
    while let Some(id) = waiting.pop() {
        if !macros.contains(id) && linked.insert(id) {
            let dependencies = by_id.get(id).and_then(|node| node.get("deps")?.as_array()).into_iter().flatten();
            waiting.extend(dependencies.filter(|dependency| is_normal(dependency)).filter_map(|one| text(one, "pkg")));
        }
    }
    Some(linked)
}

fn is_normal(dependency: &Value) -> bool {
    let kinds = dependency.get("dep_kinds").and_then(Value::as_array);
    kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.get("kind").is_some_and(Value::is_null)))
}

fn is_macro(package: &Value) -> bool {
    let targets = package.get("targets").and_then(Value::as_array).into_iter().flatten();
    targets.filter_map(|target| target.pointer("/kind/0")?.as_str()).any(|kind| kind == "proc-macro")
}

fn component(package: &Value, sums: &BTreeMap<(&str, &str), &str>) -> Option<Value> {
    let (name, version) = (text(package, "name")?, text(package, "version")?);
    let mut component = json!({
        "type": "library",
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
    });
    let fields = component.as_object_mut()?;
    if let Some(license) = text(package, "license") {
        fields.insert("licenses".into(), json!([{"expression": license.replace('/', " OR ")}]));
    }
    if let Some(sum) = sums.get(&(name, version)) {
        fields.insert("hashes".into(), json!([{"alg": "SHA-256", "content": sum}]));
    }
    Some(component)
}

fn text<'v>(value: &'v Value, field: &str) -> Option<&'v str> {
    value.get(field)?.as_str()
}

/// The checksums of `Cargo.lock`, by name and version; the workspace's own packages have none.
fn sums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    lock.split("[[package]]").filter_map(entry).collect()
}

fn entry(entry: &str) -> Option<((&str, &str), &str)> {
    let field = |name: &str| {
        let line = entry.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))?;
        Some(line.trim_matches('"'))
    };
    Some(((field("name")?, field("version")?), field("checksum")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_listed_once_with_licence_and_checksum() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = list(workspace, Epoch(0)).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let components = document["components"].as_array().unwrap();
        let names: Vec<&str> = components.iter().map(|component| component["name"].as_str().unwrap()).collect();
        for name in ["rustls", "ring", "tokio", "ferry-kernel", "ferry-plane-ipvs"] {
            assert_eq!(names.iter().filter(|found| **found == name).count(), 1, "{name}: {names:?}");
        }
        for name in ["syn", "serde_derive", "proptest", "ferry-lab", "ferry-kube-proxy", "prost-derive"] {
            assert!(!names.contains(&name), "{name} is in no executable");
        }
        for component in components {
            let is_own = component["name"].as_str().unwrap().starts_with("ferry-");
            assert!(component["licenses"][0]["expression"].is_string(), "{component}");
            assert_eq!(
                component["hashes"][0]["content"].as_str().map(str::len),
                (!is_own).then_some(64),
                "{component}"
            );
        }
    }

    #[test]
    fn dependencies_of_macros_alone_are_left_out() {
        let package = |name: &str, kind: &str| json!({"id": name, "name": name, "version": "1.0.0", "targets": [{"kind": [kind]}]});
        let edge = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package(ROOT, "lib"), package("used", "lib"), package("derive", "proc-macro"), package("quote", "lib"),
                package("build", "lib")],
            "resolve": {"nodes": [
                {"id": ROOT, "deps": [edge("used", Value::Null), edge("derive", Value::Null), edge("build", json!("build"))]},
                {"id": "derive", "deps": [edge("quote", Value::Null)]},
            ]},
        });
        assert_eq!(linked(&metadata).unwrap().into_iter().collect::<Vec<_>>(), [ROOT, "used"]);
    }
}
