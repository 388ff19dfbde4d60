//! Queries to nf_tables about the tables of the nft variant: their chains, at a cost independent of the number of rules.

use std::io;

use ferry_family::Family;

use super::Table;
use crate::errno::ErrorClass;
use crate::nft::Socket;

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
}
