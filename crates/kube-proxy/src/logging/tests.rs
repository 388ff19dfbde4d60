//! Tests of the lines in both formats.

use std::sync::{Arc, LazyLock, Mutex};

use ferry_api::config::{LogOptions, VModule};
use serde_json::Value;
use tracing::Dispatch;
use tracing_subscriber::filter::dynamic_filter_fn;

use super::output::Format;
use super::*;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A subscriber that logs nothing and disables the caching of call sites. Without it, a call site that one test registers while another
/// test starts its log may stay cached as disabled, and that log would miss its messages.
static ATTENTIVE: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(Registry::default().with(dynamic_filter_fn(|_, _| false))));

pub(super) fn logged_as(verbosity: Verbosity, format: Format, log: impl FnOnce()) -> String {
    LazyLock::force(&ATTENTIVE);
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let (subscriber, _) = subscriber(verbosity, format, move || writer.clone());
    tracing::subscriber::with_default(subscriber, log);
    let bytes = buffer.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

/// The lines of a log in JSON.
fn json_lines(verbosity: u32, log: impl FnOnce()) -> Vec<Value> {
    let text = logged_as(Verbosity::new(verbosity, &[]), Format::Json, log);
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The severity and the message of a line, after a check of the header's format.
fn body(line: &str) -> (char, &str) {
    let (head, body) = line.split_once("] ").unwrap();
    let digits: String = head.chars().skip(1).map(|c| if c.is_ascii_digit() { '0' } else { c }).take(20).collect();
    assert_eq!(digits, "0000 00:00:00.000000", "{head}");
    assert_eq!(head.as_bytes()[21], b' ');
    let pid: &str = &head[22..29];
    assert_eq!(pid.trim_start(), std::process::id().to_string());
    assert!(head[30..].starts_with("tests.rs:"), "{head}");
    (head.chars().next().unwrap(), body)
}

#[test]
fn lines_look_like_klog() {
    let text = logged(0, || {
        tracing::info!(service = "a/b", n = 3, ok = true, "hello \"you\"");
        tracing::warn!(err = %"no\nway", "twice");
        tracing::error!("end");
    });
    let mut lines = text.splitn(2, '\n');
    assert_eq!(body(lines.next().unwrap()), ('I', "\"hello \\\"you\\\"\" service=\"a/b\" n=3 ok=true"));
    let rest = lines.next().unwrap();
    let (warning, error) = rest.split_once("\n >\n").unwrap();
    assert_eq!(body(warning), ('W', "\"twice\" err=<\n\tno\n\tway"));
    assert_eq!(body(error.trim_end()), ('E', "\"end\""));
}

#[test]
fn lines_of_json_look_like_those_of_component_base() {
    let lines = json_lines(6, || {
        tracing::info!(service = "a/b", n = 3, ok = true, ratio = 0.5, "hello \"you\"");
        tracing::warn!(err = %"no\nway", ratio = f64::NAN, "twice");
        tracing::error!(err = "why", "end");
        tracing::info!(target: V1, "one");
        tracing::debug!("two");
        tracing::trace!("four");
        tracing::trace!(target: V6, "six");
    });
    let [info, warning, error, levels @ ..] = &lines[..] else { panic!("{lines:?}") };
    let milliseconds = info["ts"].as_f64().unwrap();
    assert!((1.7e12..1e13).contains(&milliseconds), "{milliseconds}");
    assert!(info["caller"].as_str().unwrap().starts_with("logging/tests.rs:"), "{info}");
    let without = |line: &Value| {
        let mut line = line.as_object().unwrap().clone();
        line.retain(|name, _| !["ts", "caller"].contains(&name.as_str()));
        Value::from(line)
    };
    let wanted =
        serde_json::json!({"msg": "hello \"you\"", "v": 0, "service": "a/b", "n": 3, "ok": true, "ratio": 0.5});
    assert_eq!(without(info), wanted);
    assert_eq!(without(warning), serde_json::json!({"msg": "twice", "v": 0, "err": "no\nway", "ratio": "NaN"}));
    assert_eq!(without(error), serde_json::json!({"msg": "end", "err": "why"}));
    let levels: Vec<_> = levels.iter().map(|line| line["v"].as_u64().unwrap()).collect();
    assert_eq!(levels, [1, 2, 4, 6]);
}

#[test]
fn the_outermost_files_of_a_crate_are_named_with_it() {
    let head = LineHead { severity: Severity::Error, level: 0, folder: "cli", file: "run.go", line: 72 };
    let mut line = LogLine::new("command failed");
    line.push_text("err", "no");
    let text = json::format(head, &line);
    assert!(text.ends_with(",\"caller\":\"cli/run.go:72\",\"msg\":\"command failed\",\"err\":\"no\"}\n"), "{text}");
    let plain = LogLine::unstructured("FLAG: --v=\"1\"");
    let head = LineHead { severity: Severity::Info, level: 1, folder: "flag", file: "flags.go", line: 64 };
    assert!(text::format(head, &plain).ends_with(" flags.go:64] FLAG: --v=\"1\"\n"));
    assert!(json::format(head, &plain).ends_with(",\"msg\":\"FLAG: --v=\\\"1\\\"\",\"v\":1}\n"));
}

#[test]
fn verbosity_opens_levels() {
    let log = || {
        tracing::info!("i");
        tracing::info!(target: V1, "one");
        tracing::debug!("d");
        tracing::trace!("t");
        tracing::trace!(target: V6, "six");
    };
    let counts: Vec<usize> = [0, 1, 2, 3, 4, 5, 6, 9].map(|v| logged(v, log).lines().count()).into();
    assert_eq!(counts, [1, 2, 3, 3, 4, 4, 5, 5]);
}

#[test]
fn a_terse_log_begins_with_warnings() {
    let log = |verbosity| {
        logged_as(Verbosity::terse(verbosity, &[]), Format::Text, || {
            tracing::info!("i");
            tracing::warn!("w");
            tracing::error!("e");
        })
    };
    assert_eq!([0, 1].map(|verbosity| log(verbosity).lines().count()), [2, 3]);
}

#[test]
fn vmodule_raises_the_level_of_single_files() {
    let pattern = |file_pattern: &str| VModule { file_pattern: file_pattern.to_owned(), verbosity: 4 };
    let log = |patterns: &[VModule]| {
        logged_as(Verbosity::new(0, patterns), Format::Text, || {
            tracing::trace!("t");
            tracing::trace!(target: V6, "six");
        })
    };
    assert_eq!(log(&[pattern("other"), pattern("logging/*")]), "");
    for patterns in [[pattern("tests")], [pattern("te*")], [pattern("kube-proxy/logging/tests")]] {
        assert_eq!(log(&patterns).lines().count(), 1, "{patterns:?}");
    }
}

#[test]
fn split_streams_have_errors_on_stderr() {
    let split = LogOptions { split_stream: true, ..LogOptions::default() };
    let one = Logging { format: "text".to_owned(), ..ferry_api::config::KubeProxyConfiguration::default().logging };
    let text = Logging { text: split.clone(), ..one.clone() };
    let json = Logging { format: "json".to_owned(), json: split, ..one.clone() };
    let stdout = |logging: &Logging| {
        let output = Output::of(logging);
        [Severity::Info, Severity::Warning, Severity::Error].map(|severity| output.is_for_stdout(severity))
    };
    assert_eq!(stdout(&one), [false, false, false]);
    assert_eq!(stdout(&text), [true, false, false]);
    assert_eq!(stdout(&json), [true, true, false]);
    assert_eq!(stdout(&Logging { format: "text".to_owned(), ..json }), [false, false, false], "of the other format");
}

#[test]
fn control_characters_are_escaped() {
    let mut out = String::new();
    text::push_quoted(&mut out, "a\u{1b}[31m\\");
    assert_eq!(out, "\"a\\x1b[31m\\\\\"");
}

const FORGED: &str =
    "x\r\u{1b}[1A\u{9b}2KE1121 08:17:33.714186   25767 run.go:72] \"command failed\"\u{202e}\u{85}\u{2028}\u{e0041}";

/// Untrusted texts everywhere: in the message, in a value, in a multi-line value.
#[test]
fn nothing_in_a_value_can_forge_a_line() {
    let text = logged(0, || {
        tracing::info!(service = FORGED, shown = %FORGED, debug = ?FORGED, "{FORGED}");
        tracing::warn!(err = %format!("first\n{FORGED}\n >\n{FORGED}"), "twice");
    });
    assert!(
        text.chars().all(|character| matches!(character, '\n' | '\t') || ferry_kernel::text::is_printable(character))
    );
    let heads = text.split('\n').filter(|line| !line.starts_with('\t') && *line != " >" && !line.is_empty());
    assert_eq!(heads.count(), 2, "{text}");
    assert_eq!(text.matches("\\x1b[1A\\u009b2KE1121").count(), 5, "{text}");
    assert_eq!(text.matches("\\r").count(), 6, "{text}");
}

#[test]
fn nothing_in_a_value_can_forge_a_line_of_json() {
    let log = || tracing::info!(service = FORGED, several = "a\nb", "{FORGED}");
    let text = logged_as(Verbosity::new(0, &[]), Format::Json, log);
    let (line, rest) = text.split_once('\n').unwrap();
    assert!(rest.is_empty() && line.chars().all(ferry_kernel::text::is_printable), "{text}");
    let parsed: Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&parsed["service"], &parsed["msg"], &parsed["several"]),
        (&FORGED.into(), &FORGED.into(), &"a\nb".into())
    );
}
