//! Parses values of flags by Go's rules, with Go's error texts.

use std::collections::BTreeMap;

use ferry_api::config::{DurationError, GoDuration, PortRange, VModule, canonical_quantity};
use ferry_api::wire::address::{parse_ip, parse_socket_address};

use super::table::ValueKind;

/// Checks a value against its kind. The error is the text after `invalid argument "X" for "--flag" flag: `.
pub(super) fn check(kind: ValueKind, text: &str) -> Result<(), String> {
    match kind {
        ValueKind::Bool => boolean(text).map(drop),
        ValueKind::Int32 => int32(text).map(drop),
        ValueKind::Level => level(text).map(drop),
        ValueKind::Float32 => float32(text).map(drop),
        ValueKind::Duration => duration(text).map(drop),
        ValueKind::Text => Ok(()),
        ValueKind::Ports => PortRange::parse(text).map(drop),
        ValueKind::List => list(text).map(drop),
        ValueKind::Ip => ip(text),
        ValueKind::IpPort => ip_port(text),
        ValueKind::Gates => gates(text).map(drop),
        ValueKind::Quantity => quantity(text).map(drop),
        ValueKind::VModule => vmodule(text).map(drop),
        ValueKind::Version => version(text),
    }
}

/// A boolean in one of Go's twelve spellings.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

/// An integer, decimal or with one of Go's base prefixes; `_` between digits is allowed with a prefix.
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

/// A verbosity.
pub(super) fn level(text: &str) -> Result<u32, String> {
    level_of(text).map_err(|why| format!("strconv.ParseUint: parsing {text:?}: {why}"))
}

/// A decimal number of 31 bits, without a sign.
fn level_of(text: &str) -> Result<u32, &'static str> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("invalid syntax");
    }
    text.parse().ok().filter(|level| *level <= i32::MAX.unsigned_abs()).ok_or("value out of range")
}

/// A floating-point number. Infinity and NaN are out of range: they have no use as a rate, and no form in a configuration file.
pub(super) fn float32(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        Ok(_) => Err(format!("strconv.ParseFloat: parsing {text:?}: value out of range")),
        Err(_) => Err(format!("strconv.ParseFloat: parsing {text:?}: invalid syntax")),
    }
}

/// One line of CSV: commas separate, double quotes quote, a doubled quote within quotes is one.
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

/// A field, and the rest after its comma.
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
    let no_format = |why: &str| format!("{text:?} is not in a valid format (ip or ip:port): address {text}: {why}");
    let (host, port) = host_and_port(text).map_err(no_format)?;
    if parse_ip(host).is_none() {
        return Err(format!("{host:?} is not a valid IP address"));
    }
    parse_socket_address(text).map(drop).ok_or_else(|| format!("{port:?} is not a valid number"))
}

/// Splits an address as Go's library, with its error texts.
fn host_and_port(text: &str) -> Result<(&str, &str), &'static str> {
    const NO_PORT: &str = "missing port in address";
    const COLONS: &str = "too many colons in address";
    let (before, port) = text.rsplit_once(':').ok_or(NO_PORT)?;
    let (host, after_open, after_close) = match text.strip_prefix('[') {
        Some(inner) => {
            let (host, rest) = inner.split_once(']').ok_or("missing ']' in address")?;
            let after_colon = rest.strip_prefix(':').ok_or(NO_PORT)?;
            if after_colon.len() != port.len() {
                return Err(COLONS);
            }
            (host, inner, rest)
        }
        None if before.contains(':') => return Err(COLONS),
        None => (before, text, text),
    };
    if after_open.contains('[') {
        return Err("unexpected '[' in address");
    }
    if after_close.contains(']') {
        return Err("unexpected ']' in address");
    }
    Ok((host, port))
}

/// A duration, with Go's syntax and error texts.
pub(super) fn duration(text: &str) -> Result<GoDuration, String> {
    text.parse().map_err(|error: DurationError| error.to_string())
}

/// Names and values of feature gates; the last one of repeated names.
pub(super) fn gates(text: &str) -> Result<BTreeMap<String, bool>, String> {
    let mut gates = BTreeMap::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or("malformed pair, expect string=bool")?;
        let (name, value) = (name.trim(), value.trim());
        let value = boolean(value).map_err(|error| format!("invalid value of {name}: {value}, err: {error}"))?;
        gates.insert(name.to_owned(), value);
    }
    Ok(gates)
}

/// `pattern=N,…`
pub(super) fn vmodule(text: &str) -> Result<Vec<VModule>, String> {
    text.split(',').filter(|pair| !pair.is_empty()).map(pattern).collect()
}

fn pattern(pair: &str) -> Result<VModule, String> {
    let no_format = || format!("{pair:?} does not have the pattern=N format");
    let (pattern, level) = pair.split_once('=').ok_or_else(no_format)?;
    if pattern.is_empty() || level.is_empty() || level.contains('=') {
        return Err(no_format());
    }
    let failed = |why: &str| format!("parsing verbosity in {pair:?}: strconv.ParseUint: parsing {level:?}: {why}");
    let verbosity = level_of(level).map_err(failed)?;
    Ok(VModule { file_pattern: pattern.to_owned(), verbosity })
}

pub(super) fn quantity(text: &str) -> Result<String, String> {
    let form = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    canonical_quantity(text).ok_or_else(|| form.to_owned())
}

fn version(text: &str) -> Result<(), String> {
    if text == "raw" || text.starts_with('v') { Ok(()) } else { boolean(text).map(drop) }
}
