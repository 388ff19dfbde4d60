//! Removes chains from the tables of the nft variant by netlink, on machines that lack the tool.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::iptables::nft::{self, IptablesChain, Removal};
use ferry_kernel::iptables::{IptablesChainName, Table};

use crate::names::{self, Class};

/// Attempts for a table. The other family's chains are removed at the same time, so one is seldom enough.
const TRIES: usize = 5;

/// Removes this mode's chains, and its jumps in the built-in chains; returns the number of chains. As with the tool, a chain that another
/// program's rule leads to is emptied, and stays with that rule. The loopback guard stays, too: it is a rule in the kubelet's chain, and only
/// its text tells whose it is.
///
/// # Errors
/// The system's error.
pub fn retire_without_tool(family: Family) -> io::Result<usize> {
    let mut removed = 0;
    // Translation first: what filter still does without it is right for the mode that serves now.
    for table in [Table::Nat, Table::Filter, Table::Mangle] {
        let is_ours = |name: &str| IptablesChainName::new(name).is_some_and(|name| names::is_ours(table, name));
        removed += remove(family, table, &Removal { chains: &is_ours, rules: &is_our_jump })?;
    }
    Ok(removed)
}

/// True if a proxy has written a rule from one chain to another: each of its entry chains is reached from built-in chains.
fn is_our_jump(from: &IptablesChain, to: &str) -> bool {
    let is_entry = |name| matches!(name, names::POSTROUTING | names::FORWARD) || Class::of(name) == Some(Class::Shared);
    from.builtin && IptablesChainName::new(to).is_some_and(is_entry)
}

/// Removes chains of a table. Another program's commit since they were read refuses the removal: then they are read again.
pub(crate) fn remove(family: Family, table: Table, removal: &Removal<'_>) -> io::Result<usize> {
    let mut least = 0;
    for _ in 1..TRIES {
        match nft::remove_chains(family, table, removal) {
            // If only the answer was lost, they are gone, and the next attempt finds none.
            Err(error) if ErrorClass::of(&error) == ErrorClass::Transient => least = 1,
            removed => return removed.map(|removed| removed.max(least)),
        }
    }
    nft::remove_chains(family, table, removal)
}
