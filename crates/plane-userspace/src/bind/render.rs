//! Renders objects as text, for people and golden files.

use super::object::BindObject;

/// The objects of one family, a line each, in the order of their ranks. Objects may come in any order; duplicates are printed once.
pub fn objects(objects: &[BindObject]) -> String {
    let mut lines: Vec<&BindObject> = objects.iter().collect();
    lines.sort_unstable();
    lines.dedup();
    lines.into_iter().map(|object| format!("{object}\n")).collect()
}
