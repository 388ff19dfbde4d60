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
    retire_by(&mut |table, removal| remove(family, table, removal))
}

fn retire_by(remove: &mut dyn FnMut(Table, &Removal<'_>) -> io::Result<usize>) -> io::Result<usize> {
    let mut removed = 0;
    // Translation first: what filter still does without it is right for the mode that serves now.
    for table in [Table::Nat, Table::Filter, Table::Mangle] {
        let is_ours = |name: &str| IptablesChainName::new(name).is_some_and(|name| names::is_ours(table, name));
        removed += remove(table, &Removal { chains: &is_ours, rules: &is_our_jump })?;
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
    retry(&mut || nft::remove_chains(family, table, removal))
}

fn retry(remove: &mut dyn FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let mut least = 0;
    for _ in 1..TRIES {
        match remove() {
            // If only the answer was lost, they are gone, and the next attempt finds none.
            Err(error) if ErrorClass::of(&error) == ErrorClass::Transient => least = 1,
            removed => return removed.map(|removed| removed.max(least)),
        }
    }
    remove().map(|removed| removed.max(least))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base;

    #[test]
    fn the_chains_of_each_table_go_translation_first() {
        let ours = ["KUBE-SERVICES", "KUBE-SVC-XPGD46QRK7WJZT7O", "KUBE-FORWARD", "KUBE-PROXY-CANARY"];
        let others = ["KUBE-FIREWALL", "INPUT", "a name that no chain has, since it is too long"];
        let mut seen = Vec::new();
        let removed = retire_by(&mut |table, removal| {
            assert!(!others.iter().any(|name| (removal.chains)(name)), "{table}");
            let gone: Vec<&str> = ours.into_iter().filter(|name| (removal.chains)(name)).collect();
            let count = gone.len();
            seen.push((table, gone));
            Ok(count)
        });
        assert_eq!(removed.unwrap(), 3 + 3 + 1);
        let [services, service, forward, canary] = ours;
        let wanted = [
            (Table::Nat, vec![services, service, canary]),
            (Table::Filter, vec![services, forward, canary]),
            (Table::Mangle, vec![canary]),
        ];
        assert_eq!(seen, wanted);
        let failed = retire_by(&mut |table, _| match table {
            Table::Filter => Err(io::ErrorKind::PermissionDenied.into()),
            Table::Nat | Table::Mangle => Ok(1),
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn only_jumps_from_built_in_chains_to_entry_chains_are_ours() {
        for (builtin, to, wanted) in [
            (true, names::SERVICES.as_str(), true),
            (true, names::POSTROUTING.as_str(), true),
            (true, names::FORWARD.as_str(), true),
            (true, names::PROXY_FIREWALL.as_str(), true),
            (false, names::SERVICES.as_str(), false),
            (false, names::FORWARD.as_str(), false),
            (true, names::MARK_MASQ.as_str(), false),
            (true, names::CANARY.as_str(), false),
            (true, "KUBE-SVC-XPGD46QRK7WJZT7O", false),
            (true, "CILIUM_INPUT", false),
        ] {
            let from = IptablesChain { table: Table::Nat, name: base::OUTPUT.to_string(), builtin };
            assert_eq!(is_our_jump(&from, to), wanted, "{builtin}, {to}");
        }
    }

    #[test]
    fn only_a_refusal_that_another_commit_caused_is_tried_again_and_not_for_ever() {
        use io::ErrorKind::{Interrupted, PermissionDenied};
        for (answers, wanted, attempts) in [
            (vec![Ok(3)], Ok(3), 1),
            (vec![Ok(0)], Ok(0), 1),
            (vec![Err(Interrupted), Ok(3)], Ok(3), 2),
            // The answer to the first one was lost, so it may have removed some.
            (vec![Err(Interrupted), Ok(0)], Ok(1), 2),
            (vec![Err(PermissionDenied), Ok(3)], Err(PermissionDenied), 1),
            (vec![Err(Interrupted), Err(PermissionDenied), Ok(3)], Err(PermissionDenied), 2),
            ([vec![Err(Interrupted); 4], vec![Ok(3)]].concat(), Ok(3), 5),
            ([vec![Err(Interrupted); 4], vec![Ok(0)]].concat(), Ok(1), 5),
            (vec![Err(Interrupted); 9], Err(Interrupted), 5),
        ] {
            let mut made = 0;
            let result = retry(&mut || {
                made += 1;
                answers[made - 1].map_err(io::Error::from)
            });
            assert_eq!((result.map_err(|error| error.kind()), made), (wanted, attempts), "{answers:?}");
        }
    }
}
