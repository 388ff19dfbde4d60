//! A received request: the parts that routes use.

use std::borrow::Cow;
use std::net::IpAddr;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, HOST, HeaderName};
use hyper::{HeaderMap, Method, Request};
use tokio::time::timeout;

use super::HEADER_TIMEOUT;
use crate::query::decoded;

/// A received request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpRequest {
    /// its method
    pub method: Method,
    /// its path
    pub path: String,
    /// its query, without the question mark
    pub query: String,
    /// the client's address; `None` where it isn't known
    pub client: Option<IpAddr>,
    /// its header Host
    pub host: String,
    /// the values of its headers Accept, joined by commas
    pub accept: String,
    /// true if the client reads gzip
    pub accepts_gzip: bool,
    /// its body where the route reads it; `None` if it was too long, too slow or no text
    pub body: Option<String>,
}

/// Longest body that is read, in bytes.
const BODY_LIMIT: usize = 1024;

// === impl HttpRequest ===

impl HttpRequest {
    /// A GET without headers.
    #[cfg(test)]
    pub(crate) fn get(uri: &str) -> Self {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        Self { path: path.to_owned(), query: query.to_owned(), ..Self::default() }
    }

    /// The parts of a request, with its body if that is wanted.
    pub(super) async fn of(request: Request<Incoming>, with_body: bool) -> Self {
        let (head, body) = request.into_parts();
        let body = if with_body { text(body).await } else { None };
        Self {
            path: head.uri.path().to_owned(),
            client: None,
            host: joined(&head.headers, &HOST),
            query: head.uri.query().unwrap_or_default().to_owned(),
            accept: joined(&head.headers, &ACCEPT),
            accepts_gzip: accepts_gzip(&joined(&head.headers, &ACCEPT_ENCODING)),
            method: head.method,
            body,
        }
    }

    /// The values of a parameter of the query, in order; a name without a value has the empty one.
    pub fn parameters<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
        let pairs = self.query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.filter(move |(known, _)| decoded(known) == name).map(|(_, value)| decoded(value))
    }
}

async fn text(body: Incoming) -> Option<String> {
    let body = timeout(HEADER_TIMEOUT, Limited::new(body, BODY_LIMIT).collect()).await.ok()?.ok()?;
    String::from_utf8(body.to_bytes().into()).ok()
}

fn joined(headers: &HeaderMap, name: &HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

/// True if Accept-Encoding names gzip, with a weight above zero.
fn accepts_gzip(header: &str) -> bool {
    header.split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let weight = |part: &str| part.strip_prefix("q=").and_then(|weight| weight.trim().parse::<f32>().ok());
        parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip")) && parts.find_map(weight) != Some(0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let received = HttpRequest::get("/healthz?verbose&exclude=a%2Cb+c&exclude=%zz&ex%63lude=&v=%");
        let all = |name| received.parameters(name).map(Cow::into_owned).collect::<Vec<_>>();
        assert_eq!(all("exclude"), ["a,b c", "%zz", ""]);
        assert_eq!((all("verbose"), all("v")), (vec![String::new()], vec!["%".to_owned()]));
        assert!(all("other").is_empty());
        assert!(HttpRequest::get("/a").parameters("").all(|value| value.is_empty()));
    }

    #[test]
    fn gzip_is_negotiated() {
        for (header, wanted) in [
            ("gzip", true),
            ("zstd, GZIP;q=0.5", true),
            ("deflate,gzip ; q=1", true),
            ("gzip;q=0, identity", false),
            ("gzip; q=0.0", false),
            ("x-gzip", false),
            ("", false),
        ] {
            assert_eq!(accepts_gzip(header), wanted, "{header}");
        }
    }
}
