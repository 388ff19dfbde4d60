//! `cargo xt layers`: checks the dependencies between crates and between modules, the lints of all packages, the names of types, the
//! sizes of files and of the reading path, which the compiler doesn't enforce.

use crate::shell::{CargoMetadata, Package, no_arguments};
use crate::{circles, names, reading_path, sources};
use anyhow::{Context, Result, ensure};

/// Permitted dependencies of each shipped crate within the workspace: `api <- model <- plane <- plane-* <- kube-proxy`,
/// `kernel` below the planes and the executable, and `ruleset` between the planes and all that is below them. A crate that is not listed may have none.
const LAYERS: &[(&str, &[&str])] = &[
    ("ferry-family", &[]),
    ("ferry-api", &["ferry-family"]),
    ("ferry-kernel", &["ferry-family"]),
    ("ferry-relay", &["ferry-kernel"]),
    ("ferry-client", &["ferry-api", "ferry-kernel"]),
    ("ferry-model", &["ferry-api"]),
    ("ferry-plane", &["ferry-api", "ferry-model"]),
    (RULESET, &["ferry-api", "ferry-model", "ferry-plane", "ferry-kernel"]),
    (PLANES, &["ferry-api", "ferry-model", "ferry-plane", "ferry-kernel", "ferry-relay", RULESET]),
    ("ferry-kube-proxy", &["ferry-api", "ferry-client", "ferry-model", "ferry-plane", "ferry-kernel", PLANES]),
];

/// Stands for every crate whose name begins so; none of them may use another.
const PLANES: &str = "ferry-plane-*";

/// The crate that modes with an nf_tables table share.
const RULESET: &str = "ferry-ruleset";

/// Crates for tests and developers, which are never shipped and may use any other. `ferry-conformance`, which the tests of every
/// mode share, uses the layers below the modes, and the tests of those use it, too: a cycle of tests only.
const TOOLS: &[&str] = &["ferry-conformance", "ferry-lab", "ferry-bench", "ferry-deploy", "ferry-mutants", "xtask"];

/// Additional permitted dependencies of tests.
const FOR_TESTS: &[&str] = &["ferry-conformance", "ferry-deploy", "ferry-lab", "ferry-kernel"];

/// The feature that adds code for tests only (`MemoryKernel`).
const TEST_FEATURE: &str = "testing";

/// Checks everything and prints each fault.
///
/// # Errors
/// If there is a fault, or a file can't be read.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    no_arguments(arguments)?;
    let metadata = CargoMetadata::load()?;
    let mut faults = Vec::new();
    for package in &metadata.packages {
        faults.extend(arrows(package));
        faults.extend(lints(package)?);
    }
    faults.extend(circles::faults(&metadata)?);
    faults.extend(names::faults(&metadata)?);
    faults.extend(sources::faults(&metadata)?);
    faults.extend(reading_path::fault(&metadata.workspace_root)?);
    for fault in &faults {
        println!("{fault}");
    }
    ensure!(faults.is_empty(), "{} faults in the layers", faults.len());
    Ok(())
}

/// The dependencies of one package that the layers forbid.
fn arrows(package: &Package) -> Vec<String> {
    if TOOLS.contains(&package.name.as_str()) {
        return Vec::new();
    }
    let allowed =
        LAYERS.iter().find(|(name, _)| stands_for(name, &package.name)).map_or([].as_slice(), |layer| layer.1);
    let mut faults = Vec::new();
    for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
        let for_tests = dependency.kind.as_deref() == Some("dev");
        let in_layers = allowed.iter().any(|name| stands_for(name, &dependency.name));
        let in_tests = dependency.name == package.name || FOR_TESTS.contains(&dependency.name.as_str());
        if !(in_layers || for_tests && in_tests) {
            let kind = dependency.kind.as_deref().unwrap_or("normal");
            faults.push(format!("{}: {kind} dependency on {} is against the layers", package.name, dependency.name));
        }
        if !for_tests && dependency.features.iter().any(|feature| feature == TEST_FEATURE) {
            faults.push(format!("{}: feature {TEST_FEATURE} of {} outside tests", package.name, dependency.name));
        }
    }
    faults
}

/// True for the crate of a mode.
pub(crate) fn is_plane(name: &str) -> bool {
    stands_for(PLANES, name)
}

/// True if the name of a layer matches this crate.
fn stands_for(layer: &str, name: &str) -> bool {
    layer.strip_suffix('*').map_or(layer == name, |start| name.starts_with(start))
}

/// The fault of a package that doesn't inherit the workspace's lints: it could contain what they forbid, unsafe code included.
fn lints(package: &Package) -> Result<Option<String>> {
    let manifest = std::fs::read_to_string(&package.manifest_path)
        .with_context(|| format!("reading {}", package.manifest_path.display()))?;
    let inherited = manifest.split_once("\n[lints]\n").is_some_and(|(_, rest)| rest.starts_with("workspace = true"));
    Ok((!inherited).then(|| format!("{}: the manifest has no `[lints] workspace = true`", package.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::Dependency;

    fn depends(name: &str, on: &str, kind: Option<&str>, features: &[&str]) -> Vec<String> {
        arrows(&Package {
            name: name.into(),
            manifest_path: "Cargo.toml".into(),
            dependencies: vec![Dependency {
                name: on.into(),
                kind: kind.map(Into::into),
                path: Some("somewhere".into()),
                features: features.iter().map(|&feature| feature.into()).collect(),
            }],
            targets: Vec::new(),
        })
    }

    #[test]
    fn arrows_point_down_only() {
        for (name, on) in [
            ("ferry-model", "ferry-api"),
            ("ferry-api", "ferry-family"),
            ("ferry-kernel", "ferry-family"),
            ("ferry-relay", "ferry-kernel"),
            ("ferry-plane-nftables", "ferry-kernel"),
            ("ferry-plane-nftables", "ferry-ruleset"),
            ("ferry-ruleset", "ferry-plane"),
            ("ferry-ruleset", "ferry-kernel"),
            ("ferry-kube-proxy", "ferry-plane-nftables"),
            ("ferry-lab", "ferry-plane-nftables"),
        ] {
            assert_eq!(depends(name, on, None, &[]), [""; 0], "{name} -> {on}");
        }
        for (name, on) in [
            ("ferry-api", "ferry-model"),
            ("ferry-model", "ferry-kernel"),
            ("ferry-kernel", "ferry-api"),
            ("ferry-relay", "ferry-model"),
            ("ferry-family", "ferry-api"),
            ("ferry-plane", "ferry-kernel"),
            ("ferry-plane-nftables", "ferry-plane-iptables"),
            ("ferry-ruleset", "ferry-plane-nftables"),
            ("ferry-plane", "ferry-ruleset"),
            ("ferry-kube-proxy", "ferry-ruleset"),
            ("ferry-kube-proxy", "ferry-lab"),
            ("ferry-unheard-of", "ferry-api"),
        ] {
            assert_eq!(depends(name, on, None, &[]).len(), 1, "{name} -> {on}");
        }
    }

    #[test]
    fn tests_may_use_the_kits_and_features_for_tests() {
        for kit in ["ferry-conformance", "ferry-lab"] {
            assert_eq!(depends("ferry-model", kit, Some("dev"), &[]), [""; 0]);
            assert_eq!(depends("ferry-model", kit, None, &[]).len(), 1);
        }
        assert_eq!(depends("ferry-plane-nftables", "ferry-plane", Some("dev"), &["testing"]), [""; 0]);
        assert_eq!(depends("ferry-plane-nftables", "ferry-plane", None, &["testing"]).len(), 1);
        assert_eq!(depends("ferry-model", "ferry-plane", Some("dev"), &[]).len(), 1);
    }
}
