//! The packages and files in which mutants are made, and the tests that must notice them.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// The packages that are pure as a whole.
const PURE: &[&str] = &["ferry-family", "ferry-api", "ferry-model", "ferry-plane"];

/// The package that modes with an nf_tables table share.
const RULESET: &str = "ferry-ruleset";

/// How the name of each mode's package begins.
const PLANE: &str = "ferry-plane-";

/// Excluded files, as globs below a package's `src`: kernel halves, whose tests need a kernel and take minutes, and test helpers.
const LEFT_OUT: &[(&str, &[&str])] = &[
    ("ferry-plane", &["memory.rs"]),
    (
        "ferry-plane-iptables",
        &[
            "backend.rs",
            "counters.rs",
            "in_use.rs",
            "kernel.rs",
            "kernel/**",
            "read.rs",
            "refers.rs",
            "testing.rs",
            "variant/**",
            "watch.rs",
        ],
    ),
    ("ferry-plane-nftables", &["in_use.rs", "kernel.rs", "leftovers.rs", "probe.rs", "read.rs", "refers.rs"]),
    (
        "ferry-plane-userspace",
        &[
            "bind/interface.rs",
            "bind/kernel.rs",
            "bind/listeners.rs",
            "bind/refers.rs",
            "bind/routes.rs",
            "onward.rs",
            "redirect/kernel.rs",
            "redirect/refers.rs",
            "redirect/relay.rs",
        ],
    ),
    (
        "ferry-plane-ipvs",
        &[
            "device.rs",
            "kernel.rs",
            "refers.rs",
            "retire.rs",
            "servers/commit.rs",
            "servers/director.rs",
            "servers/ledger.rs",
            "servers/mod.rs",
            "servers/schedulers.rs",
            "setup.rs",
            "watch.rs",
        ],
    ),
    (RULESET, &["probe.rs", "read.rs", "table/layer.rs", "table/probe.rs", "table/read.rs", "watch.rs"]),
];

/// Parts of the names of tests that need a kernel or a tool, in programs whose other tests don't.
const NEED_A_KERNEL: &[&str] = &["the_kernel_takes", "twins::", "upstream::"];

/// Test programs of one package.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestPrograms {
    pub(crate) package: String,
    /// arguments for cargo that select programs; all without any
    pub(crate) selection: &'static [&'static str],
    /// parts of the names of tests that don't run
    pub(crate) skipped: &'static [&'static str],
}

/// All packages with mutants.
///
/// # Errors
/// If the folder of the packages can't be listed.
pub(crate) fn packages(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("crates");
    let entries = fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
    let names: Vec<_> = entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<_>>()?;
    let mut packages: Vec<String> = names.iter().map(|name| format!("ferry-{}", name.to_string_lossy())).collect();
    packages.retain(|package| is_mutated(package));
    packages.sort();
    Ok(packages)
}

/// True for the packages with mutants.
pub(crate) fn is_mutated(package: &str) -> bool {
    PURE.contains(&package) || package == RULESET || is_plane(package)
}

fn is_plane(package: &str) -> bool {
    package.starts_with(PLANE)
}

/// The folder of a package below the workspace's.
pub(crate) fn folder(package: &str) -> String {
    format!("crates/{}", package.strip_prefix("ferry-").unwrap_or(package))
}

/// The folder of a package's source below the workspace's.
pub(crate) fn source(package: &str) -> String {
    format!("{}/src", folder(package))
}

/// The excluded files of a package, as globs below its `src`.
pub(crate) fn left_out(package: &str) -> impl Iterator<Item = &'static str> {
    LEFT_OUT.iter().filter(move |(name, _)| *name == package).flat_map(|(_, globs)| globs.iter().copied())
}

/// The modes that use [`RULESET`].
const WITH_A_TABLE: [&str; 3] = ["ferry-plane-nftables", "ferry-plane-ipvs", "ferry-plane-userspace"];

/// The tests that must notice the mutants of a package: its own. [`RULESET`] has few; those of the modes that use it count, too.
pub(crate) fn tests(package: &str) -> Vec<TestPrograms> {
    let of = |package: &str, selection: &'static [&'static str], skipped: &'static [&'static str]| TestPrograms {
        package: package.to_owned(),
        selection,
        skipped,
    };
    // Only the programs of a mode that need no kernel are built.
    let of_plane = |package: &str| of(package, &["--lib", "--test=suite"], NEED_A_KERNEL);
    match package {
        RULESET => {
            let own = of(RULESET, &["--lib"], NEED_A_KERNEL);
            std::iter::once(own).chain(WITH_A_TABLE.map(of_plane)).collect()
        }
        plane if is_plane(plane) => vec![of_plane(plane)],
        pure => vec![of(pure, &["--lib", "--tests"], &[])],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_excluded_file_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (package, globs) in LEFT_OUT {
            let source = root.join(source(package));
            for glob in *globs {
                assert!(source.join(glob.trim_end_matches("/**")).exists(), "{package}: {glob}");
            }
        }
    }

    #[test]
    fn pure_packages_and_all_modes_have_mutants() {
        let packages = packages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
        for package in PURE.iter().chain([&RULESET, &"ferry-plane-ipvs", &"ferry-plane-userspace"]) {
            assert!(packages.iter().any(|one| one == package), "{package}");
        }
        assert!(!packages.iter().any(|one| one == "ferry-kernel"));
    }

    #[test]
    fn the_shared_rule_set_is_tested_by_the_modes_that_use_it() {
        let packages: Vec<_> = tests(RULESET).into_iter().map(|tests| tests.package).collect();
        assert_eq!(packages, [&[RULESET], WITH_A_TABLE.as_slice()].concat());
        assert_eq!(tests("ferry-model").first().map(|tests| tests.skipped), Some([].as_slice()));
    }
}
