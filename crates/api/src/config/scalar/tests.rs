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
        "1:60",
        "2001-13-01",
        "2001-02-29",
        "2001-01-01T10:00:00",
        "10256:60",
        "a#b",
        "a:b",
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
}
