//! Case folders: objects, Node and configuration in, `want.model` out.
//!
//! `FERRY_ACCEPT=1 cargo test -p ferry-model --test cases` writes what the model says; read the difference like code.

#![expect(clippy::disallowed_methods, reason = "cases are files")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod case;

use std::fmt::Write as _;
use std::fs;

use ferry_model::Profile;
use ferry_model::explain::explain;

use case::Case;

#[test]
fn the_model_says_what_each_case_wants() {
    let accept = std::env::var_os("FERRY_ACCEPT").is_some_and(|value| value == "1");
    let cases = Case::all();
    assert!(cases.len() >= 165, "only {} cases found", cases.len());
    let mut differing = String::new();
    for case in &cases {
        let got = explain(&case.settings, &case.local_addresses, &case.store, &Profile::NFTABLES);
        let file = case.folder.join("want.model");
        let wanted = fs::read_to_string(&file).unwrap_or_default();
        if got == wanted {
            continue;
        }
        if accept {
            fs::write(&file, got).unwrap();
        } else {
            writeln!(differing, "--- {}\n{}", case.name, difference(&wanted, &got)).unwrap();
        }
    }
    assert!(
        differing.is_empty(),
        "FERRY_ACCEPT=1 writes what is new (+) in place of what was wanted (-):\n{differing}"
    );
}

/// The lines that differ, with what stands unchanged between them. Lines that both have are kept in order: the longest
/// common subsequence, which is quick enough for texts of this size.
fn difference(wanted: &str, got: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (wanted.lines().collect(), got.lines().collect());
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for (i, before) in old.iter().enumerate().rev() {
        for (j, after) in new.iter().enumerate().rev() {
            common[i][j] =
                if before == after { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut text) = (0, 0, String::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            text += &format!("  {}\n", old[i]);
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            text += &format!("- {}\n", old[i]);
            i += 1;
        } else {
            text += &format!("+ {}\n", new[j]);
            j += 1;
        }
    }
    text
}

#[test]
fn differences_are_found() {
    assert_eq!(difference("a\nb\nc\n", "a\nc\nd\n"), "  a\n- b\n  c\n+ d\n");
    assert_eq!(difference("", "a\n"), "+ a\n");
}
