//! The vocabulary of modes that own an nf_tables table: rules as expressions and text, keys as bytes, sets of source ranges, errors
//! by operation, foreign changes, and a tracer. The content of the table is the mode's: this crate contains no name of a chain or set.
//!
//! - Names: [`names!`] declares those of the constant chains and sets, [`id`] makes those with a hash.
//! - Rules: [`rules`] writes them, [`rule`] compares them with what the kernel holds.
//! - Sets: [`layout`] declares them, [`fields`] encodes and decodes keys and values, [`sources`] merges source ranges.
//! - Transactions: [`encode`] writes chains and sets of source ranges, [`marks`] records the positions of operations, [`failure`]
//!   maps the kernel's errors to the engine's.
//! - Node ports: [`serves`] writes the rule that looks them up.
//! - The kernel's side: [`read`] reads a table back, [`probe`] tests whether the kernel supports it.
//! - A mode's own table with all this: [`table`].
//! - Foreign changes: [`watch`] detects them with one listener for the engines of a process.
//! - For tests and people: [`trace`] simulates chains and sets on a packet, [`text`] prints a table for the `nft` tool.

pub mod encode;
pub mod failure;
pub mod fields;
pub mod id;
pub mod layout;
pub mod marks;
pub mod names;
pub mod probe;
pub mod read;
pub mod rule;
pub mod rules;
pub mod serves;
pub mod sources;
pub mod table;
pub mod text;
pub mod trace;
pub mod watch;

pub use rule::{Rules, TableRule};
