//! Values of flags, by Go's rules and with Go's error texts.

use ferry_api::config::{DurationError, GoDuration};
use ferry_api::wire::address::{parse_ip, parse_socket_address};

use super::table::ValueKind;

/// Checks a value against its kind. The error is what stands behind `invalid argument "X" for "--flag" flag: `.
pub(super) fn check(kind: ValueKind, text: &str) -> Result<(), String> {
    match kind {
        ValueKind::Bool => boolean(text).map(drop),
        ValueKind::Int32 => int32(text).map(drop),
        ValueKind::Float32 => float32(text),
        ValueKind::Duration => duration(text).map(drop),
        ValueKind::Text => Ok(()),
        ValueKind::List => list(text).map(drop),
        ValueKind::Ip => ip(text),
        ValueKind::IpPort => ip_port(text),
        ValueKind::Gates => gates(text),
        ValueKind::Version => version(text),
    }
}

/// Go's twelve spellings.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

/// Decimal, or with one of Go's base prefixes; `_` between digits is allowed with a prefix.
pub(super) fn int32(text: &str) -> Result<i32, String> {
    let invalid = || format!("strconv.ParseInt: parsing {text:?}: invalid syntax");
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or_default()),
        Some(b'+') => (false, text.get(1..).unwrap_or_default()),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = if let Some(body) = lower.strip_prefix("0x") {
        (16, body)
    } else if let Some(body) = lower.strip_prefix("0b") {
        (2, body)
    } else if let Some(body) = lower.strip_prefix("0o") {
        (8, body)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, lower.get(1..).unwrap_or_default())
    } else {
        (10, lower.as_str())
    };
    let body = if radix == 10 { body.to_owned() } else { body.replace('_', "") };
    if body.is_empty() || !body.chars().all(|digit| digit.is_digit(radix)) {
        return Err(invalid());
    }
    i64::from_str_radix(&body, radix)
        .ok()
        .map(|value| if negative { -value } else { value })
        .and_then(|value| i32::try_from(value).ok())
        .ok_or_else(|| format!("strconv.ParseInt: parsing {text:?}: value out of range"))
}

fn float32(text: &str) -> Result<(), String> {
    match text.parse::<f32>() {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("strconv.ParseFloat: parsing {text:?}: invalid syntax")),
    }
}

/// One line of CSV: commas separate, double quotes protect, a doubled quote within quotes is one.
pub(super) fn list(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let (field, tail) =
            if let Some(quoted) = rest.strip_prefix('"') { quoted_field(quoted)? } else { bare_field(rest)? };
        fields.push(field);
        match tail {
            Some(tail) => rest = tail,
            None => return Ok(fields),
        }
    }
}

/// A field and what follows its comma.
type Split<'a> = (String, Option<&'a str>);

fn bare_field(rest: &str) -> Result<Split<'_>, String> {
    let (field, tail) = rest.split_once(',').map_or((rest, None), |(field, tail)| (field, Some(tail)));
    match field.find('"') {
        Some(at) => Err(format!("parse error on line 1, column {}: bare \" in non-quoted-field", at + 1)),
        None => Ok((field.to_owned(), tail)),
    }
}

fn quoted_field(mut rest: &str) -> Result<Split<'_>, String> {
    let mut field = String::new();
    while let Some((head, tail)) = rest.split_once('"') {
        field.push_str(head);
        if let Some(more) = tail.strip_prefix('"') {
            field.push('"');
            rest = more;
        } else if tail.is_empty() {
            return Ok((field, None));
        } else if let Some(next) = tail.strip_prefix(',') {
            return Ok((field, Some(next)));
        } else {
            break;
        }
    }
    Err("parse error on line 1: extraneous or missing \" in quoted-field".to_owned())
}

fn ip(text: &str) -> Result<(), String> {
    if text.is_empty() || parse_ip(text).is_some() {
        Ok(())
    } else {
        Err(format!("{text:?} is not a valid IP address"))
    }
}

fn ip_port(text: &str) -> Result<(), String> {
    if text.is_empty() || parse_ip(text).is_some() {
        return Ok(());
    }
    match parse_socket_address(text) {
        Some(_) => Ok(()),
        None => Err(format!("{text:?} is not in a valid format (ip or ip:port)")),
    }
}

/// Go's syntax and error texts.
pub(super) fn duration(text: &str) -> Result<GoDuration, String> {
    text.parse().map_err(|error: DurationError| error.to_string())
}

fn gates(text: &str) -> Result<(), String> {
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or("malformed pair, expect string=bool")?;
        let (name, value) = (name.trim(), value.trim());
        boolean(value).map_err(|error| format!("invalid value of {name}: {value}, err: {error}"))?;
    }
    Ok(())
}

fn version(text: &str) -> Result<(), String> {
    if text == "raw" || text.starts_with('v') { Ok(()) } else { boolean(text).map(drop) }
}
