//! What `iptables-save` prints, line by line, and what `iptables -S` prints of one chain.

use std::borrow::Cow;
use std::io::BufRead;

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// `*filter`: what follows is of this table
    Table(&'a str),
    /// `:CHAIN - [0:0]`, `-N CHAIN`: there is this chain
    Chain {
        /// its name
        name: &'a str,
        /// it has a policy, as only the table's own chains have one
        builtin: bool,
    },
    /// `-A CHAIN …`
    Rule {
        /// the chain it stands in
        chain: &'a str,
        /// what follows: nothing for a rule that says nothing
        text: &'a str,
    },
    /// `COMMIT`: the table's end
    Commit,
    /// a comment, or nothing
    Other,
}

/// What was read is not what these tools print.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text}")]
pub struct Garbage {
    /// which one, from 1
    pub line: usize,
    /// the line, as far as it can be shown, or why there is none
    pub text: String,
}

/// Bytes of a line that are shown.
const SHOWN: usize = 200;

// === impl Garbage ===

impl Garbage {
    fn new(line: usize, text: &str) -> Self {
        let cut = text.get(..text.floor_char_boundary(SHOWN)).unwrap_or_default();
        Self { line, text: cut.chars().map(|character| if character.is_control() { '?' } else { character }).collect() }
    }
}

/// Reads to the end, one line at a time. What is no UTF-8 (in somebody's comment) is replaced.
///
/// # Errors
/// [`Garbage`] at the first line that is none of these, when a table is not ended, when the nft variant says that a table
/// is not for it, and when there is an error of the reader, with its text. What was shown until then is right, but not all.
pub fn read_lines(mut reader: impl BufRead, each: &mut dyn FnMut(Line<'_>)) -> Result<(), Garbage> {
    let mut bytes = Vec::new();
    let (mut number, mut open) = (0, false);
    loop {
        bytes.clear();
        number += 1;
        match reader.read_until(b'\n', &mut bytes) {
            Ok(0) if open => return Err(Garbage::new(number, "the end, within a table")),
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(Garbage::new(number, &error.to_string())),
        }
        let bytes = bytes.trim_ascii_end();
        // this is many times faster than to look for what has to be replaced
        let text = std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
        let line = line(&text).ok_or_else(|| Garbage::new(number, &text))?;
        match line {
            Line::Table(_) if open => return Err(Garbage::new(number, &text)),
            Line::Commit if !open => return Err(Garbage::new(number, &text)),
            Line::Table(_) => open = true,
            Line::Commit => open = false,
            Line::Chain { .. } | Line::Rule { .. } | Line::Other => {}
        }
        each(line);
    }
}

fn line(text: &str) -> Option<Line<'_>> {
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    match first {
        "" | "#" => {
            // nothing else says that rules are hidden from the tool
            let hidden = rest.starts_with("Table ") && rest.contains(" is incompatible");
            (!hidden).then_some(Line::Other)
        }
        "COMMIT" => Some(Line::Commit),
        "-A" => rule(rest),
        "-N" => name(rest).map(|name| Line::Chain { name, builtin: false }),
        "-P" => rest.split(' ').next().and_then(name).map(|name| Line::Chain { name, builtin: true }),
        _ => match first.as_bytes().first()? {
            b'*' => first.get(1..).and_then(name).map(Line::Table),
            b':' => {
                let policy = rest.split(' ').next().filter(|policy| !policy.is_empty())?;
                first.get(1..).and_then(name).map(|name| Line::Chain { name, builtin: policy != "-" })
            }
            b'[' => rest.strip_prefix("-A ").and_then(rule), // with counters
            _ => None,
        },
    }
}

fn rule(text: &str) -> Option<Line<'_>> {
    let (chain, text) = text.split_once(' ').unwrap_or((text, ""));
    name(chain).map(|chain| Line::Rule { chain, text: text.trim_ascii_start() })
}

fn name(text: &str) -> Option<&str> {
    (!text.is_empty() && !text.contains(' ')).then_some(text)
}
