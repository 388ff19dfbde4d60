//! Finds names that stand for more than two types, for `cargo xt layers`: a type is named so that its use reads well without its module.

use crate::rust::SourceFile;
use crate::shell::CargoMetadata;
use crate::sources::rust_files;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The most types of one name.
const TYPES: usize = 2;

/// The crates of the modes have the same files, and the same names in them, which count once.
const MODES: &str = "crates/plane-";

/// The systems that a file, or a folder, can be written for. Their types stand for each other and count once.
const SYSTEMS: [&str; 2] = ["linux", "windows"];

/// The places of each name of a type, with a file of each place.
type Places = BTreeMap<String, BTreeMap<String, String>>;

/// Every name that stands for too many types, tests not counted.
///
/// # Errors
/// If a file can't be read.
pub(crate) fn faults(metadata: &CargoMetadata) -> Result<Vec<String>> {
    let mut places = Places::new();
    for folder in metadata.packages.iter().map(|package| package.folder()).collect::<BTreeSet<_>>() {
        for file in rust_files(folder)? {
            let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            let name = file.strip_prefix(&metadata.workspace_root).unwrap_or(&file).display().to_string();
            note(&name, &text, &mut places);
        }
    }
    Ok(ambiguous(&places))
}

/// Notes the types that a file defines.
fn note(name: &str, text: &str, places: &mut Places) {
    if name.contains("/tests/") || name.ends_with("/tests.rs") {
        return;
    }
    for of_type in SourceFile::read(text).types {
        places.entry(of_type).or_default().entry(place(name)).or_insert_with(|| name.to_owned());
    }
}

/// The place that a file belongs to, itself in most cases.
fn place(name: &str) -> String {
    if name.starts_with(MODES) {
        return MODES.to_owned();
    }
    let is_system = |part: &str| SYSTEMS.contains(&part.trim_end_matches(".rs"));
    name.split('/').take_while(|part| !is_system(part)).collect::<Vec<_>>().join("/")
}

fn ambiguous(places: &Places) -> Vec<String> {
    let too_many = places.iter().filter(|(_, files)| files.len() > TYPES);
    too_many
        .map(|(name, files)| {
            let files: Vec<&str> = files.values().map(String::as_str).collect();
            format!("{name} stands for {} types: rename some in {}", files.len(), files.join(", "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[&str], wanted: &[&str]) {
        let mut places = Places::new();
        for file in files {
            note(file, "struct Row; #[cfg(test)] mod tests { struct Test; }", &mut places);
        }
        assert_eq!(ambiguous(&places), wanted);
    }

    #[test]
    fn a_name_stands_for_two_types_at_most() {
        check(&["crates/a/src/x.rs", "lab/src/y.rs"], &[]);
        check(
            &["crates/a/src/x.rs", "lab/src/y.rs", "crates/a/src/z.rs"],
            &["Row stands for 3 types: rename some in crates/a/src/x.rs, crates/a/src/z.rs, lab/src/y.rs"],
        );
    }

    #[test]
    fn modes_and_systems_count_once_and_tests_do_not() {
        check(&["crates/plane-ipvs/src/a.rs", "crates/plane-nftables/src/b.rs", "lab/src/c.rs"], &[]);
        check(&["crates/a/src/p/linux.rs", "crates/a/src/p/windows/b.rs", "lab/src/c.rs"], &[]);
        check(&["crates/a/src/x.rs", "lab/src/y.rs", "lab/src/y/tests.rs", "lab/tests/z.rs"], &[]);
    }
}
