//! The output of subcommands that compare the kernel with the desired state, family by family.

use ferry_api::object::Family;
use ferry_kernel::text::escaped;
use ferry_plane::Batch;
use serde_json::{Value, json};

use super::explain::problem_line;

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

/// The text for people, `one` for each family that was compared. With colours, lines that are a problem stand out.
pub(super) fn text<T>(
    mode: &str,
    shown: &Shown<T>,
    colours: bool,
    one: impl Fn(&T) -> String,
    is_problem: impl Fn(&T, &str) -> bool,
) -> String {
    let printed = |result: &T, line: &str| {
        if is_problem(result, line) { problem_line(line, colours) } else { format!("{line}\n") }
    };
    let of_family = |(family, result): &(Family, Result<T, String>)| match result {
        Err(error) => problem_line(&format!("{family} in mode {mode}: can't be compared: {}", escaped(error)), colours),
        Ok(result) => {
            let text = format!("{family} in mode {mode}: {}", one(result));
            text.lines().map(|line| printed(result, line)).collect()
        }
    };
    shown.iter().map(of_family).collect()
}

/// True for the first line of a family, and for those that name what differs in it: details are indented deeper.
pub(super) fn is_outer(line: &str) -> bool {
    !line.starts_with("    ")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_stand_out_on_a_terminal() {
        let failure = Err("no".to_owned());
        let shown: Shown<bool> = vec![(Family::V4, Ok(true)), (Family::V4, Ok(false)), (Family::V6, failure)];
        let one = |_: &bool| "first\n  name\n    detail\n".to_owned();
        let printed = |colours| text("ipvs", &shown, colours, one, |differs, line| *differs && is_outer(line));
        let equal = "IPv4 in mode ipvs: first\n  name\n    detail\n";
        assert_eq!(printed(false), format!("{equal}{equal}IPv6 in mode ipvs: can't be compared: no\n"));
        let red = |line: &str| format!("\x1b[1;31m{line}\x1b[0m\n");
        let differs = red("IPv4 in mode ipvs: first") + &red("  name") + "    detail\n";
        let failed = red("IPv6 in mode ipvs: can't be compared: no");
        assert_eq!(printed(true), format!("{differs}{equal}{failed}"));
    }
}
