//! The output of subcommands that compare the kernel with the desired state, family by family.

use ferry_api::object::Family;
use ferry_kernel::text::escaped;
use ferry_plane::Batch;
use serde_json::{Value, json};

use super::terminal::problem_line;

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

/// A text for people, line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TextLines(Vec<TextLine>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct TextLine {
    text: String,
    /// it stands out on a terminal
    is_problem: bool,
}

/// The version of the JSON schemas.
const VERSION: u32 = 1;

/// The text for people, `one` for each family that was compared, whose first line continues one that names the family and the mode.
pub(super) fn text<T>(mode: &str, shown: &Shown<T>, colours: bool, one: impl Fn(&T) -> TextLines) -> String {
    let of_family = |(family, result): &(Family, Result<T, String>)| {
        let mut lines = match result {
            Err(error) => TextLines::of_problem(&format!("can't be compared: {}", escaped(error))),
            Ok(result) => one(result),
        };
        if let Some(first) = lines.0.first_mut() {
            first.text.insert_str(0, &format!("{family} in mode {mode}: "));
        }
        lines.text(colours)
    };
    shown.iter().map(of_family).collect()
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

// === impl TextLines ===

impl TextLines {
    /// A text that begins with a line about a problem.
    pub(super) fn of_problem(text: &str) -> Self {
        let mut lines = Self::default();
        lines.problem(text);
        lines
    }

    /// Adds the lines of a text.
    pub(super) fn add(&mut self, text: &str) {
        self.0.extend(text.lines().map(|line| TextLine { text: line.to_owned(), is_problem: false }));
    }

    /// Adds a line about a problem.
    pub(super) fn problem(&mut self, line: &str) {
        self.0.push(TextLine { text: line.to_owned(), is_problem: true });
    }

    /// Adds a line, about a problem or not.
    pub(super) fn line(&mut self, line: &str, is_problem: bool) {
        if is_problem { self.problem(line) } else { self.add(line) }
    }

    /// The text, with colours of a terminal or without.
    pub(super) fn text(&self, colours: bool) -> String {
        let printed = |TextLine { text, is_problem }: &TextLine| match is_problem {
            true => problem_line(text, colours),
            false => format!("{text}\n"),
        };
        self.0.iter().map(printed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_stand_out_on_a_terminal() {
        let failure = Err("no".to_owned());
        let shown: Shown<bool> = vec![(Family::V4, Ok(true)), (Family::V4, Ok(false)), (Family::V6, failure)];
        let one = |differs: &bool| {
            let mut lines = TextLines::default();
            lines.line("first", *differs);
            lines.line("  name", *differs);
            lines.add("    detail\n");
            lines
        };
        let printed = |colours| text("ipvs", &shown, colours, one);
        let equal = "IPv4 in mode ipvs: first\n  name\n    detail\n";
        assert_eq!(printed(false), format!("{equal}{equal}IPv6 in mode ipvs: can't be compared: no\n"));
        let red = |line: &str| format!("\x1b[1;31m{line}\x1b[0m\n");
        let differs = red("IPv4 in mode ipvs: first") + &red("  name") + "    detail\n";
        let failed = red("IPv6 in mode ipvs: can't be compared: no");
        assert_eq!(printed(true), format!("{differs}{equal}{failed}"));
    }
}
