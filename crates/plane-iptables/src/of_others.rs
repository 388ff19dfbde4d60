//! Removes the chains that only upstream's modes ipvs and userspace make, which the proxy of mode iptables doesn't know.
//!
//! Other chains of mode ipvs have the same names in both modes. Some refer to ipsets, which can't be destroyed before.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::iptables::nft::Removal;
use ferry_kernel::iptables::{IptablesChainName, OutputLine, Restore, Table, ToolFailure, legacy};

/// The chains of mode ipvs by table. Upstream's own clean-up leaves some of them.
const OF_IPVS: [(Table, &[&str]); 2] = [
    (Table::Filter, &["KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL"]),
    (Table::Nat, &["KUBE-LOAD-BALANCER", "KUBE-NODE-PORT"]),
];

/// Those of mode userspace, which upstream had until 1.25.
const OF_USERSPACE: [(Table, &[&str]); 2] = [
    (Table::Filter, &["KUBE-NODEPORT-NON-LOCAL"]),
    (Table::Nat, &["KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST", "KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST"]),
];

/// The tables of one family, in the nft and in the legacy variant.
pub(crate) trait BothVariants {
    /// The family.
    fn family(&self) -> Family;
    /// Removes chains from a table of the nft variant; returns their number.
    fn remove_of_nft(&mut self, table: Table, removal: &Removal<'_>) -> io::Result<usize>;
    /// The number of entries of a table of the legacy variant; `None` if there is no such table.
    fn legacy_entries(&mut self, table: Table) -> io::Result<Option<u32>>;
    /// Lists a table of the legacy variant by the tool.
    fn save(&mut self, table: Table, each: &mut dyn FnMut(OutputLine<'_>)) -> Result<(), ToolFailure>;
    /// Runs the legacy variant's tool on a text.
    fn restore(&mut self, text: &str) -> Result<(), ToolFailure>;
}

/// Removes the chains of upstream's mode ipvs, with the rules that lead to them; returns their number.
pub(crate) fn retire_of_ipvs(tables: &mut impl BothVariants) -> io::Result<usize> {
    retire(tables, OF_IPVS)
}

/// Removes those of upstream's mode userspace in the same way.
pub(crate) fn retire_of_userspace(tables: &mut impl BothVariants) -> io::Result<usize> {
    retire(tables, OF_USERSPACE)
}

fn retire(tables: &mut impl BothVariants, all: [(Table, &[&str]); 2]) -> io::Result<usize> {
    let mut removed = 0;
    for (table, chains) in all {
        let removal = Removal { chains: &|name| chains.contains(&name), rules: &|_, _| true };
        removed += tables.remove_of_nft(table, &removal)?;
        if tables.legacy_entries(table)?.is_some_and(|entries| entries > legacy::empty(table)) {
            removed += remove_legacy(tables, table, chains).map_err(io::Error::other)?;
        }
    }
    Ok(removed)
}

fn remove_legacy(tables: &mut impl BothVariants, table: Table, chains: &[&str]) -> Result<usize, ToolFailure> {
    let (mut leading, mut there): (Vec<(IptablesChainName, String)>, Vec<IptablesChainName>) = (Vec::new(), Vec::new());
    let saved = tables.save(table, &mut |line| match line {
        OutputLine::Chain { name, .. } if chains.contains(&name) => there.extend(IptablesChainName::new(name)),
        OutputLine::Rule { chain, text } if !chains.contains(&chain) && chains.contains(&target(text)) => {
            leading.extend(IptablesChainName::new(chain).map(|chain| (chain, text.to_owned())));
        }
        _ => {}
    });
    match saved {
        // Only the tool can list them. Domain iptables-legacy reports that it is missing.
        Err(ToolFailure::Missing { .. } | ToolFailure::TooOld { .. }) => return Ok(0),
        saved => saved?,
    }
    if there.is_empty() {
        return Ok(0);
    }
    let mut restore = Restore::new(tables.family());
    restore.table(table);
    for chain in &there {
        // Flushes it.
        restore.declare(*chain);
    }
    for (chain, text) in &leading {
        restore.delete_text(*chain, text);
    }
    for chain in &there {
        restore.remove(*chain);
    }
    restore.commit();
    tables.restore(restore.text())?;
    Ok(there.len())
}

/// The chain that a rule leads to; empty for another target.
fn target(rule: &str) -> &str {
    let by = |option| rule.rsplit_once(option).map(|(_, target)| target);
    by("-j ").or_else(|| by("-g ")).unwrap_or_default()
}

#[cfg(test)]
mod tests;
