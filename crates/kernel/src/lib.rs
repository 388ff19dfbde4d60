//! Kernel interfaces: netlink, nf_tables, iptables, connection tracking, addresses, network namespaces, sysctls. Independent of
//! Kubernetes and of the program above.
//!
//! - [`netlink`] has messages, sockets, sessions and notifications for all netlink protocols. Those are [`nft`] (nf_tables: typed
//!   objects, transactions, notifications), [`conntrack`] (dumps and deletions of entries), [`nfacct`] (counters of `iptables`
//!   rules) and [`link`] (interfaces and addresses).
//! - [`iptables`] runs the tools as child processes, prints and parses rules, and takes the xtables lock.
//! - [`sysctl`], [`netns`], [`capability`] and [`memory`] (heap, OOM score) are about this process and its machine.
//! - [`errno`] classifies errors by the caller's next step; [`text`] escapes untrusted text for logs.
//!
//! Read first: `netlink/session.rs`, then `nft/mod.rs` and `nft/batch.rs`.
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
