//! Immutable settings of a client: the resolved context of the kubeconfig, proxy, certificate authorities, HTTP/2.

use std::time::Duration;

use crate::kubeconfig::Chosen;

use super::authorities::Authorities;
use super::proxy::ForwardProxy;

/// Immutable settings of a client.
pub(super) struct ClientSettings {
    pub(super) chosen: Chosen,
    /// the kubeconfig's path, for messages
    pub(super) origin: String,
    /// the server's URL, for messages: without credentials
    pub(super) shown: String,
    pub(super) proxy: Option<ForwardProxy>,
    /// the system's certificate authorities, read at most once
    pub(super) authorities: Authorities,
    pub(super) http2: Http2,
}

/// HTTP/2 settings of the environment, in the variables of client-go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Http2 {
    /// false if `DISABLE_HTTP2` is set
    pub(super) enabled: bool,
    /// `HTTP2_READ_IDLE_TIMEOUT_SECONDS`: idle time before a PING; 0 for never
    pub(super) ping_after: Option<Duration>,
    /// `HTTP2_PING_TIMEOUT_SECONDS`
    pub(super) ping_within: Option<Duration>,
}

/// The longest time that the environment may set, a day.
const LONGEST_SECONDS: u64 = 86_400;

// === impl Http2 ===

impl Http2 {
    pub(super) fn of_environment(env: &dyn Fn(&str) -> Option<String>) -> Self {
        let seconds = |name: &str| {
            let text = env(name)?;
            let seconds = text.parse().ok().filter(|seconds| *seconds <= LONGEST_SECONDS).map(Duration::from_secs);
            if seconds.is_none() {
                tracing::warn!(name, value = %text.escape_debug(), "Not a number of seconds up to one day, using the default");
            }
            seconds
        };
        Self {
            enabled: env("DISABLE_HTTP2").is_none_or(|value| value.is_empty()),
            ping_after: seconds("HTTP2_READ_IDLE_TIMEOUT_SECONDS"),
            // A PING timeout of 0 would close every connection.
            ping_within: seconds("HTTP2_PING_TIMEOUT_SECONDS").filter(|within| !within.is_zero()),
        }
    }
}
