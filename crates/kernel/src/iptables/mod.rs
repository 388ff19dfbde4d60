//! The tables of `iptables`, by way of its tool: rules as text, the tool as a child process, the lock that its legacy variant
//! shares with everybody, and what the kernel says of legacy tables.

mod failure;
pub mod legacy;
mod lines;
mod lock;
pub mod nft;
mod parse;
mod print;
mod restore;
mod rule;
mod run;
mod tool;
mod version;

#[cfg(test)]
mod tests;

pub use failure::Failure;
pub use lines::{Garbage, Line, read_lines};
pub use restore::Restore;
pub use rule::{ChainName, CtStates, Input, Match, Protocol, Rule, Side, Table, Target};
pub use tool::{Environment, Run, Stdin, Tool};
pub use version::{Backend, Version};
