//! The part of `cargo xt layers` that reads source files: checks their sizes, that only crate `kernel` permits unsafe code, and that
//! crates which run on several systems call each only in the files that are named for it.

use crate::shell::CargoMetadata;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The most lines of a file, its tests not counted.
const LINES: usize = 500;

/// The most lines of tests in the file that they test; longer ones go to `tests.rs` beside it.
const TEST_LINES: usize = 150;

/// The only crate that may switch the lint against unsafe code off.
const UNSAFE_CRATE: &str = "ferry-kernel";

/// The lint's name in an attribute; in two pieces, since this file is checked, too.
const UNSAFE_LINT: &str = concat!("(unsafe", "_code");

/// The crates that run on Linux and Windows, and their files and folders, below `src`, that may call the operating system. In all
/// others such a call would have to be found when the other system's build fails, or, worse, a test there.
const SYSTEMS: &[(&str, &[&str])] = &[
    ("ferry-client", &["platform/"]),
    // `flows` is about Linux's connection tracking, each mode about its own kernel interfaces.
    ("ferry-kube-proxy", &["platform/", "flows/", "planes.rs", "planes/"]),
    // The way `redirect` and what it notes are Linux's; the files of `bind` choose between routes and addresses of interfaces.
    (
        "ferry-plane-userspace",
        &["lib.rs", "datagrams.rs", "redirect/", "bind/mod.rs", "bind/kernel.rs", "bind/routes.rs"],
    ),
    ("ferry-relay", &["system/", "copy/"]),
];

/// Beginnings of names that one system has, and conditions that name one. In two pieces each, since this file is checked, too.
const OF_SYSTEMS: &[&str] = &[
    concat!("std::os", "::"),
    concat!("rust", "ix::"),
    concat!("lib", "c::"),
    concat!("in", "otify::"),
    concat!("signal", "_hook::"),
    concat!("sd", "_notify::"),
    concat!("tokio::", "signal"),
    concat!("windows", "_sys::"),
    concat!("windows", "_service::"),
    concat!("target", "_os ="),
    concat!("cfg(win", "dows)"),
    concat!("cfg(un", "ix)"),
    concat!("(\"/pr", "oc/"),
    concat!("(\"/sy", "s/"),
    concat!("= \"/pr", "oc/"),
    concat!("= \"/sy", "s/"),
];

/// The modules of crate `kernel` that are the same on every system.
const PORTABLE: &[&str] = &["children", "interface", "text"];

/// Every fault in the packages' own files and in the fuzz targets.
///
/// # Errors
/// If a file can't be read.
pub(crate) fn faults(metadata: &CargoMetadata) -> Result<Vec<String>> {
    let mut folders: Vec<(PathBuf, bool)> = metadata
        .packages
        .iter()
        .map(|package| (package.folder().to_path_buf(), package.name == UNSAFE_CRATE))
        .collect();
    folders.push((metadata.workspace_root.join("fuzz"), false));

    let mut faults = Vec::new();
    for (folder, may_be_unsafe) in folders {
        for file in rust_files(&folder)? {
            let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            let name = file.strip_prefix(&metadata.workspace_root).unwrap_or(&file).display().to_string();
            faults.extend(sizes(&name, &text));
            faults.extend(systems(&name, &text));
            if !may_be_unsafe && text.contains(UNSAFE_LINT) {
                faults.push(format!("{name}: unsafe code is for {UNSAFE_CRATE} alone"));
            }
        }
    }
    Ok(faults)
}

/// The calls of one system in a file that is compiled for every system, by line.
fn systems(name: &str, text: &str) -> Vec<String> {
    let file = SYSTEMS.iter().find_map(|(package, places)| {
        let file =
            name.strip_prefix("crates/")?.strip_prefix(package.strip_prefix("ferry-")?)?.strip_prefix("/src/")?;
        Some((file, places))
    });
    let Some((_, places)) = file.filter(|(file, places)| !places.iter().any(|place| file.starts_with(place))) else {
        return Vec::new();
    };
    if name.ends_with("tests.rs") || name.contains("/tests/") || name.ends_with("testing.rs") {
        return Vec::new();
    }
    let code = text.split_once("\nmod tests {").map_or(text, |(code, _)| code);
    let lines = (1..).zip(code.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"));
    let fault = |(number, line): (usize, &str)| {
        let found = OF_SYSTEMS.iter().find(|begin| line.contains(**begin)).map(|begin| (*begin).to_owned());
        let found = found.or_else(|| kernel_module(line))?;
        Some(format!("{name}:{number}: {found} is for {} alone", places.join(", ")))
    };
    lines.filter_map(fault).collect()
}

/// The module of crate `kernel` that a line names, if one system has it.
fn kernel_module(line: &str) -> Option<String> {
    let begin = concat!("ferry_", "kernel::");
    let (_, rest) = line.split_once(begin)?;
    let module: String = rest.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
    // A list in braces is spelled out by the compiler's other build.
    (!PORTABLE.contains(&module.as_str())).then(|| format!("{begin}{module}"))
}

/// All `.rs` files below a folder that may be absent; build output is left out.
pub(crate) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders: Vec<_> = folder.is_dir().then(|| folder.to_path_buf()).into_iter().collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.extend((!path.ends_with("target")).then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The exceeded limits of one file. Files of tests have none.
fn sizes(name: &str, text: &str) -> Vec<String> {
    if name.ends_with("tests.rs") || name.contains("/tests/") {
        return Vec::new();
    }
    let before_tests = text.split_once("\nmod tests {").map_or(text, |(code, _)| code);
    let code = before_tests.lines().rev().skip_while(|line| line.starts_with("#[")).count();
    let tests = text.lines().count() - code;
    let mut faults = Vec::new();
    if code > LINES {
        faults.push(format!("{name}: {code} lines without tests, more than {LINES}"));
    }
    if tests > TEST_LINES {
        faults
            .push(format!("{name}: {tests} lines of tests, more than {TEST_LINES}: they belong in tests.rs beside it"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_called_in_its_files_alone() {
        let calls = concat!("//! std::os", "::fd\nuse std::os", "::fd::AsFd;\nuse ferry_", "kernel::netns;\n");
        let faults = systems("crates/kube-proxy/src/app.rs", calls);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults.iter().all(|fault| fault.starts_with("crates/kube-proxy/src/app.rs:")), "{faults:?}");
        for elsewhere in [
            "crates/kube-proxy/src/platform/linux/files.rs",
            "crates/kube-proxy/src/core/tests.rs",
            "crates/kube-proxy/tests/faults/main.rs",
            "crates/kernel/src/netns.rs",
            "crates/plane-ipvs/src/kernel.rs",
        ] {
            assert_eq!(systems(elsewhere, calls), [""; 0], "{elsewhere}");
        }
        let others =
            concat!("use ferry_", "kernel::text::reason;\n#[cfg(te", "st)]\nmod tests {\nuse std::os", "::fd;\n}\n");
        assert_eq!(systems("crates/client/src/error.rs", others), [""; 0]);
    }

    #[test]
    fn tests_are_counted_apart() {
        let file = |code, tests: usize| {
            let tests = "y\n".repeat(tests.saturating_sub(2));
            format!("{}#[cfg(test)]\nmod tests {{\n{tests}", "x\n".repeat(code))
        };
        assert_eq!(sizes("crates/api/src/lib.rs", &file(LINES, TEST_LINES)), [""; 0]);
        assert_eq!(sizes("crates/api/src/lib.rs", &file(LINES + 1, 2)).len(), 1);
        assert_eq!(sizes("crates/api/src/lib.rs", &file(1, TEST_LINES + 1)).len(), 1);
        assert_eq!(sizes("crates/api/src/config/tests.rs", &file(0, 900)), [""; 0]);
        assert_eq!(sizes("crates/plane/tests/engine.rs", &file(900, 0)), [""; 0]);
    }
}
