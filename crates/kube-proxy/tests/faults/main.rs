//! What the cluster as a source does when the server or the network fails, over real sockets and TLS, each test in a
//! network namespace of its own, so it needs root. The server is scripted; what the source delivers goes into a store,
//! and in the end that has to hold what the server holds.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests are functions here that two tests call each, and they fail as tests do"
)]

/// Makes tests of these functions: one over HTTP/1.1 and one over HTTP/2 of each.
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
mod watches;
