//! Splits the output of `iptables-save`, or of `iptables -S` for one chain, into typed lines.

use std::borrow::Cow;
use std::io::BufRead;

/// A line of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputLine<'a> {
    /// `*filter`: the following lines belong to this table
    Table(&'a str),
    /// `:CHAIN - [0:0]`, `-N CHAIN`: the chain exists
    Chain {
        /// its name
        name: &'a str,
        /// it has a policy, which only built-in chains have
        builtin: bool,
    },
    /// `-A CHAIN …`
    Rule {
        /// the rule's chain
        chain: &'a str,
        /// the rest of the line: empty for a rule without matches and target
        text: &'a str,
    },
    /// `COMMIT`: the table's end
    Commit,
    /// a comment, or an empty line
    Other,
}

/// Output that is not in the format of these tools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text}")]
pub struct UnexpectedOutput {
    /// line number, from 1
    pub line: usize,
    /// the printable beginning of the line, or the defect of the output
    pub text: String,
}

/// Maximum number of bytes of a line that are kept.
const SHOWN: usize = 200;

// === impl UnexpectedOutput ===

impl UnexpectedOutput {
    fn new(line: usize, text: &str) -> Self {
        let cut = text.get(..text.floor_char_boundary(SHOWN)).unwrap_or_default();
        Self { line, text: cut.chars().map(|character| if character.is_control() { '?' } else { character }).collect() }
    }
}

/// Reads to the end, one line at a time. Invalid UTF-8 (in foreign comments) is replaced.
///
/// # Errors
/// [`UnexpectedOutput`] at the first line of none of these kinds, if a table is not ended by COMMIT, if the nft variant reports a
/// table as incompatible, and for an error of the reader, with its text. Lines passed on until then are valid, but incomplete.
pub fn read_lines(mut reader: impl BufRead, each: &mut dyn FnMut(OutputLine<'_>)) -> Result<(), UnexpectedOutput> {
    let mut bytes = Vec::new();
    let (mut number, mut open) = (0, false);
    loop {
        bytes.clear();
        number += 1;
        match reader.read_until(b'\n', &mut bytes) {
            Ok(0) if open => return Err(UnexpectedOutput::new(number, "end of output within a table")),
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(UnexpectedOutput::new(number, &error.to_string())),
        }
        let bytes = bytes.trim_ascii_end();
        // many times faster than a lossy conversion
        let text = std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
        let line = line(&text).ok_or_else(|| UnexpectedOutput::new(number, &text))?;
        match line {
            OutputLine::Table(_) if open => return Err(UnexpectedOutput::new(number, &text)),
            OutputLine::Commit if !open => return Err(UnexpectedOutput::new(number, &text)),
            OutputLine::Table(_) => open = true,
            OutputLine::Commit => open = false,
            OutputLine::Chain { .. } | OutputLine::Rule { .. } | OutputLine::Other => {}
        }
        each(line);
    }
}

fn line(text: &str) -> Option<OutputLine<'_>> {
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    match first {
        "" | "#" => {
            // the only indication that the tool cannot show all rules
            let hidden = rest.starts_with("Table ") && rest.contains(" is incompatible");
            (!hidden).then_some(OutputLine::Other)
        }
        "COMMIT" => Some(OutputLine::Commit),
        "-A" => rule(rest),
        "-N" => name(rest).map(|name| OutputLine::Chain { name, builtin: false }),
        "-P" => rest.split(' ').next().and_then(name).map(|name| OutputLine::Chain { name, builtin: true }),
        _ => match first.as_bytes().first()? {
            b'*' => first.get(1..).and_then(name).map(OutputLine::Table),
            b':' => {
                let policy = rest.split(' ').next().filter(|policy| !policy.is_empty())?;
                first.get(1..).and_then(name).map(|name| OutputLine::Chain { name, builtin: policy != "-" })
            }
            b'[' => rest.strip_prefix("-A ").and_then(rule), // with counters
            _ => None,
        },
    }
}

fn rule(text: &str) -> Option<OutputLine<'_>> {
    let (chain, text) = text.split_once(' ').unwrap_or((text, ""));
    name(chain).map(|chain| OutputLine::Rule { chain, text: text.trim_ascii_start() })
}

fn name(text: &str) -> Option<&str> {
    (!text.is_empty() && !text.contains(' ')).then_some(text)
}
