//! Parses a request's head and routes its path.

use std::time::Instant;

use ferry_api::object::Kind;

use super::fault::RequestForm;

/// The head of a request.
#[derive(Clone, Debug)]
pub(super) struct RequestHead {
    pub(super) method: String,
    /// path and query, verbatim
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
}

/// A recorded request.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// GET …
    pub method: String,
    /// form of the request
    pub form: RequestForm,
    /// kind of the requested objects, if known
    pub kind: Option<Kind>,
    /// the namespace of the requested objects; blank for all namespaces
    pub namespace: String,
    /// path and query, verbatim
    pub path_and_query: String,
    /// query parameters, decoded, in order
    pub parameters: Vec<(String, String)>,
    /// headers, names in lower case, in order
    pub headers: Vec<(String, String)>,
    /// time at which its head was complete
    pub when: Instant,
    /// number of the connection, counted from 1
    pub connection: u64,
}

/// The resource that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// of this namespace, or of all if blank
    List(Kind, String),
    /// one object, with its key
    Object(Kind, String),
    /// the Events of a namespace, or the named one
    Events {
        namespace: String,
        name: Option<String>,
    },
    Version,
    Nothing,
}

/// The plural of a kind in paths.
pub(super) fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "services",
        Kind::EndpointSlice => "endpointslices",
        Kind::Node => "nodes",
        Kind::ServiceCidr => "servicecidrs",
    }
}

/// The API group of a kind; empty for the core.
pub(super) fn group(kind: Kind) -> &'static str {
    match kind {
        Kind::Service | Kind::Node => "",
        Kind::EndpointSlice => "discovery.k8s.io",
        Kind::ServiceCidr => "networking.k8s.io",
    }
}

/// Parses a head.
pub(super) fn parse(bytes: &[u8]) -> Option<RequestHead> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    if first.next()? != "HTTP/1.1" {
        return None;
    }
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Some(RequestHead { method, target, headers })
}

// === impl RequestHead ===

impl RequestHead {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Routes the path on a server whose paths have this prefix.
    pub(super) fn route(&self, prefix: &str) -> Route {
        let path = self.target.split('?').next().unwrap_or_default();
        let parts: Vec<_> = path.strip_prefix(prefix).unwrap_or_default().split('/').skip(1).collect();
        let [kind, rest @ ..] = (match parts.as_slice() {
            ["version"] => return Route::Version,
            ["apis", "events.k8s.io", "v1", "namespaces", namespace, "events", name @ ..] if name.len() < 2 => {
                let name = name.first().map(|name| (*name).to_owned());
                return Route::Events { namespace: (*namespace).to_owned(), name };
            }
            ["api", "v1", rest @ ..] | ["apis", _, "v1", rest @ ..] => rest,
            _ => return Route::Nothing,
        }) else {
            return Route::Nothing;
        };
        let (namespace, kind, rest) = match (*kind, rest) {
            ("namespaces", [namespace, kind, rest @ ..]) => (*namespace, *kind, rest),
            (kind, rest) => ("", kind, rest),
        };
        let group_named = if parts.first() == Some(&"api") { "" } else { parts.get(1).copied().unwrap_or_default() };
        let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];
        let known = kinds.into_iter().find(|known| plural(*known) == kind && group(*known) == group_named);
        match (known, rest) {
            (Some(kind), []) => Route::List(kind, namespace.to_owned()),
            (Some(kind), [name]) => Route::Object(kind, format!("{namespace}/{name}")),
            _ => Route::Nothing,
        }
    }

    pub(super) fn seen(self, route: &Route, connection: u64) -> RecordedRequest {
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let parameters: Vec<_> = pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decoded(name), decoded(value)))
            .collect();
        let is = |name: &str| matches!(find(&parameters, name), Some("true" | "1"));
        let (kind, form) = match route {
            Route::List(kind, _) if is("watch") && is("sendInitialEvents") => (Some(*kind), RequestForm::StreamingList),
            Route::List(kind, _) if is("watch") => (Some(*kind), RequestForm::Watch),
            Route::List(kind, _) => (Some(*kind), RequestForm::List),
            Route::Object(kind, _) => (Some(*kind), RequestForm::Other),
            Route::Events { .. } => (None, RequestForm::Event),
            Route::Version | Route::Nothing => (None, RequestForm::Other),
        };
        let namespace = if let Route::List(_, namespace) = route { namespace.clone() } else { String::new() };
        RecordedRequest {
            namespace,
            method: self.method,
            form,
            kind,
            path_and_query: self.target,
            parameters,
            headers: self.headers,
            when: Instant::now(),
            connection,
        }
    }
}

// === impl RecordedRequest ===

impl RecordedRequest {
    /// A query parameter, decoded.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        find(&self.parameters, name)
    }

    /// A header; its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }
}

fn find<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
}

fn decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, hex.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                rest = after.get(2..).unwrap_or_default();
                continue;
            }
            (b'+', _) => out.push(b' '),
            (other, _) => out.push(other),
        }
        rest = after;
    }
    String::from_utf8_lossy(&out).into_owned()
}
