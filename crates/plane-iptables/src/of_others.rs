//! Removes the chains that only upstream's modes ipvs and userspace make, which the proxy of mode iptables doesn't know.
//!
//! Other chains of mode ipvs have the same names in both modes. Some refer to ipsets, which can't be destroyed before.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::iptables::nft::Removal;
use ferry_kernel::iptables::{Backend, IptablesChainName, OutputLine, Restore, Table, Tool, ToolFailure, legacy};

use crate::without_tool;

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

/// Removes the chains of upstream's mode ipvs from the tables of both variants, with the rules that lead to them; returns their
/// number. Those of the nft variant need no tool.
///
/// # Errors
/// The system's error; of the legacy variant also the tool's, or that it is missing.
pub fn retire_of_ipvs(family: Family) -> io::Result<usize> {
    retire(family, OF_IPVS)
}

/// Removes those of upstream's mode userspace in the same way.
///
/// # Errors
/// As [`retire_of_ipvs`].
pub fn retire_of_userspace(family: Family) -> io::Result<usize> {
    retire(family, OF_USERSPACE)
}

fn retire(family: Family, all: [(Table, &[&str]); 2]) -> io::Result<usize> {
    let mut removed = 0;
    for (table, chains) in all {
        let removal = Removal { chains: &|name| chains.contains(&name), rules: &|_, _| true };
        removed += without_tool::remove(family, table, &removal)?;
        if legacy::info(family, table)?.is_some_and(|info| info.entries > legacy::empty(table)) {
            removed += remove_legacy(family, table, chains).map_err(io::Error::other)?;
        }
    }
    Ok(removed)
}

fn remove_legacy(family: Family, table: Table, chains: &[&str]) -> Result<usize, ToolFailure> {
    let tool = match Tool::find(family, Some(Backend::Legacy)) {
        // Only the tool can list them. Domain iptables-legacy reports that it is missing.
        Err(ToolFailure::Missing { .. } | ToolFailure::TooOld { .. }) => return Ok(0),
        tool => tool?,
    };
    let (mut leading, mut there): (Vec<(IptablesChainName, String)>, Vec<IptablesChainName>) = (Vec::new(), Vec::new());
    tool.save(table, &mut |line| match line {
        OutputLine::Chain { name, .. } if chains.contains(&name) => there.extend(IptablesChainName::new(name)),
        OutputLine::Rule { chain, text } if !chains.contains(&chain) && chains.contains(&target(text)) => {
            leading.extend(IptablesChainName::new(chain).map(|chain| (chain, text.to_owned())));
        }
        _ => {}
    })?;
    if there.is_empty() {
        return Ok(0);
    }
    let mut restore = Restore::new(family);
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
    tool.restore_by(&mut |process| process.write(restore.text()))?;
    Ok(there.len())
}

/// The chain that a rule leads to; empty for another target.
fn target(rule: &str) -> &str {
    let by = |option| rule.rsplit_once(option).map(|(_, target)| target);
    by("-j ").or_else(|| by("-g ")).unwrap_or_default()
}
