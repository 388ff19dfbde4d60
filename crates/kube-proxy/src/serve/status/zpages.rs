//! `/statusz` and `/flagz`: versions, uptime and flags of the process, as text for people or as objects for programs.

use std::fmt::Write as _;
use std::time::SystemTime;

use hyper::StatusCode;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::accept::{GROUP, ResponseForm, VERSIONS, negotiate};
use crate::metrics::process;
use crate::serve::http::HttpResponse;
use crate::version;

const COMPONENT: &str = "kube-proxy";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";
/// In place of a version of Go, which the executable doesn't contain.
const NO_GO: &str = "none";

/// Versions, uptime and paths.
pub(super) fn statusz(accept: &str, paths: &[&str]) -> HttpResponse {
    let (started, now) = (moment(process::start_time()), Timestamp::try_from(SystemTime::now()).unwrap_or_default());
    status(accept, paths, started, now)
}

fn status(accept: &str, paths: &[&str], started: Timestamp, now: Timestamp) -> HttpResponse {
    let up = now.duration_since(started).as_secs().max(0);
    let binary = version::full();
    let binary = binary.trim_start_matches('v');
    let (major, minor) = version::major_and_minor();
    let emulation = format!("{major}.{minor}");
    answer(accept, "Statusz", |form| match form {
        ResponseForm::Text => {
            let started = started.to_zoned(TimeZone::UTC).strftime("%a %b %e %H:%M:%S UTC %Y");
            let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
            PageBody::Text(format!(
                "\nStarted: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\nGo version: {NO_GO}\n\
                 Binary version: {binary}\nEmulation version: {emulation}\nPaths: {}\n",
                paths.join(" ")
            ))
        }
        ResponseForm::Object { .. } => PageBody::Object(json!({
            "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "uptimeSeconds": up,
            "goVersion": NO_GO,
            "binaryVersion": binary,
            "emulationVersion": emulation,
            "paths": paths,
        })),
    })
}

/// All flags, given or default.
pub(super) fn flagz(accept: &str, flags: &[(String, String)]) -> HttpResponse {
    answer(accept, "Flagz", |form| match form {
        ResponseForm::Text => {
            let mut text = String::new();
            for (name, value) in flags {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{name}={value}");
            }
            PageBody::Text(text)
        }
        ResponseForm::Object { .. } => {
            let flags = flags.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
            PageBody::Object(json!({ "flags": Value::Object(flags.collect()) }))
        }
    })
}

/// The part of a page that depends on its kind.
enum PageBody {
    /// what follows title and warning
    Text(String),
    /// the fields besides those of every object
    Object(Value),
}

fn answer(accept: &str, kind: &str, body: impl FnOnce(ResponseForm) -> PageBody) -> HttpResponse {
    let Some(form) = negotiate(accept, kind) else { return not_acceptable() };
    let (media_type, version) = match form {
        ResponseForm::Text => ("", ""),
        ResponseForm::Object { media_type, version } => (media_type, version),
    };
    match body(form) {
        PageBody::Text(text) => {
            let headers = vec![("content-type", "text/plain; charset=utf-8".to_owned())];
            let body = format!("\n{COMPONENT} {}\n{WARNING}\n{text}", kind.to_lowercase());
            HttpResponse { headers, body, ..HttpResponse::default() }
        }
        PageBody::Object(mut object) => {
            if let Value::Object(fields) = &mut object {
                fields.insert("kind".to_owned(), kind.into());
                fields.insert("apiVersion".to_owned(), format!("{GROUP}/{version}").into());
                fields.insert("metadata".to_owned(), json!({ "name": COMPONENT }));
            }
            let mut headers = vec![("content-type", format!("{media_type};g={GROUP};v={version};as={kind}"))];
            if version != VERSIONS[0] {
                let name = kind.to_lowercase();
                let text = format!("This version of the {name} endpoint is deprecated. Please use a newer version.");
                headers.push(("warning", format!("299 - \"{text}\"")));
            }
            HttpResponse { headers, body: format!("{object:#}"), ..HttpResponse::default() }
        }
    }
}

fn not_acceptable() -> HttpResponse {
    let body = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "only the following media types are accepted: application/json, application/yaml, text/plain",
        "reason": "NotAcceptable",
        "code": 406,
    });
    let headers = vec![("content-type", "application/json".to_owned())];
    HttpResponse { status: StatusCode::NOT_ACCEPTABLE, headers, body: format!("{body:#}"), ..HttpResponse::default() }
}

fn moment(seconds: f64) -> Timestamp {
    Timestamp::from_second(seconds as i64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &str = "application/json;v=v1beta1;g=config.k8s.io;as=";

    fn object(answer: &HttpResponse) -> Value {
        serde_json::from_str(&answer.body).unwrap()
    }

    fn example(accept: &str) -> HttpResponse {
        let (started, now) = (moment(1_795_517_507.61), moment(1_795_517_507.61 + 3725.0));
        status(accept, &["/configz", "/metrics"], started, now)
    }

    #[test]
    fn a_status_is_text() {
        let answer = example("*/*");
        let text = format!(
            "\nkube-proxy statusz\n{WARNING}\n\nStarted: Tue Nov 24 10:51:47 UTC 2026\nUp: 1 hr 02 min 05 sec\n\
             Go version: none\nBinary version: {}\nEmulation version: 1.36\nPaths: /configz /metrics\n",
            version::full().trim_start_matches('v')
        );
        assert_eq!((answer.status, answer.body), (StatusCode::OK, text));
    }

    #[test]
    fn a_status_is_an_object() {
        let answer = example(&format!("{OBJECT}Statusz"));
        let type_of = |answer: &HttpResponse| answer.headers[0].1.clone();
        assert_eq!(type_of(&answer), "application/json;g=config.k8s.io;v=v1beta1;as=Statusz");
        let fields = object(&answer);
        assert_eq!((&fields["kind"], &fields["apiVersion"]), (&"Statusz".into(), &"config.k8s.io/v1beta1".into()));
        assert_eq!(fields["metadata"]["name"], "kube-proxy");
        assert_eq!((&fields["startTime"], &fields["uptimeSeconds"]), (&"2026-11-24T10:51:47Z".into(), &3725.into()));
        assert_eq!(fields["paths"], json!(["/configz", "/metrics"]));
        assert_eq!(answer.headers.len(), 1);
        let old = example("application/json;v=v1alpha1;g=config.k8s.io;as=Statusz");
        assert_eq!(object(&old)["apiVersion"], "config.k8s.io/v1alpha1");
        assert!(old.headers[1].1.starts_with("299 - \"This version of the statusz endpoint is deprecated."));
    }

    #[test]
    fn flags_are_listed() {
        let flags = [("a".to_owned(), String::new()), ("b".to_owned(), "1".to_owned())];
        assert!(flagz("", &flags).body.ends_with("debugging purposes only.\na=\nb=1\n"));
        let answer = flagz(&format!("{OBJECT}Flagz"), &flags);
        assert_eq!(object(&answer)["flags"], json!({ "a": "", "b": "1" }));
    }

    #[test]
    fn other_types_are_refused() {
        let answer = flagz("application/json", &[]);
        assert_eq!(answer.status, StatusCode::NOT_ACCEPTABLE);
        assert_eq!(object(&answer)["reason"], "NotAcceptable");
    }
}
