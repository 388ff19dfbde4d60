//! What every request says about itself.

use std::path::Path;
use std::time::Duration;

use ferry_api::wire::stream::Encoding;
use hyper::header::{HeaderMap, RETRY_AFTER};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// `kube-proxy/v1.36.2 (linux/amd64) kubernetes/unknown`, as upstream's from a build that doesn't know its commit. `program`
/// is what the process was called as.
pub fn user_agent(program: &str, version: &str, platform: &str) -> String {
    let name = Path::new(program).file_name().map_or_else(|| program.into(), |name| name.to_string_lossy());
    // What no header may hold is no name of a program either.
    let name: String = name.chars().filter(char::is_ascii_graphic).collect();
    format!("{name}/{version} ({platform}) kubernetes/unknown")
}

/// The header Accept: `acceptContentTypes`, or `contentType` and anything, without the types that can't be decoded here.
/// Those come second.
pub(super) fn accept(content_type: &str, accept_content_types: &str) -> (String, Vec<String>) {
    let asked = if accept_content_types.trim().is_empty() {
        format!("{content_type}, */*")
    } else {
        accept_content_types.to_owned()
    };
    let asked = asked.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let (good, bad): (Vec<&str>, Vec<&str>) = asked.partition(|entry| {
        let kind = media_type(entry);
        [JSON, PROTOBUF, "application/*", "*/*"].contains(&kind.as_str())
            && entry.chars().all(|c| matches!(c, ' '..='~'))
    });
    // With "anything" alone the server would choose, and after a type that isn't known here it might choose that.
    let accept =
        if good.iter().any(|entry| !entry.contains('*')) { good.join(", ") } else { format!("{PROTOBUF}, {JSON}") };
    (accept, bad.into_iter().map(str::to_owned).collect())
}

/// How the body of an answer is written, by its content type.
pub(super) fn encoding(content_type: &str) -> Option<Encoding> {
    match media_type(content_type).as_str() {
        JSON => Some(Encoding::Json),
        PROTOBUF => Some(Encoding::Protobuf),
        _ => None,
    }
}

/// Retry-After, in seconds; as a date it isn't used by API servers.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// A content type without its parameters.
fn media_type(text: &str) -> String {
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_is_asked_for_and_known() {
        for (content, asked, wanted, unknown) in [
            (PROTOBUF, "", "application/vnd.kubernetes.protobuf, */*", &[][..]),
            (JSON, "", "application/json, */*", &[]),
            ("", "", "application/vnd.kubernetes.protobuf, application/json", &[]),
            (PROTOBUF, "application/json", "application/json", &[]),
            (PROTOBUF, " a/b;q=1,application/json;q=0.5 ,*/*", "application/json;q=0.5, */*", &["a/b;q=1"]),
            ("application/cbor", "", "application/vnd.kubernetes.protobuf, application/json", &["application/cbor"]),
            (PROTOBUF, "application/json\n", "application/json", &[]),
            (
                PROTOBUF,
                "application/json;\u{e9}",
                "application/vnd.kubernetes.protobuf, application/json",
                &["application/json;\u{e9}"],
            ),
        ] {
            let (accept, bad) = accept(content, asked);
            assert_eq!(
                (accept.as_str(), bad.as_slice()),
                (wanted, &unknown.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>()[..])
            );
        }
    }

    #[test]
    fn the_user_agent_has_upstreams_shape() {
        let agent = user_agent("/usr/local/bin/kube-proxy", "v1.36.2", "linux/amd64");
        assert_eq!(agent, "kube-proxy/v1.36.2 (linux/amd64) kubernetes/unknown");
        assert!(user_agent("a\nb", "v1", "linux/amd64").starts_with("ab/v1 "));
    }

    #[test]
    fn content_types_say_the_encoding() {
        assert_eq!(encoding("application/json; charset=utf-8"), Some(Encoding::Json));
        assert_eq!(encoding("Application/vnd.Kubernetes.protobuf;stream=watch"), Some(Encoding::Protobuf));
        assert_eq!(encoding("text/html"), None);
        assert_eq!(encoding(""), None);
    }
}
