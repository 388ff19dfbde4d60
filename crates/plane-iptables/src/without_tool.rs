//! Removes chains from the tables of the nft variant by netlink, on machines that lack the tool.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::iptables::{ChainName, Table, nft};

use crate::names;

/// Attempts for a table. The other family's chains are removed at the same time, so one is seldom enough.
const TRIES: usize = 5;

/// Removes this mode's chains, and the rules of other chains that lead to them; returns their number. The loopback guard stays: it is a rule
/// in the kubelet's chain, and only its text tells whose it is.
///
/// # Errors
/// The system's error.
pub fn retire_without_tool(family: Family) -> io::Result<usize> {
    let mut removed = 0;
    for table in Table::ALL {
        let is_ours = |name: &str| ChainName::new(name).is_some_and(|name| names::is_ours(table, name));
        removed += remove(family, table, &is_ours)?;
    }
    Ok(removed)
}

/// Removes the unwanted chains of a table. Another program's commit since the chains were read refuses the removal: then they are read
/// again.
pub(crate) fn remove(family: Family, table: Table, is_unwanted: &dyn Fn(&str) -> bool) -> io::Result<usize> {
    for _ in 1..TRIES {
        match nft::remove_chains(family, table, is_unwanted) {
            Err(error) if ErrorClass::of(&error) == ErrorClass::Transient => {}
            removed => return removed,
        }
    }
    nft::remove_chains(family, table, is_unwanted)
}
