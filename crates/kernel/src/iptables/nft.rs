//! Queries to nf_tables about the tables of the nft variant: their chains, at a cost independent of the number of rules; and the
//! removal of chains without the tool.

use std::collections::HashSet;
use std::io;

use ferry_family::Family;

use super::Table;
use crate::errno::ErrorClass;
use crate::nft::{CommitFailure, Expr, NftBatch, NftSocket, Rule, Verdict};

/// A chain of a table of the nft variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IptablesChain {
    /// the table
    pub table: Table,
    /// its name
    pub name: String,
    /// it has a hook, as only built-in chains have
    pub builtin: bool,
}

/// What is removed of a table.
pub struct Removal<'a> {
    /// true for the name of a chain that goes
    pub chains: &'a dyn Fn(&str) -> bool,
    /// true for a rule that goes with the chain it leads to: the chain that has the rule, and the name of the one that goes
    pub rules: &'a dyn Fn(&IptablesChain, &str) -> bool,
}

/// Lists the chains of [`Table::ALL`] in the calling thread's network namespace. Empty if this kernel has no nf_tables.
///
/// # Errors
/// The system's error; `PermissionDenied` without `CAP_NET_ADMIN`; `Interrupted` if other programs keep changing the tables.
pub fn chains(family: Family) -> io::Result<Vec<IptablesChain>> {
    let mut found = Vec::new();
    let read = NftSocket::open().and_then(|mut socket| {
        for table in Table::ALL {
            match socket.chains(family, table.name()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                chains => found.extend(chains?.into_iter().map(|chain| IptablesChain {
                    table,
                    name: chain.name,
                    builtin: chain.hook.is_some(),
                })),
            }
        }
        Ok(())
    });
    match read {
        Err(error) if ErrorClass::of(&error).lacks_subsystem() => Ok(Vec::new()),
        read => read.map(|()| found),
    }
}

/// True if a chain has rules.
///
/// # Errors
/// As for [`chains`]; `NotFound` if the table is gone.
pub fn has_rules(family: Family, chain: &IptablesChain) -> io::Result<bool> {
    let rules = NftSocket::open()?.rules(family, chain.table.name(), Some(&chain.name))?;
    Ok(!rules.is_empty())
}

/// Deletes chains of a table with their rules, and rules of other chains that lead to them, in one transaction. A chain that another rule
/// still leads to is emptied, and stays. Returns the number of deleted chains.
///
/// # Errors
/// As for [`chains`]; of class [`ErrorClass::Transient`] if another program has committed since the chains were read, and if the kernel's
/// answer is lost: then everything may be deleted. In all other cases nothing is.
pub fn remove_chains(family: Family, table: Table, removal: &Removal<'_>) -> io::Result<usize> {
    let is_unwanted = |chain: &IptablesChain| chain.table == table && (removal.chains)(&chain.name);
    if !chains(family)?.iter().any(is_unwanted) {
        return Ok(0);
    }
    let mut socket = NftSocket::open()?;
    let mut batch = NftBatch::new(family, table.name());
    // What comes in from here on may lead to the chains.
    batch.set_generation(socket.generation()?);
    let there = chains(family)?.into_iter().filter(|chain| chain.table == table);
    let (unwanted, others): (Vec<IptablesChain>, Vec<IptablesChain>) = there.partition(is_unwanted);
    let mut led_to = HashSet::new();
    for other in &others {
        for (chain, rule) in socket.rules(family, table.name(), Some(&other.name))? {
            let Some(to) = target(&rule).filter(|to| (removal.chains)(to)) else { continue };
            if (removal.rules)(other, to) {
                batch.delete_rule(&chain, rule.handle);
            } else {
                led_to.insert(to.to_owned());
            }
        }
    }
    let (emptied, deleted): (Vec<IptablesChain>, Vec<IptablesChain>) =
        unwanted.into_iter().partition(|chain| led_to.contains(&chain.name));
    for chain in &emptied {
        if has_rules(family, chain)? {
            batch.flush_chain(&chain.name);
        }
    }
    deleted.iter().for_each(|chain| batch.flush_chain(&chain.name));
    deleted.iter().for_each(|chain| batch.delete_chain(&chain.name));
    match socket.commit(batch) {
        Ok(_) => Ok(deleted.len()),
        Err(CommitFailure::Io(error) | CommitFailure::Lost(error)) => Err(error),
        Err(CommitFailure::Messages(mut errors)) => Err(errors.swap_remove(0).error.into()),
    }
}

/// The chain that a rule leads to.
fn target(rule: &Rule) -> Option<&str> {
    rule.exprs.iter().find_map(|expr| match expr {
        Expr::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(chain.as_str()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn chains_are_those_of_the_three_tables() {
        let run = || {
            assert_eq!(chains(Family::V4).unwrap(), []);
            for (program, arguments) in [
                ("iptables-nft", "-t nat -N ONE"),
                ("iptables-nft", "-t mangle -A INPUT -j ACCEPT"),
                ("iptables-nft", "-t raw -N TWO"),
                ("ip6tables-nft", "-t filter -N THREE"),
                ("nft", "add table ip other"),
                ("nft", "add chain ip other FOUR"),
            ] {
                assert!(Command::new(program).args(arguments.split(' ')).status().unwrap().success(), "{arguments}");
            }
            let shown = |family| {
                let chains = chains(family).unwrap();
                let show = |chain: &IptablesChain| {
                    let rules = has_rules(family, chain).unwrap();
                    format!("{} {} {} {rules}", chain.table, chain.name, chain.builtin)
                };
                chains.iter().map(show).collect::<Vec<_>>()
            };
            assert_eq!(shown(Family::V4), ["mangle INPUT true true", "nat ONE false false"]);
            assert_eq!(shown(Family::V6), ["filter THREE false false"]);
        };
        Namespace::new().unwrap().run(run).unwrap();
    }

    #[test]
    fn chains_are_removed_with_the_rules_that_lead_to_them() {
        let run = || {
            let named = |name: &str| ["ONE", "TWO", "ABSENT"].contains(&name);
            let all = Removal { chains: &named, rules: &|_, _| true };
            assert_eq!(remove_chains(Family::V4, Table::Filter, &all).unwrap(), 0, "no tables");
            for rule in [
                "-N ONE",
                "-N TWO",
                "-N KEPT",
                "-A INPUT -s 192.0.2.1/32 -j ONE",
                "-A INPUT -j KEPT",
                "-A ONE -p tcp -g TWO",
                "-A KEPT -j TWO",
                "-A KEPT -j DROP",
            ] {
                assert!(Command::new("iptables-nft").args(rule.split(' ')).status().unwrap().success(), "{rule}");
            }
            assert_eq!(remove_chains(Family::V4, Table::Nat, &all).unwrap(), 0);
            assert_eq!(remove_chains(Family::V4, Table::Filter, &all).unwrap(), 2);
            let left = Command::new("iptables-nft").args(["-S"]).output().unwrap().stdout;
            let left = String::from_utf8(left).unwrap();
            let left: Vec<&str> = left.lines().filter(|line| !line.starts_with("-P")).collect();
            assert_eq!(left, ["-N KEPT", "-A INPUT -j KEPT", "-A KEPT -j DROP"]);
        };
        Namespace::new().unwrap().run(run).unwrap();
    }

    fn tool(arguments: &str) {
        let status = Command::new("iptables-nft").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "{arguments}");
    }

    fn listed() -> Vec<String> {
        let left = Command::new("iptables-nft").args(["-S"]).output().unwrap().stdout;
        let left = String::from_utf8(left).unwrap();
        left.lines().filter(|line| !line.starts_with("-P")).map(str::to_owned).collect()
    }

    #[test]
    fn a_chain_that_others_lead_to_is_emptied_and_stays() {
        let run = || {
            for rule in
                ["-N ONE", "-N TWO", "-N KEPT", "-A INPUT -j ONE", "-A ONE -j TWO", "-A KEPT -j TWO", "-A TWO -j DROP"]
            {
                tool(rule);
            }
            let builtin = Removal { chains: &|name| name == "ONE" || name == "TWO", rules: &|from, _| from.builtin };
            assert_eq!(remove_chains(Family::V4, Table::Filter, &builtin).unwrap(), 1);
            assert_eq!(listed(), ["-N KEPT", "-N TWO", "-A KEPT -j TWO"]);
            let before = NftSocket::open().unwrap().generation().unwrap();
            assert_eq!(remove_chains(Family::V4, Table::Filter, &builtin).unwrap(), 0);
            assert_eq!(NftSocket::open().unwrap().generation().unwrap(), before, "nothing is written again");
        };
        Namespace::new().unwrap().run(run).unwrap();
    }

    #[test]
    fn a_commit_of_another_program_since_the_reading_is_transient() {
        let run = || {
            for rule in ["-N ONE", "-A INPUT -j ONE"] {
                tool(rule);
            }
            let intruding = |_: &IptablesChain, _: &str| {
                tool("-A FORWARD -j ONE");
                true
            };
            let error =
                remove_chains(Family::V4, Table::Filter, &Removal { chains: &|name| name == "ONE", rules: &intruding });
            assert_eq!(ErrorClass::of(&error.unwrap_err()), ErrorClass::Transient);
            assert_eq!(listed(), ["-N ONE", "-A INPUT -j ONE", "-A FORWARD -j ONE"]);
        };
        Namespace::new().unwrap().run(run).unwrap();
    }
}
