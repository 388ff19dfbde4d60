//! The proxy to the API server: from `proxy-url` or from the environment.

use std::net::IpAddr;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// Protocol of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
    Socks5,
}

/// A proxy. Debug shows no password.
#[derive(Clone, Debug)]
pub(super) struct ForwardProxy {
    pub(super) scheme: Scheme,
    /// its address, as a URL with scheme http or https, without credentials
    pub(super) uri: Uri,
    intercept: Intercept,
}

// === impl ForwardProxy ===

impl ForwardProxy {
    /// The proxy of this URL; `None` if the URL is invalid or its scheme isn't supported.
    pub(super) fn of_url(url: &str) -> Option<Self> {
        // The destination is irrelevant to a matcher for all destinations.
        let anything = Uri::from_static("https://server");
        Self::new(Matcher::builder().all(url.to_owned()).build().intercept(&anything)?)
    }

    /// The proxy for this server by `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, or the same in lower case. Loopback addresses are
    /// never reached through a proxy.
    pub(super) fn of_environment(server: &Uri, env: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let host = server.host()?.trim_start_matches('[').trim_end_matches(']');
        if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
            return None;
        }
        let value = |name: &str| env(name).or_else(|| env(&name.to_lowercase())).unwrap_or_default();
        let matcher =
            Matcher::builder().http(value("HTTP_PROXY")).https(value("HTTPS_PROXY")).no(value("NO_PROXY")).build();
        Self::new(matcher.intercept(server)?)
    }

    fn new(intercept: Intercept) -> Option<Self> {
        let uri = intercept.uri();
        let (scheme, port) = match uri.scheme_str()? {
            "http" => (Scheme::Http, 80),
            "https" => (Scheme::Https, 443),
            "socks5" | "socks5h" => (Scheme::Socks5, 1080),
            _ => return None,
        };
        let transport = if scheme == Scheme::Https { "https" } else { "http" };
        let authority = format!("{}:{}", uri.host()?, uri.port_u16().unwrap_or(port));
        let uri = Uri::builder().scheme(transport).authority(authority).path_and_query("/").build().ok()?;
        Some(Self { scheme, uri, intercept })
    }

    /// The header Proxy-Authorization.
    pub(super) fn basic(&self) -> Option<&HeaderValue> {
        self.intercept.basic_auth()
    }

    /// User and password, for SOCKS.
    pub(super) fn login(&self) -> Option<(&str, &str)> {
        self.intercept.raw_auth()
    }
}
