//! The ways to run the executable, each tried: Debian package under systemd, container images, manifests of a cluster, completions,
//! manual page, dashboard and alerts. The files are in `deploy`.
//!
//! Needs mmdebstrap and Debian's mirror, dpkg, systemd, buildah, crun, promtool, bash, zsh, fish, mandoc, and what a cluster's tests need.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "the helpers of a test fail as tests do, and print what they measured"
)]

mod images;
mod manifests;
mod monitoring;
mod package;
mod release;
mod shells;
mod sockets;
mod support;
mod systemd;
mod workflows;
