//! Headers: User-Agent, Accept, and those of responses.

use std::path::Path;
use std::time::Duration;

use ferry_api::wire::stream::Encoding;
use hyper::header::{HeaderMap, RETRY_AFTER};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// `kube-proxy/v1.36.2 (linux/amd64) kubernetes/unknown`, as upstream's from a build without a commit. `program` is the
/// process's argument 0.
pub fn user_agent(program: &str, version: &str, platform: &str) -> String {
    let name = Path::new(program).file_name().map_or_else(|| program.into(), |name| name.to_string_lossy());
    // Characters that are invalid in a header are left out.
    let name: String = name.chars().filter(char::is_ascii_graphic).collect();
    format!("{name}/{version} ({platform}) kubernetes/unknown")
}

/// The header Accept: `acceptContentTypes`, or `contentType` and any type, without the types that can't be decoded here.
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
    // With wildcards alone the server might choose a type that can't be decoded here.
    let accept =
        if good.iter().any(|entry| !entry.contains('*')) { good.join(", ") } else { format!("{PROTOBUF}, {JSON}") };
    (accept, bad.into_iter().map(str::to_owned).collect())
}

/// Encoding of a response body by its content type; `None` if unsupported.
pub(super) fn encoding(content_type: &str) -> Option<Encoding> {
    match media_type(content_type).as_str() {
        JSON => Some(Encoding::Json),
        PROTOBUF => Some(Encoding::Protobuf),
        _ => None,
    }
}

/// The header Retry-After in seconds; API servers don't use the date form.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// A content type without parameters, in lower case.
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
