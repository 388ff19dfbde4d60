//! Kernel interfaces: netlink, nf_tables, iptables, connection tracking, addresses, network namespaces, sysctls. Independent of
//! Kubernetes and of the program above.
//!
//! The only crate with `unsafe` code. Everything is synchronous; messages of the kernel are decoded with bounds checks
//! throughout, so that no byte sequence causes a panic.

pub mod capability;
pub mod conntrack;
pub mod errno;
pub mod iptables;
pub mod link;
pub mod memory;
pub mod netlink;
pub mod netns;
pub mod nfacct;
pub mod nft;
pub mod sysctl;
pub mod text;
