//! Compares results with the expected files of the case folders. `FERRY_ACCEPT=1` writes them.

use std::fmt::Write as _;
use std::fs;

use crate::case::Case;

/// Compares the file of this name in each case folder with the current result.
///
/// # Panics
/// If any file differs, with the differences, unless `FERRY_ACCEPT=1` is set: then the files are written.
pub fn compare(cases: &[Case], name: &str, made_of: impl Fn(&Case) -> String) {
    let accept = std::env::var_os("FERRY_ACCEPT").is_some_and(|value| value == "1");
    let mut differing = String::new();
    for case in cases {
        let got = made_of(case);
        let file = case.folder.join(name);
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

/// The different lines, with up to three unchanged ones around them, by the longest common subsequence of lines, which is
/// fast enough for texts of this size.
fn difference(wanted: &str, got: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (wanted.lines().collect(), got.lines().collect());
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for (i, before) in old.iter().enumerate().rev() {
        for (j, after) in new.iter().enumerate().rev() {
            common[i][j] =
                if before == after { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', old[i]));
            i += 1;
        } else {
            lines.push(('+', new[j]));
            j += 1;
        }
    }
    let around = |at: usize| &lines[at.saturating_sub(3)..lines.len().min(at + 4)];
    let shown = lines.iter().enumerate().filter(|(at, _)| around(*at).iter().any(|(mark, _)| *mark != ' '));
    shown.fold(String::new(), |text, (_, (mark, line))| format!("{text}{mark} {line}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found() {
        assert_eq!(difference("a\nb\nc\n", "a\nc\nd\n"), "  a\n- b\n  c\n+ d\n");
        assert_eq!(difference("", "a\n"), "+ a\n");
        assert_eq!(difference("1\n2\n3\n4\n5\n", "1\n2\n3\n4\n6\n"), "  2\n  3\n  4\n- 5\n+ 6\n");
    }
}
