//! Parses the address of an API server.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;

/// An API server's address: scheme, host, port, and the prefix of every request's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// true for https
    pub tls: bool,
    /// a name or an IP address, IPv6 without brackets
    pub host: String,
    /// the port, if given
    pub port: Option<u16>,
    /// empty, or begins with `/` and doesn't end with it
    pub prefix: String,
}

// === impl ServerAddress ===

impl ServerAddress {
    /// Parses a URL, or `host` or `host:port`, whose scheme is https if `default_tls`.
    ///
    /// # Errors
    /// If the text is no such address; the message contains no credentials of the text.
    pub fn parse(text: &str, default_tls: bool) -> Result<Self, String> {
        Self::read(text, default_tls).map_err(|why| {
            // With an `@`, the parts that parse as host, port and path may belong to a password, so the error must not quote
            // them.
            let secretive = text.contains('@');
            if secretive { "must consist of scheme, host, port and path, without credentials".to_owned() } else { why }
        })
    }

    fn read(text: &str, default_tls: bool) -> Result<Self, String> {
        let (tls, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, _)) => return Err(format!("scheme {scheme:?} is neither http nor https")),
            None if text.trim_end_matches('/').contains('/') => {
                return Err("must be a URL or a host:port pair".to_owned());
            }
            None => (default_tls, text),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if path.contains(['?', '#']) {
            return Err("must not have a query or a fragment".to_owned());
        }
        if let Some(bad) = path.chars().find(|c| !c.is_ascii_graphic() || "\"<>\\^`{|}".contains(*c)) {
            return Err(format!("invalid character {bad:?} in the path"));
        }
        let (host, port) = split_authority(authority)?;
        Ok(Self { tls, host, port, prefix: path.trim_end_matches('/').to_owned() })
    }

    /// Host and port in the form of a URL: `10.0.0.1:6443`, `[::1]`.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match self.port {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

/// A URL without credentials, for messages: everything between its scheme and its last `@` is replaced, since it may be a
/// password.
pub fn without_credentials(url: &str) -> Cow<'_, str> {
    let Some((hidden, rest)) = url.rsplit_once('@') else { return Cow::Borrowed(url) };
    match hidden.split_once("://") {
        Some((scheme, _)) if is_scheme(scheme) => Cow::Owned(format!("{scheme}://…@{rest}")),
        Some(_) | None => Cow::Owned(format!("…@{rest}")),
    }
}

/// True if the text is a valid URL scheme.
pub(super) fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn split_authority(authority: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("missing ']' after the host")?;
            host.parse::<Ipv6Addr>().map_err(|_| format!("host {host:?} is not an IPv6 address"))?;
            (host, port)
        }
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let bad = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':'));
    if host.is_empty() || host.contains(bad) {
        return Err(if host.is_empty() { "missing host".to_owned() } else { format!("invalid host {host:?}") });
    }
    let port = match port.strip_prefix(':') {
        Some("") => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().map_err(|_| format!("invalid port {digits}"))?)
        }
        None if port.is_empty() => None,
        Some(_) | None => return Err(format!("invalid host and port {authority:?}")),
    };
    Ok((host.to_owned(), port))
}
