use std::fs;
use std::path::{Path, PathBuf};

use super::*;

/// Words before a version of upstream's.
const BEFORE: [&str; 4] = ["kube-proxy ", "pstream ", "Kubernetes v", "Kubernetes "];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages about what the program does now. Decisions, and what was measured, are about the version of their time.
fn pages() -> Vec<(PathBuf, String)> {
    let folders = ["docs", "docs/modes", "docs/guides"].map(|folder| root().join(folder));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let files =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "md") && !path.ends_with("scale.md"));
    let readme = root().join("README.md");
    let of_readme = read(&readme);
    let (before, rest) = of_readme.split_once("\n## Measured\n").expect("it has this section");
    let (_, after) = rest.split_once("\n## ").expect("it is not the last one");
    let pages = files.map(|path| (path.clone(), read(&path)));
    pages.chain([(readme, format!("{before}{after}"))]).collect()
}

/// The versions that a text names.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let after = |before: &'static str| text.split(before).skip(1);
    BEFORE.into_iter().flat_map(after).filter_map(|rest| {
        let end = rest.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(rest.len());
        let version = rest.get(..end)?.trim_end_matches('.');
        (version.contains('.')).then_some(version)
    })
}

#[test]
fn documents_name_the_version_that_is_reproduced() {
    let full = UPSTREAM.trim_start_matches('v');
    let (major, minor) = major_and_minor();
    let short = format!("{major}.{minor}");
    let pages = pages();
    for (path, text) in &pages {
        for version in named(text) {
            assert!(version == full || version == short, "{} names {version}, not {full} or {short}", path.display());
        }
    }
    let of = |name: &str| pages.iter().find(|(path, _)| path.ends_with(name)).map(|(_, text)| text.as_str()).unwrap();
    assert!(named(of("README.md")).any(|version| version == full), "README.md names the version");
    let cli = of("docs/cli.md");
    assert!(cli.contains(&format!("`Kubernetes {UPSTREAM}`")) && cli.contains(&format!("`{}`", self::full())));
}

#[test]
fn upstreams_programs_in_tests_are_of_this_version() {
    let modules = read(&root().join("tests/lanes/kubernetes/go.mod"));
    assert!(modules.lines().any(|line| line.trim() == format!("k8s.io/kubernetes {UPSTREAM}")), "{modules}");
}

#[test]
fn versions_are_found_in_sentences() {
    let text =
        "As kube-proxy 1.36. Upstream 1.35.1 (kube-proxy and iptables 1.8.4), `Kubernetes v1.34`, upstream since 1.2";
    let mut found: Vec<_> = named(text).collect();
    found.sort_unstable();
    assert_eq!(found, ["1.34", "1.35.1", "1.36"]);
}
