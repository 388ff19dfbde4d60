//! Writes strings as YAML scalars in the style of Go's YAML library: plain if a parser reads back the same string, otherwise
//! quoted or as a block; folded at 80 columns.

#[cfg(test)]
mod tests;

/// Beyond this column a blank becomes a line break.
const WIDTH: usize = 80;
/// Indentation of one level.
pub(super) const INDENT: usize = 2;

/// A page that is written from top to bottom.
#[derive(Debug, Default)]
pub(super) struct YamlPage {
    text: String,
    /// characters on the last line
    column: usize,
}

/// YAML style of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Plain,
    SingleQuoted,
    DoubleQuoted,
    Literal,
}

/// Properties of a text that its style depends on.
#[derive(Debug, Default)]
struct Traits {
    /// begins, or goes on, with what means something else in YAML
    indicators: bool,
    /// begins or ends with a blank or a line break
    edges: bool,
    /// ends with a blank
    trailing_blank: bool,
    /// holds a line break behind a blank, or characters that need an escape
    special: bool,
}

// === impl YamlPage ===

impl YamlPage {
    /// Returns the written text.
    pub(super) fn finish(mut self) -> String {
        if self.column > 0 {
            self.break_line();
        }
        self.text
    }

    /// Begins a line, unless one has begun already.
    pub(super) fn line(&mut self, indent: usize) {
        if self.column > 0 {
            self.break_line();
        }
        self.pad(indent);
    }

    /// Writes as it is.
    pub(super) fn raw(&mut self, text: &str) {
        text.chars().for_each(|c| self.put(c));
    }

    /// Writes a key of a map; it stays on its line.
    pub(super) fn key(&mut self, text: &str) {
        match style(text) {
            // A plain `<<` would take its value for entries of the map around it.
            Style::Plain if text != "<<" => self.raw(text),
            Style::Plain | Style::SingleQuoted => self.single_quoted(text, None),
            Style::DoubleQuoted | Style::Literal => self.double_quoted(text, None),
        }
    }

    /// Writes a value behind a blank; further lines of it are indented by `indent`.
    pub(super) fn value(&mut self, text: &str, indent: usize) {
        match style(text) {
            Style::Plain => self.plain(text, indent),
            Style::SingleQuoted => self.single_quoted(text, Some(indent)),
            Style::DoubleQuoted => self.double_quoted(text, Some(indent)),
            Style::Literal => self.literal(text, indent),
        }
    }

    fn put(&mut self, c: char) {
        self.text.push(c);
        self.column += 1;
    }

    fn break_line(&mut self) {
        self.text.push('\n');
        self.column = 0;
    }

    fn pad(&mut self, indent: usize) {
        while self.column < indent {
            self.put(' ');
        }
    }

    fn fold(&mut self, indent: usize) {
        self.break_line();
        self.pad(indent);
    }

    fn plain(&mut self, text: &str, indent: usize) {
        let mut after_blank = false;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c == ' ' && !after_blank && self.column > WIDTH && chars.peek() != Some(&' ') {
                self.fold(indent);
            } else {
                self.put(c);
            }
            after_blank = c == ' ';
        }
    }

    fn single_quoted(&mut self, text: &str, indent: Option<usize>) {
        self.put('\'');
        let mut after_blank = true;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let next = chars.peek();
            let may_fold = c == ' ' && !after_blank && next.is_some_and(|next| *next != ' ');
            match indent {
                Some(indent) if may_fold && self.column > WIDTH => self.fold(indent),
                _ => self.put(c),
            }
            if c == '\'' {
                self.put('\'');
            }
            after_blank = c == ' ';
        }
        self.put('\'');
    }

    fn double_quoted(&mut self, text: &str, indent: Option<usize>) {
        self.put('"');
        // A quirk: a byte order mark in front makes the emitter escape everything.
        let escapes_all = text.starts_with('\u{feff}');
        let mut after_blank = true;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let next = chars.peek().copied();
            match indent {
                _ if escapes_all || needs_escape(c) => self.escaped(c),
                Some(indent) if c == ' ' && !after_blank && next.is_some() && self.column > WIDTH => {
                    self.fold(indent);
                    if next == Some(' ') {
                        self.put('\\');
                    }
                }
                _ => self.put(c),
            }
            after_blank = c == ' ';
        }
        self.put('"');
    }

    fn escaped(&mut self, c: char) {
        let code = u32::from(c);
        let short = match code {
            0x00 => '0',
            0x07 => 'a',
            0x08 => 'b',
            0x09 => 't',
            0x0a => 'n',
            0x0b => 'v',
            0x0c => 'f',
            0x0d => 'r',
            0x1b => 'e',
            0x22 => '"',
            0x5c => '\\',
            0x85 => 'N',
            0xa0 => '_',
            0x2028 => 'L',
            0x2029 => 'P',
            0x100.. if code > 0xffff => return self.raw(&format!("\\U{code:08X}")),
            0x100.. => return self.raw(&format!("\\u{code:04X}")),
            _ => return self.raw(&format!("\\x{code:02X}")),
        };
        self.put('\\');
        self.put(short);
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.put('|');
        if text.starts_with([' ', '\n']) {
            self.raw(&INDENT.to_string());
        }
        if !text.ends_with('\n') {
            self.put('-');
        } else if text == "\n" || text.ends_with("\n\n") {
            self.put('+');
        }
        self.break_line();
        for line in text.split_inclusive('\n') {
            let content = line.strip_suffix('\n');
            if content != Some("") {
                self.pad(indent);
            }
            self.raw(content.unwrap_or(line));
            if content.is_some() {
                self.break_line();
            }
        }
    }
}

// === impl Traits ===

impl Traits {
    fn of(text: &str) -> Self {
        let mut traits = Self {
            indicators: text.starts_with("---") || text.starts_with("..."),
            edges: text.starts_with([' ', '\n']) || text.ends_with([' ', '\n']),
            trailing_blank: text.ends_with(' '),
            special: false,
        };
        let mut previous = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let before_blank = chars.peek().is_none_or(|next| matches!(next, ' ' | '\t'));
            traits.indicators |= match c {
                ':' => before_blank,
                '#' => previous.is_none_or(|previous| previous == ' '),
                '?' | '-' if previous.is_none() => before_blank,
                ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => {
                    previous.is_none()
                }
                _ => false,
            };
            traits.special |= !is_printable(c) || (c == '\n' && previous == Some(' '));
            previous = Some(c);
        }
        traits
    }
}

fn style(text: &str) -> Style {
    let traits = Traits::of(text);
    if text.contains('\n') {
        let fits = !traits.trailing_blank && !traits.special;
        return if fits { Style::Literal } else { Style::DoubleQuoted };
    }
    if traits.special || !reads_as_text(text) {
        return Style::DoubleQuoted;
    }
    if traits.indicators || traits.edges { Style::SingleQuoted } else { Style::Plain }
}

/// True if the character needs no escape. YAML 1.1 allows the separators of lines and paragraphs, as line breaks; they are
/// escaped all the same, since YAML 1.2 takes them for letters.
fn is_printable(c: char) -> bool {
    match c {
        '\n' | ' '..='~' => true,
        '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => false,
        '\u{a0}'..='\u{ffff}' => true,
        _ => false,
    }
}

fn needs_escape(c: char) -> bool {
    !is_printable(c) || matches!(c, '\n' | '"' | '\\')
}

/// True if the plain text reads as a string, and as no other type of YAML 1.1 in Go's library.
fn reads_as_text(text: &str) -> bool {
    match text.as_bytes().first() {
        None => false,
        Some(b'.') => !is_special_float(text) && !is_point_float(text),
        Some(b'0'..=b'9' | b'+' | b'-') => {
            !is_special_float(text) && !is_number(text) && !is_timestamp(text) && !is_base60(text)
        }
        Some(_) => !is_word(text),
    }
}

/// Booleans and null.
fn is_word(text: &str) -> bool {
    const WORDS: [&str; 8] = ["y", "n", "yes", "no", "on", "off", "true", "false"];
    if text == "~" {
        return true;
    }
    let lower = text.to_ascii_lowercase();
    // Spelt in lower case, in upper case, or with a capital.
    let rest = text.get(1..).unwrap_or_default();
    let is_spelt = text == lower || text == text.to_ascii_uppercase() || rest == rest.to_ascii_lowercase();
    is_spelt && (WORDS.contains(&lower.as_str()) || lower == "null")
}

fn is_special_float(text: &str) -> bool {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    matches!(bare, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN")
}

/// A text that begins with a point, as Go's own syntax of numbers has it.
fn is_point_float(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let underscores = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'_');
    let are_between_digits =
        underscores.map(|(at, _)| at).all(|at| is_digit(at.checked_sub(1)) && is_digit(at.checked_add(1)));
    are_between_digits && is_decimal(&text.replace('_', ""))
}

/// An integer in any of Go's bases that 64 bits hold, or a decimal number.
fn is_number(text: &str) -> bool {
    let bare = text.replace('_', "");
    is_integer(&bare) || is_decimal(&bare)
}

fn is_integer(text: &str) -> bool {
    let (signed, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = |prefix| lower.strip_prefix(prefix).filter(|rest: &&str| !rest.is_empty());
    let (radix, digits) = if let Some(rest) = prefixed("0x") {
        (16, rest)
    } else if let Some(rest) = prefixed("0b") {
        (2, rest)
    } else if let Some(rest) = prefixed("0o") {
        (8, rest)
    } else if let Some(rest) = prefixed("0") {
        (8, rest)
    } else {
        (10, lower.as_str())
    };
    let is_clean = digits.chars().all(|digit| digit.is_digit(radix));
    let Some(number) = u64::from_str_radix(digits, radix).ok().filter(|_| is_clean) else { return false };
    let smallest = text.starts_with('-') && number == 1 << 63;
    !signed || smallest || number < 1 << 63
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`, and finite.
fn is_decimal(text: &str) -> bool {
    // The parser also accepts words such as `inf`: none of them is finite.
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// `[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?`: what YAML 1.1 takes for a number of minutes and seconds.
fn is_base60(text: &str) -> bool {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (bare, part) = bare.split_once('.').unwrap_or((bare, ""));
    let is_loose = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let mut groups = bare.split(':');
    let first = groups.next().unwrap_or_default();
    let mut minutes = 0;
    let are_minutes = groups.all(|group| {
        minutes += 1;
        match group.as_bytes() {
            [digit] => digit.is_ascii_digit(),
            [b'0'..=b'5', digit] => digit.is_ascii_digit(),
            _ => false,
        }
    });
    are_minutes && minutes > 0 && first.starts_with(|c: char| c.is_ascii_digit()) && is_loose(first) && is_loose(part)
}

/// A day (`2006-1-2`), or with a blank and a time, or with `T`, a time and a zone.
fn is_timestamp(text: &str) -> bool {
    let Some((date, time)) = text.split_once([' ', 'T', 't']) else { return is_date(text) };
    let is_local = text.get(date.len()..).is_some_and(|rest| rest.starts_with(' '));
    is_date(date) && if is_local { is_time(time) } else { is_zoned(time) }
}

fn is_date(text: &str) -> bool {
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let (Some(month), Some(day), None) = (month.and_then(small), day.and_then(small), parts.next()) else {
        return false;
    };
    let is_year = year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit());
    let year = Some(year).filter(|_| is_year).and_then(|year| year.parse::<u32>().ok());
    let is_leap = |year: u32| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 => 28 + u32::from(year.is_some_and(is_leap)),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    year.is_some() && (1..=days).contains(&day)
}

fn is_zoned(text: &str) -> bool {
    if let Some(time) = text.strip_suffix('Z') {
        return is_time(time);
    }
    let Some((time, zone)) = text.len().checked_sub(6).and_then(|at| text.split_at_checked(at)) else { return false };
    let hours_minutes = zone.strip_prefix(['+', '-']).and_then(|zone| zone.split_once(':'));
    let is_zone = hours_minutes.is_some_and(|(hours, minutes)| {
        // Besides the sign and the colon there are four characters: each number has two, since no more are a small one.
        small(hours).is_some_and(|hours| hours <= 24) && small(minutes).is_some_and(|minutes| minutes <= 60)
    });
    is_zone && is_time(time)
}

fn is_time(text: &str) -> bool {
    let (clock, part) = text.split_once(['.', ',']).map_or((text, None), |(clock, part)| (clock, Some(part)));
    let mut parts = clock.split(':');
    let mut below = |limit| parts.next().and_then(small).is_some_and(|number| number < limit);
    let is_clock = below(24) && below(60) && below(60);
    is_clock
        && parts.next().is_none()
        && part.is_none_or(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A number of one or two digits.
fn small(text: &str) -> Option<u32> {
    let fits = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| fits)
}
