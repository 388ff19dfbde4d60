//! Access control of the status page.

use std::net::IpAddr;
use std::str::FromStr as _;

use ferry_api::config::{PAGE_EVERYONE, PAGE_NOBODY};
use hyper::StatusCode;
use hyper::http::uri::Authority;

use crate::serve::http::{HttpRequest, HttpResponse};

/// The clients that the pages are served to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// none: there are no pages
    Nobody,
    /// those of this machine, a port-forward included
    Loopback,
    /// all clients of the metrics address
    Everyone,
}

// === impl Access ===

impl Access {
    /// The value of statusPage in a valid configuration.
    pub fn configured(value: &str) -> Self {
        match value {
            PAGE_EVERYONE => Self::Everyone,
            PAGE_NOBODY => Self::Nobody,
            _ => Self::Loopback,
        }
    }

    /// The refusal of this request; `None` if the page may be served.
    pub(super) fn refusal(self, received: &HttpRequest) -> Option<HttpResponse> {
        match self {
            Self::Everyone => None,
            Self::Nobody => Some(HttpResponse::not_found()),
            Self::Loopback if !received.client.is_some_and(|client| client.to_canonical().is_loopback()) => {
                Some(forbidden(
                    "The status page is for this machine alone: forward a port, or set FerryConfiguration.statusPage: everyone.",
                ))
            }
            // DNS rebinding: another site's name that resolves to this machine would let its scripts read the pages.
            Self::Loopback if !is_own_name(&received.host) => {
                Some(forbidden("The status page is asked for by another name: use an address or localhost."))
            }
            Self::Loopback => None,
        }
    }
}

fn forbidden(why: &str) -> HttpResponse {
    HttpResponse::text(format!("{why}\n")).with_status(StatusCode::FORBIDDEN)
}

/// True for an IP address and for localhost, with or without a port, and for an absent header (HTTP/1.0).
fn is_own_name(host: &str) -> bool {
    if host.is_empty() {
        return true;
    }
    let Ok(authority) = Authority::from_str(host) else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(access: Access, client: Option<&str>, host: &str) -> Option<StatusCode> {
        let received = HttpRequest {
            client: client.map(|client| client.parse().unwrap()),
            host: host.to_owned(),
            ..HttpRequest::get("/ui")
        };
        access.refusal(&received).map(|answer| answer.status)
    }

    #[test]
    fn this_machine_looks_under_its_own_names() {
        for client in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
            for host in ["", "localhost", "LOCALHOST:10249", "127.0.0.1:10249", "[::1]:10249", "192.0.2.1"] {
                assert_eq!(status(Access::Loopback, Some(client), host), None, "{client} {host}");
            }
        }
        for host in ["example.com", "localhost.example.com:10249", "evil@localhost.com", "[::1", "a b"] {
            assert_eq!(status(Access::Loopback, Some("127.0.0.1"), host), Some(StatusCode::FORBIDDEN), "{host}");
        }
    }

    #[test]
    fn others_are_refused_unless_configured() {
        for client in [Some("192.0.2.1"), Some("2001:db8::1"), Some("::ffff:192.0.2.1"), None] {
            assert_eq!(status(Access::Loopback, client, "localhost"), Some(StatusCode::FORBIDDEN), "{client:?}");
            assert_eq!(status(Access::Everyone, client, "node-a.example.com"), None);
            assert_eq!(status(Access::Nobody, client, "localhost"), Some(StatusCode::NOT_FOUND));
        }
    }
}
