//! Text for operators: escapes untrusted text (of tools, plugins, tenants), and describes system errors as Go does.

use std::fmt::Write as _;
use std::io;

/// True if a terminal shows the character without any other effect: no control character of C0 or C1, no line or paragraph
/// separator, none of the format characters that reorder or hide their neighbours (Unicode UAX 9, UTS 39).
pub fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Appends a text, with non-printable characters escaped as by Go's `%q`: `\x1b`, `\u202e`.
pub fn push_escaped(out: &mut String, text: &str) {
    for character in text.chars() {
        let code = u32::from(character);
        // Writing to a String cannot fail.
        let _ = match character {
            _ if is_printable(character) => out.write_char(character),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            _ if code < 0x80 => write!(out, "\\x{code:02x}"),
            _ if code < 0x1_0000 => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
    }
}

/// A text with non-printable characters escaped, see [`push_escaped`].
pub fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    push_escaped(&mut escaped, text);
    escaped
}

/// The lines of a text, each escaped and ended by a line feed, see [`push_escaped`].
pub fn escaped_lines(text: &str) -> String {
    let mut escaped = String::new();
    for line in text.lines() {
        push_escaped(&mut escaped, line);
        escaped.push('\n');
    }
    escaped
}

/// Joins the lines of a text with `; `, escaped. Lines of white space are left out.
pub fn in_one_line(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        joined.push_str(if joined.is_empty() { "" } else { "; " });
        push_escaped(&mut joined, line);
    }
    joined
}

/// Describes a system error; the most frequent ones in the wording of Go.
pub fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::IsADirectory => "is a directory".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_format_characters_are_escaped() {
        for (text, wanted) in [
            ("plain äöü 漢字 \"quoted\" \\", "plain äöü 漢字 \"quoted\" \\"),
            ("\u{1b}[2J\u{7}\u{7f}\0", "\\x1b[2J\\x07\\x7f\\x00"),
            ("a\rb\nc\td", "a\\rb\\nc\\td"),
            // C1: CSI and NEL
            ("\u{9b}31m\u{85}", "\\u009b31m\\u0085"),
            ("\u{202e}evil\u{2066}\u{2028}\u{feff}", "\\u202eevil\\u2066\\u2028\\ufeff"),
            ("\u{e0041}", "\\U000e0041"),
        ] {
            let mut out = String::new();
            push_escaped(&mut out, text);
            assert_eq!(out, wanted);
            assert!(out.chars().all(is_printable));
        }
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(escaped_lines("one\r\n\n\u{1b}c"), "one\n\n\\x1bc\n");
        assert_eq!(escaped_lines(""), "");
    }

    #[test]
    fn lines_are_joined() {
        assert_eq!(in_one_line("\n one\r\n\n two \u{1b}c\n"), "one; two \\x1bc");
        assert_eq!(in_one_line(" \n"), "");
    }
}
