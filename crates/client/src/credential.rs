//! What one request is authenticated with.

use std::sync::Arc;

use hyper::header::HeaderValue;

use super::tls::Pair;

/// What one request is sent with.
#[derive(Clone, Debug, Default)]
pub(super) struct Credential {
    /// the header Authorization
    pub(super) header: Option<HeaderValue>,
    /// the client's certificate, where a plugin gave one
    pub(super) pair: Option<Arc<Pair>>,
    /// which run of the plugin gave it
    pub(super) run: u64,
}

/// The header for a token. Line breaks around it are no part of it.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    let token = token.trim();
    if token.is_empty() {
        return Err("the token is empty".to_owned());
    }
    sensitive(&format!("Bearer {token}")).ok_or_else(|| "the token has characters that can't be sent".to_owned())
}

/// A header that no log shows.
pub(super) fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}
