//! Who may look at the status page.

use std::net::IpAddr;
use std::str::FromStr as _;

use hyper::StatusCode;
use hyper::http::uri::Authority;

use crate::serve::http::{Answer, Received};

/// The clients that get pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// nobody: there are no pages
    Nobody,
    /// this machine alone, a port-forward included
    Loopback,
    /// whoever reaches the metrics address
    Everyone,
}

// === impl Access ===

impl Access {
    /// Why this client doesn't get a page.
    pub(super) fn refusal(self, received: &Received) -> Option<Answer> {
        match self {
            Self::Everyone => None,
            Self::Nobody => Some(Answer::not_found()),
            Self::Loopback if !received.client.is_some_and(|client| client.to_canonical().is_loopback()) => {
                Some(forbidden(
                    "The status page is for this machine alone: forward a port, or set FerryConfiguration.statusPage: everyone.",
                ))
            }
            // A page of another site, whose name leads here, would read what its user may read.
            Self::Loopback if !is_own_name(&received.host) => {
                Some(forbidden("The status page is asked for by another name: use an address or localhost."))
            }
            Self::Loopback => None,
        }
    }
}

fn forbidden(why: &str) -> Answer {
    Answer::text(format!("{why}\n")).with_status(StatusCode::FORBIDDEN)
}

/// True for an address and for localhost, with or without a port, and for no name at all, as in HTTP/1.0.
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
        let received = Received {
            client: client.map(|client| client.parse().unwrap()),
            host: host.to_owned(),
            ..Received::get("/ui")
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
