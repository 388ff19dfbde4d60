//! The executable with upstream's kube-apiserver and etcd: the API server provides the objects, the lab's node the kernel, and
//! real connections are the check.
//!
//! One API server serves all tests, one after another; each begins with an empty namespace and no rules. Needs Go,
//! openssl, curl and python3, as `tests/e2e/peer` does.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the helpers of a test fail as tests do, and print what they measured"
)]

mod access;
mod events;
#[path = "../peer/matrix.rs"]
#[expect(dead_code, reason = "the clients of the other binary")]
mod matrix;
mod metrics;
mod node;
mod objects;
mod outage;
mod plugin;
mod rotation;
mod support;
mod twins;
