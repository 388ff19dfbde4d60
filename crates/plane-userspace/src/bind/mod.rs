//! The way `bind`: no netfilter. Addresses of Services are made this machine's, and the relay listens at each of them, and at the
//! node's addresses for node ports.
//!
//! 1. [`Binding`] (`compile.rs`) compiles a unit into objects (`object.rs`): service ports, addresses, listeners.
//! 2. Two layers commit them: the addresses, on Linux by `routes.rs`, elsewhere by `interface.rs`, below `listeners.rs`, so that an address
//!    is there before a listener serves it.
//!
//! `kernel.rs` puts the layers together. `origin.rs` determines where a client is by its address. `trace.rs` simulates the objects on a packet, `render.rs` prints them, `hint.rs`
//! narrows down the units that may want a key.

mod compile;
mod hint;
mod interface;
mod kernel;
mod listeners;
pub mod object;
mod origin;
#[cfg(feature = "testing")]
mod refers;
pub mod render;
#[cfg(target_os = "linux")]
mod routes;
mod trace;

pub use compile::Binding;
pub use interface::ServiceAddresses;
#[cfg(target_os = "linux")]
pub use kernel::engine;
pub use kernel::{BindEngine, engine_of_interface, engine_without_addresses};
pub use object::{BindKey, BindObject};
#[cfg(target_os = "linux")]
pub use routes::{batch as routes, retire};
