//! The Windows half: options of sockets ([`sockets`]), addresses of interfaces ([`addresses`], through the IP Helper API), the
//! machine's name ([`machine`]), and figures of this process ([`process`]).

pub mod addresses;
pub mod machine;
pub mod process;
pub mod sockets;
