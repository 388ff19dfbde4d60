//! Queries to nf_tables about the tables of the nft variant: their chains, at a cost independent of the number of rules; and the
//! removal of chains without the tool.

use std::io;

use ferry_family::Family;

use super::Table;
use crate::errno::ErrorClass;
use crate::nft::{Batch, CommitFailure, Expr, Rule, Socket, Verdict};

/// A chain of a table of the nft variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// the table
    pub table: Table,
    /// its name
    pub name: String,
    /// it has a hook, as only built-in chains have
    pub builtin: bool,
}

/// Lists the chains of [`Table::ALL`] in the calling thread's network namespace. Empty if this kernel has no nf_tables.
///
/// # Errors
/// The system's error; `PermissionDenied` without `CAP_NET_ADMIN`; `Interrupted` if other programs keep changing the tables.
pub fn chains(family: Family) -> io::Result<Vec<Chain>> {
    let mut found = Vec::new();
    let read = Socket::open().and_then(|mut socket| {
        for table in Table::ALL {
            match socket.chains(family, table.name()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                chains => found.extend(chains?.into_iter().map(|chain| Chain {
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
pub fn has_rules(family: Family, chain: &Chain) -> io::Result<bool> {
    let rules = Socket::open()?.rules(family, chain.table.name(), Some(&chain.name))?;
    Ok(!rules.is_empty())
}

/// Deletes the unwanted chains of a table with their rules, and the rules of its other chains that lead to them, in one transaction.
/// Returns the number of deleted chains.
///
/// # Errors
/// As for [`chains`]. Nothing is deleted then.
pub fn remove_chains(family: Family, table: Table, is_unwanted: &dyn Fn(&str) -> bool) -> io::Result<usize> {
    let mut socket = Socket::open()?;
    // Rules that come in between may lead to the chains.
    let generation = socket.generation();
    let there = chains(family)?.into_iter().filter(|chain| chain.table == table).map(|chain| chain.name);
    let (unwanted, others): (Vec<String>, Vec<String>) = there.partition(|name| is_unwanted(name));
    if unwanted.is_empty() {
        return Ok(0);
    }
    let mut batch = Batch::new(family, table.name());
    batch.set_generation(generation?);
    for other in &others {
        for (chain, rule) in socket.rules(family, table.name(), Some(other))? {
            if leads_to(&rule, is_unwanted) {
                batch.delete_rule(&chain, rule.handle);
            }
        }
    }
    unwanted.iter().for_each(|chain| batch.flush_chain(chain));
    unwanted.iter().for_each(|chain| batch.delete_chain(chain));
    match socket.commit(batch) {
        Ok(_) => Ok(unwanted.len()),
        Err(CommitFailure::Io(error) | CommitFailure::Lost(error)) => Err(error),
        Err(failure @ CommitFailure::Messages(_)) => Err(io::Error::other(failure.to_string())),
    }
}

fn leads_to(rule: &Rule, is_unwanted: &dyn Fn(&str) -> bool) -> bool {
    rule.exprs.iter().any(|expr| match expr {
        Expr::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => is_unwanted(chain),
        _ => false,
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
                let show = |chain: &Chain| {
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
            let unwanted = |name: &str| ["ONE", "TWO", "ABSENT"].contains(&name);
            assert_eq!(remove_chains(Family::V4, Table::Filter, &|name| name == "ONE").unwrap(), 0, "no tables");
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
            assert_eq!(remove_chains(Family::V4, Table::Nat, &unwanted).unwrap(), 0);
            assert_eq!(remove_chains(Family::V4, Table::Filter, &unwanted).unwrap(), 2);
            let left = Command::new("iptables-nft").args(["-S"]).output().unwrap().stdout;
            let left = String::from_utf8(left).unwrap();
            let left: Vec<&str> = left.lines().filter(|line| !line.starts_with("-P")).collect();
            assert_eq!(left, ["-N KEPT", "-A INPUT -j KEPT", "-A KEPT -j DROP"]);
        };
        Namespace::new().unwrap().run(run).unwrap();
    }
}
