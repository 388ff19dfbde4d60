//! What tests that send real packets need: a lab of network namespaces, servers and clients in it, the built
//! executable in the middle, manifests for it, and `nft` as an oracle.
//!
//! For tests only, so it fails the way tests do: by panicking. Needs root, and the tools `ip`, `nft`, `iptables` (both variants) and
//! `setpriv`.
//!
//! Read [`Lab`] first, then [`Stage`], which is what most tests hold.
#![expect(clippy::expect_used, clippy::panic, reason = "a test kit fails by panicking")]

pub mod api;
pub mod checks;
pub mod corpus;
pub mod host;
pub mod iptables;
pub mod kubernetes;
pub mod lab;
pub mod mode;
pub mod nft;
pub mod objects;
pub mod probe;
pub mod proxy;
pub mod stage;
pub mod wire;

pub use checks::{Checks, Source};
pub use ferry_api::object::{Family, Protocol};
pub use host::Host;
pub use kubernetes::Kubernetes;
pub use lab::{Lab, Place};
pub use mode::Mode;
pub use objects::{Endpoints, Manifests, Service};
pub use probe::{Answer, Client, Outcome, Tally};
pub use proxy::Proxy;
pub use stage::Stage;
