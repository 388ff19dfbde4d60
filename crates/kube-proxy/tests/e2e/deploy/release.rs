//! The files of a release, and that neither build of the executable takes the other's place.

use std::process::Command;

use ferry_deploy::release::{self, Executables, SUMS};

use crate::images::static_executable;
use crate::support::{EPOCH, executable, fresh_folder, plugin, repository, run};

#[test]
fn a_release_has_both_executables_and_right_checksums() {
    let folder = fresh_folder("release");
    let fixed = static_executable();
    let executables = Executables { dynamic: executable(), fixed: &fixed, plugin: plugin() };
    let files = release::write(&executables, repository(), &folder, EPOCH).unwrap();
    assert_eq!(files.last().and_then(|file| file.file_name()), Some(SUMS.as_ref()));
    let checked = run(Command::new("sha256sum").args(["--check", SUMS]).current_dir(&folder));
    assert_eq!(checked.lines().filter(|line| line.ends_with(": OK")).count(), files.len() - 1, "{checked}");
    for end in [".deb", "-static", ".cdx.json", "kube-proxy.8"] {
        assert!(checked.lines().any(|line| line.ends_with(&format!("{end}: OK"))), "{end}: {checked}");
    }
    let swapped = Executables { dynamic: &fixed, fixed: executable(), plugin: plugin() };
    let error = release::write(&swapped, repository(), &folder, EPOCH).unwrap_err().to_string();
    assert!(error.contains("is static: on nodes"), "{error}");
    let twice = Executables { dynamic: executable(), fixed: executable(), plugin: plugin() };
    let error = release::write(&twice, repository(), &folder, EPOCH).unwrap_err().to_string();
    assert!(error.contains("needs shared libraries"), "{error}");
}
