//! Each style, with the strings that require it.

use super::*;

fn written(text: &str) -> String {
    let mut page = YamlPage::default();
    page.value(text, 2);
    page.text
}

#[test]
fn what_reads_as_something_else_is_quoted() {
    for text in [
        "",
        "~",
        "null",
        "Null",
        "NULL",
        "y",
        "Y",
        "yes",
        "Yes",
        "YES",
        "no",
        "on",
        "OFF",
        "true",
        "False",
        "0",
        "1",
        "-1",
        "+1",
        "1_000",
        "0x1F",
        "-0x1",
        "0xFFFFFFFFFFFFFFFF",
        "+0x7FFFFFFFFFFFFFFF",
        "-0x8000000000000000",
        "0b1",
        "0o17",
        "017",
        "08",
        "1.5",
        "1.",
        "1e3",
        ".5",
        ".5_0",
        ".inf",
        "-.INF",
        ".nan",
        "18446744073709551615",
        "99999999999999999999",
        "1:30",
        "-10:20:30.5",
        "2001-01-01",
        "2001-1-1",
        "2000-2-29",
        "2004-02-29",
        "2001-04-30",
        "2001-12-31",
        "2001-01-01 23:59:59,5",
        "2001-01-01T10:00:00-24:60",
        "2001-01-01 10:00:00",
        "2001-01-01T10:00:00Z",
        "2001-01-01t1:2:3.5+01:00",
    ] {
        assert_eq!(written(text), format!("\"{text}\""));
    }
}

#[test]
fn what_reads_as_itself_is_plain() {
    for text in [
        "a",
        "nUll",
        "yEs",
        "yes ple",
        "nil",
        "<<",
        "=",
        "0.0.0.0:10256",
        "10.0.0.0/8",
        "::1",
        "fd00::1",
        "1Ki",
        "0x",
        "+",
        "1e400",
        "1e",
        "1e+",
        "1ee3",
        "1e3x",
        "0xFFFFFFFFFFFFFFFFF",
        "+0x8000000000000000",
        "-0x8000000000000001",
        "+inf",
        "-nan",
        "+Infinity",
        // too large for a number, and without minutes
        &*"9".repeat(400),
        "1:60",
        "10256:60",
        "a#b",
        "a:b",
        "a- b",
        "a-",
        "a? b",
        "-x",
        "?x",
        "ä€",
        "15m0s",
        "._5",
        "..5",
        "+a",
        "a 'b' \"c\"",
    ] {
        assert_eq!(written(text), text);
    }
}

#[test]
fn a_day_or_time_that_no_calendar_or_clock_has_is_plain() {
    for text in [
        "2001-02-29",
        "2001-13-01",
        "201-01-01",
        "20011-01-01",
        "2001-001-01",
        "2001-+1-01",
        "1900-02-29",
        "2001-04-31",
        "2001-06-31",
        "2001-09-31",
        "2001-11-31",
        "2001-12-32",
        "2001-01-01 24:00:00",
        "2001-01-01 10:60:00",
        "2001-01-01 10:00:60",
        "2001-01-01 10:00",
        "2001-01-01 10:00:00:00",
        "2001-01-01 10:00:00.",
        "2001-01-01 10:00:00.5x",
        "2001-01-01T10:00:00",
        "2001-01-01T10:00:00+25:00",
        "2001-01-01T10:00:00+01:61",
        "2001-01-01T10:00:00+1:000",
        "2001-01-01T25:00:00+01:00",
    ] {
        assert_eq!(written(text), text);
    }
}

#[test]
fn other_styles() {
    for (text, wanted) in [
        ("[::]:10256", "'[::]:10256'"),
        (" a", "' a'"),
        ("a ", "'a '"),
        ("a: b", "'a: b'"),
        ("a:", "'a:'"),
        ("a #b", "'a #b'"),
        ("# 'b'", "'# ''b'''"),
        ("- a", "'- a'"),
        ("---", "'---'"),
        ("::", "'::'"),
        ("-", "'-'"),
        ("1:30:", "'1:30:'"),
        ("10256:8", "\"10256:8\""),
        ("veth*", "veth*"),
        ("*", "'*'"),
        ("a\tb", "\"a\\tb\""),
        ("\u{7f}\u{1f600}\u{2028}\u{feff}\u{1}", "\"\\x7F\\U0001F600\\L\\uFEFF\\x01\""),
        ("\u{ffff}\u{10000}", "\"\\uFFFF\\U00010000\""),
        ("\u{feff}a", "\"\\uFEFF\\x61\""),
        ("\u{feff}\u{a0}  ", "\"\\uFEFF\\_\\x20\\x20\""),
        ("\u{a0}", "\u{a0}"),
        ("\t\"\\'", "\"\\t\\\"\\\\'\""),
        ("\0\u{7}\u{8}\t \n\u{b}\u{c}\r\u{1b}\u{85}\u{2028}\u{2029}", "\"\\0\\a\\b\\t \\n\\v\\f\\r\\e\\N\\L\\P\""),
        ("a\n", "|\n  a\n"),
        ("a\nb", "|-\n  a\n  b"),
        ("\n", "|2+\n\n"),
        (" a\n\nb\n\n", "|2+\n   a\n\n  b\n\n"),
        ("a \nb", "\"a \\nb\""),
    ] {
        assert_eq!(written(text), wanted, "{text:?}");
    }
}

#[test]
fn long_lines_are_folded() {
    let long = "x".repeat(81);
    assert_eq!(written(&format!("{long} y z")), format!("{long}\n  y z"));
    assert_eq!(written(&format!("{long}  y z")), format!("{long}  y\n  z"));
    assert_eq!(written(&format!("'{long} y  z")), format!("'''{long}\n  y  z'"));
    assert_eq!(written(&format!("\t{long}  y")), format!("\"\\t{long}\n  \\ y\""));
    let spaced = format!("\u{feff}{long} y z");
    assert!(!written(&spaced).contains('\n'), "what is escaped has no blank to fold at");
}

#[test]
fn a_blank_in_the_last_column_is_no_fold() {
    let to_the_edge = "x".repeat(77);
    for (text, wanted) in [
        (format!("xxx{to_the_edge} y"), format!("xxx{to_the_edge} y")),
        (format!("'{to_the_edge} y"), format!("'''{to_the_edge} y'")),
        (format!("\t{to_the_edge} y"), format!("\"\\t{to_the_edge} y\"")),
        // the second of two blanks is beyond it, but no fold either
        (format!("\t{to_the_edge}  y"), format!("\"\\t{to_the_edge}  y\"")),
    ] {
        assert_eq!(written(&text), wanted);
    }
}
