//! Credentials of one request: the header Authorization and the client certificate.

use std::sync::Arc;

use hyper::header::HeaderValue;

use super::tls::Pair;

/// Credentials of one request.
#[derive(Clone, Debug, Default)]
pub(super) struct Credential {
    /// the header Authorization
    pub(super) header: Option<HeaderValue>,
    /// the client certificate, if a plugin returned one
    pub(super) pair: Option<Arc<Pair>>,
    /// the run of the plugin that returned it
    pub(super) run: u64,
}

// === impl Credential ===

impl Credential {
    /// True if sending these instead of the other ones makes no difference: the same token, or the same run of a plugin.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.run == other.run && self.header == other.header
    }
}

/// The header Authorization for a token, without surrounding white space.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    let token = token.trim();
    if token.is_empty() {
        return Err("the token is empty".to_owned());
    }
    sensitive(&format!("Bearer {token}"))
        .ok_or_else(|| "the token contains characters that are invalid in a header".to_owned())
}

/// A header value that is redacted in debug output.
pub(super) fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}
