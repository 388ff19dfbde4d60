//! The debug endpoints of `enableProfiling`: the verbosity of the running log, the CPU profile, and the index of profiles.
//!
//! Profiles of Go's runtime are answered with 501.

use ferry_client::kubeconfig::without_credentials;
use hyper::{Method, StatusCode};

use crate::logging;
use crate::serve::http::{Deferred, HttpRequest, HttpResponse};

use super::profile;

/// The path that sets the log's verbosity.
pub(super) const VERBOSITY: &str = "/debug/flags/v";
const FLAGS: &str = "/debug/flags";
const PROFILES: &str = "/debug/pprof";

/// Profiles of upstream that don't exist here.
const MISSING: &[&str] = &["allocs", "block", "goroutine", "heap", "mutex", "symbol", "threadcreate", "trace"];

/// The CPU profile that the request asks for, or `None`.
pub(super) fn deferred(received: &HttpRequest) -> Option<Deferred> {
    let name = received.path.strip_prefix(PROFILES)?.strip_prefix('/')?;
    (name == "profile").then(|| profile::of_processor(received))
}

/// True if this module answers the path.
pub(super) fn serves(path: &str) -> bool {
    [FLAGS, PROFILES]
        .iter()
        .any(|root| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// The answer to a request for such a path.
pub(super) fn answer(received: &HttpRequest) -> HttpResponse {
    match received.path.as_str() {
        VERBOSITY => set_verbosity(received),
        PROFILES => to_index(),
        path => match path.strip_prefix(PROFILES).and_then(|rest| rest.strip_prefix('/')) {
            Some(profile) => profile_of(profile),
            None => html(flags_page()),
        },
    }
}

/// Upstream's method, texts and codes.
fn set_verbosity(received: &HttpRequest) -> HttpResponse {
    let answer = |status, body: String| HttpResponse::of("text/plain", body).with_status(status);
    if received.method != Method::PUT {
        return answer(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n".to_owned());
    }
    let Some(body) = &received.body else {
        return answer(
            StatusCode::BAD_REQUEST,
            "error reading request body: too long, too slow or no text\n".to_owned(),
        );
    };
    match verbosity(body).map(|level| (level, logging::set_verbosity(level))) {
        Ok((level, Ok(()))) => {
            tracing::info!(verbosity = level, "Changed the verbosity of the log");
            answer(StatusCode::OK, format!("successfully set klog.logging.verbosity to {level}\n"))
        }
        Ok((_, Err(error))) => answer(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        Err(error) => answer(StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}

/// A level of klog, with the errors of Go's library.
fn verbosity(text: &str) -> Result<u32, String> {
    let failed = |why: &str| format!("strconv.ParseUint: parsing {text:?}: {why}");
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(failed("invalid syntax"));
    }
    let level = text.parse::<i32>().ok().and_then(|level| u32::try_from(level).ok());
    level.ok_or_else(|| failed("value out of range"))
}

fn profile_of(name: &str) -> HttpResponse {
    match name {
        "" => html(index()),
        "cmdline" => HttpResponse::text(command_line()),
        _ if MISSING.contains(&name) => HttpResponse::text(format!(
            "profile {name:?} is not implemented: this kube-proxy has no Go runtime; there is a CPU profile at \
             {PROFILES}/profile\n"
        ))
        .with_status(StatusCode::NOT_IMPLEMENTED),
        _ => HttpResponse::text("Unknown profile\n").with_status(StatusCode::NOT_FOUND),
    }
}

/// The arguments, separated by NUL, without the credentials of URLs.
fn command_line() -> String {
    let arguments = std::env::args_os().map(|argument| {
        let argument = argument.to_string_lossy();
        match argument.split_once('=') {
            Some((name, value)) => format!("{name}={}", without_credentials(value)),
            None => without_credentials(&argument).into_owned(),
        }
    });
    arguments.collect::<Vec<_>>().join("\0")
}

fn to_index() -> HttpResponse {
    let mut answer = html(format!("<a href=\"{PROFILES}/\">Found</a>.\n\n")).with_status(StatusCode::FOUND);
    answer.headers.push(("location", format!("{PROFILES}/")));
    answer
}

fn index() -> String {
    let missing = MISSING.join(", ");
    format!(
        "<html>\n<head>\n<title>{PROFILES}/</title>\n</head>\n<body>\n{PROFILES}/\n<br>\n\
         Types of profiles available:\n<ul>\n<li><a href='cmdline'>cmdline</a></li>\n\
         <li><a href='profile?seconds=30'>profile</a>: where processor time goes, in 30 seconds</li>\n</ul>\n\
         Not available, since this kube-proxy has no Go runtime: {missing}\n</body>\n</html>\n"
    )
}

fn flags_page() -> String {
    format!(
        "<html>\n<head>\n<title>{FLAGS}/</title>\n</head>\n<body>\n{FLAGS}/<br>\n<br>\nflags:<br>\n<table>\n\
         <tr>v<br>\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n"
    )
}

fn html(body: String) -> HttpResponse {
    HttpResponse::of("text/html; charset=utf-8", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(path: &str) -> HttpResponse {
        answer(&HttpRequest::get(path))
    }

    #[test]
    fn paths_are_told_from_others() {
        for (path, wanted) in [
            ("/debug/flags", true),
            ("/debug/flags/v", true),
            ("/debug/pprof/", true),
            ("/debug", false),
            ("/debug/", false),
            ("/debug/pprofile", false),
        ] {
            assert_eq!(serves(path), wanted, "{path}");
        }
    }

    #[test]
    fn verbosities_are_parsed_as_upstream_does() {
        assert_eq!(verbosity("4"), Ok(4));
        for (text, why) in [("abc", "invalid syntax"), ("-1", "invalid syntax"), ("", "invalid syntax")] {
            assert_eq!(verbosity(text), Err(format!("strconv.ParseUint: parsing {text:?}: {why}")));
        }
        assert!(verbosity("99999999999").unwrap_err().ends_with("value out of range"));
        assert_eq!(ask(VERBOSITY).status, StatusCode::NOT_ACCEPTABLE);
        let put = HttpRequest { method: Method::PUT, body: Some("x".to_owned()), ..HttpRequest::get(VERBOSITY) };
        assert_eq!(answer(&put).status, StatusCode::BAD_REQUEST);
        assert_eq!(answer(&HttpRequest { body: None, ..put }).status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn profiles_that_are_missing_say_so() {
        for (path, status) in [
            ("/debug/pprof", StatusCode::FOUND),
            ("/debug/pprof/", StatusCode::OK),
            ("/debug/pprof/cmdline", StatusCode::OK),
            ("/debug/pprof/heap", StatusCode::NOT_IMPLEMENTED),
            ("/debug/pprof/other", StatusCode::NOT_FOUND),
            ("/debug/flags/", StatusCode::OK),
        ] {
            assert_eq!(ask(path).status, status, "{path}");
        }
        assert!(ask("/debug/pprof/heap").body.contains("no Go runtime"));
        for (path, wanted) in
            [("/debug/pprof/profile", true), ("/debug/pprof/heap", false), ("/debug/flags/profile", false)]
        {
            assert_eq!(deferred(&HttpRequest::get(path)).is_some(), wanted, "{path}");
        }
        assert!(!ask("/debug/pprof/cmdline").body.is_empty());
    }
}
