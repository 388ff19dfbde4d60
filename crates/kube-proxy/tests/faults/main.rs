//! The API source under faults of server and network, over real sockets and TLS, each test in a network namespace of its own, so
//! that root is needed. The server is scripted; delivered events go to a store, whose state must equal the server's in the end.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests are functions here that two tests call each, and they fail as tests do"
)]

/// Defines two tests of each function: over HTTP/1.1 and over HTTP/2.
macro_rules! over_both {
    ($($test:ident),+ $(,)?) => {
        mod http1 {
            $(#[test] fn $test() { $crate::support::over(false, super::$test); })+
        }
        mod http2 {
            $(#[test] fn $test() { $crate::support::over(true, super::$test); })+
        }
    };
}

mod bounds;
mod encodings;
mod events;
mod http2;
mod kinds;
mod lists;
mod refusals;
mod silence;
mod support;
mod transport;
mod unreachable;
mod watches;
