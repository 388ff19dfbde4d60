//! Colours of a terminal, in which lines about problems stand out.

use std::io::{self, IsTerminal as _};

/// Red and bold, and the end of both (ECMA-48).
const PROBLEM: (&str, &str) = ("\x1b[1;31m", "\x1b[0m");

/// A line about a problem, with its end: in colour for a terminal.
pub(super) fn problem_line(text: &str, colours: bool) -> String {
    let (begin, end) = if colours { PROBLEM } else { ("", "") };
    format!("{begin}{text}{end}\n")
}

/// True if a text for standard output should have colours: it is a terminal, and `NO_COLOR` isn't set.
pub fn wants_colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
