//! Mode ipvs of the built executable: virtual servers, real connections between network namespaces, and `ipvsadm`, `nft` and `ip`
//! as oracles.
//!
//! Most machines' kernels lack IPVS, so that all tests here run in virtual machines: `cargo xt vm`. One lab serves them, one after
//! another.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "the helpers of a test fail as tests do, and print what they measured"
)]

mod change;
mod faults;
mod forward;
mod grace;
mod limits;
mod modules;
mod privileges;
mod render;
mod schedulers;
mod settings;
mod side_effects;
mod sources;
mod support;
mod tutorial;
mod upstream;
mod verify;
