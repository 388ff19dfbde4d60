//! The lab for tests that send real packets: network namespaces with servers and probing clients, the built executable on
//! the node, builders of manifests, a scripted API server, upstream's API server, and `nft` and `iptables` as oracles.
//!
//! For tests only, so errors are panics. Needs root, and the tools `ip`, `nft` and `iptables` (both variants).
//!
//! Read [`Lab`] first, then [`Stage`], which most tests use.
#![expect(clippy::expect_used, clippy::panic, reason = "a test kit fails by panicking")]

pub mod api;
pub mod checks;
pub mod corpus;
pub mod host;
pub mod iptables;
pub mod kubernetes;
pub mod lab;
pub mod loader;
pub mod mode;
pub mod nft;
pub mod objects;
pub mod patience;
pub mod probe;
pub mod proxy;
pub mod seccomp;
pub mod stage;
pub mod wire;
mod worker;

pub use checks::{Checks, SeenSource};
pub use ferry_api::object::{Family, Protocol};
pub use host::Host;
pub use kubernetes::Kubernetes;
pub use lab::{Lab, LabMachine};
pub use mode::Mode;
pub use objects::{Endpoints, Manifests, TestService};
pub use probe::{ProbeAnswer, ProbeClient, ProbeOutcome, ProbeTally};
pub use proxy::ProxyProcess;
pub use stage::Stage;
