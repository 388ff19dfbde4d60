//! The output of subcommands that compare the kernel with the desired state, family by family.

use ferry_api::object::Family;
use ferry_kernel::text::escaped;
use ferry_plane::Batch;
use serde_json::{Value, json};

/// The output of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// for people, or JSON
    pub text: String,
    /// the kernel differs from the desired state
    pub differs: bool,
    /// a family can't be compared
    pub failed: bool,
}

/// The result of each family, or the error that prevented it.
pub(super) type Shown<T> = Vec<(Family, Result<T, String>)>;

/// The version of the JSON schemas.
const VERSION: u32 = 1;

/// The text for people, `one` for each family that was compared.
pub(super) fn text<T>(mode: &str, shown: &Shown<T>, one: impl Fn(&T) -> String) -> String {
    let line = |(family, result): &(Family, Result<T, String>)| match result {
        Err(error) => format!("{family} in mode {mode}: can't be compared: {error}\n"),
        Ok(result) => format!("{family} in mode {mode}: {}", one(result)),
    };
    shown.iter().map(line).collect()
}

/// The text for programs, `one` for each family that was compared.
pub(super) fn json<T>(mode: &str, shown: &Shown<T>, one: impl Fn(&str, &T) -> Value) -> String {
    let entry = |(family, result): &(Family, Result<T, String>)| match result {
        Err(error) => json!({"family": family.to_string(), "error": error}),
        Ok(result) => one(&family.to_string(), result),
    };
    let families: Vec<Value> = shown.iter().map(entry).collect();
    format!("{:#}\n", json!({"version": VERSION, "mode": mode, "families": families}))
}

/// True if a family can't be compared.
pub(super) fn failed<T>(shown: &Shown<T>) -> bool {
    shown.iter().any(|(_, result)| result.is_err())
}

/// A line for each operation, after this text, and the number of those beyond `most`.
pub(super) fn operations(batch: &Batch<String>, before: &str, most: usize) -> String {
    let Batch { create, replace, delete } = batch;
    let all = [("create", create), ("replace", replace), ("delete", delete)];
    let lines = all
        .into_iter()
        .flat_map(|(op, list)| list.iter().map(move |object| format!("{before}{op} {}\n", escaped(object))));
    let more = batch.len().saturating_sub(most);
    let more = if more == 0 { String::new() } else { format!("    and {more} more\n") };
    lines.take(most).collect::<String>() + &more
}
