//! Tables of `iptables`, read and written by its tools: rules as text, the tools as child processes, the lock file of the legacy
//! variant, and queries to the kernel about the tables of each variant.

mod call;
mod environment;
mod failure;
pub mod legacy;
mod lines;
mod lock;
pub mod nft;
mod parse;
mod print;
mod restore;
mod restorer;
mod rule;
mod run;
mod tool;
mod version;

#[cfg(test)]
mod tests;

pub use environment::Environment;
pub use failure::ToolFailure;
pub use lines::{OutputLine, UnexpectedOutput, read_lines};
pub use restore::Restore;
pub use restorer::Restorer;
pub use rule::{AddressMatch, CtStates, InterfaceMatch, IptablesChainName, Match, PortProtocol, Rule, Table, Target};
pub use tool::{RestoreOutcome, Stdin, Tool};
pub use version::{Backend, Version};
