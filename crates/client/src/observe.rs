//! [`Observe`]: the client's callbacks for metrics.

use std::fmt;
use std::time::{Duration, SystemTime};

/// Receives the client's events for metrics. `host` is the server's host and port, `method` that of HTTP. Called in the client's
/// runtime; must not block.
pub trait Observe: fmt::Debug + Send + Sync {
    /// A request ended with this status, or with `<error>` if there was no response.
    fn answered(&self, code: &str, method: &str, host: &str);

    /// A request other than a watch was delayed by the client's rate limit for this time.
    fn waited(&self, method: &str, host: &str, time: Duration);

    /// A response was read to its end or to its failure. Sizes are those of the bodies sent and received, in bytes; the second
    /// is `None` without a response. Watches aren't observed: they are long-running.
    fn ended(&self, method: &str, host: &str, took: Duration, sizes: (u64, Option<u64>));

    /// A request is repeated after this status, or after `<error>` if the server hasn't processed it.
    fn retried(&self, code: &str, method: &str, host: &str);

    /// An attempt to connect had this result: the protocol, or the class of the failure.
    fn connected(&self, result: &str);

    /// A plugin's run had this result and exit code.
    fn plugin_call(&self, status: &str, code: i32);

    /// A plugin's certificate with this expiry is in use; `None` without one.
    fn plugin_certificate(&self, expiry: Option<SystemTime>);

    /// A plugin's certificate was replaced after this time in use.
    fn plugin_certificate_replaced(&self, age: Duration);

    /// A transport was created; only one exists at a time.
    fn transport_created(&self);
}
