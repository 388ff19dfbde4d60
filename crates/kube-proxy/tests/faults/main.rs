//! What the cluster as a source does when the server or the network fails, over real sockets and TLS, each test in a
//! network namespace of its own, so it needs root. The server is scripted; what the source delivers goes into a store,
//! and in the end that has to hold what the server holds.
#![expect(clippy::expect_used, clippy::panic, reason = "the helpers of a test fail as tests do")]

mod bounds;
mod encodings;
mod events;
mod kinds;
mod lists;
mod refusals;
mod silence;
mod support;
mod transport;
mod watches;
