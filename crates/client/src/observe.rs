//! What a client reports while it works, for metrics.

use std::fmt;
use std::time::{Duration, SystemTime};

/// Receives what the client does. `host` is the server's host and port, `method` that of HTTP. Called from the client's runtime; must not
/// block.
pub trait Observe: fmt::Debug + Send + Sync {
    /// A request got this status, or `<error>`.
    fn answered(&self, code: &str, method: &str, host: &str);

    /// A request waited for its turn.
    fn waited(&self, method: &str, host: &str, time: Duration);

    /// An answer was read to its end, or to where it broke off. Sizes are those of the bodies sent and received, in bytes; the second is
    /// `None` where nothing came. Watches aren't observed: they have no end.
    fn ended(&self, method: &str, host: &str, took: Duration, sizes: (u64, Option<u64>));

    /// A request is sent once more after this status, or `<error>` where no server looked at it.
    fn retried(&self, code: &str, method: &str, host: &str);

    /// An attempt to connect came to this.
    fn connected(&self, result: &str);

    /// A plugin ended so, with this exit code.
    fn plugin_call(&self, status: &str, code: i32);

    /// A plugin's certificate is in use that ends then.
    fn plugin_certificate(&self, expiry: Option<SystemTime>);

    /// A plugin's certificate was replaced after this time.
    fn plugin_certificate_replaced(&self, age: Duration);

    /// A transport was made; it is the only one in use.
    fn transport_created(&self);
}
