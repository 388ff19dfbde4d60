//! Runs `iptables` and `ip6tables` in both variants: as an oracle, in place of other programs of a node, and as a source of
//! foreign changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use ferry_api::object::Family;
pub use ferry_kernel::iptables::Backend;

use crate::host::Host;

/// The rules of both families in the tool's output, without counters.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct IptablesRules {
    /// rules by chain, in order
    pub chains: BTreeMap<TableChain, Vec<String>>,
}

/// A chain of a table of a family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableChain {
    /// the family
    pub family: Family,
    /// `nat`
    pub table: String,
    /// `KUBE-SERVICES`
    pub name: String,
}

/// The chain in table mangle by which a kubelet marks the iptables variant in use.
pub const HINT: &str = "KUBE-IPTABLES-HINT";
/// A kubelet's chains, which kube-proxy must not delete.
const OF_KUBELET: [&str; 3] = [HINT, "KUBE-KUBELET-CANARY", "KUBE-FIREWALL"];

/// Tables and chains in which each rule matches the packets of one frontend.
const DISPATCH: [(&str, &str); 6] = [
    ("nat", "KUBE-SERVICES"),
    ("nat", "KUBE-NODEPORTS"),
    ("filter", "KUBE-SERVICES"),
    ("filter", "KUBE-EXTERNAL-SERVICES"),
    ("filter", "KUBE-NODEPORTS"),
    ("filter", "KUBE-PROXY-FIREWALL"),
];

/// Name of the tool of a variant and family, for example `ip6tables-legacy`.
pub fn tool(backend: Backend, family: Family) -> String {
    let tool = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    format!("{tool}-{}", backend.name())
}

/// Runs the tool with these arguments.
///
/// # Panics
/// If it fails, with its standard error.
pub fn run(host: &Host, backend: Backend, family: Family, arguments: &str) -> String {
    host.sh(&tool(backend, family), &arguments.split(' ').collect::<Vec<_>>())
}

/// Creates the chain by which a kubelet marks the variant in use, in this variant alone, in both families. True if the other variant had it.
pub fn hint(host: &Host, backend: Backend) -> bool {
    let mut has_moved = false;
    for family in Family::ALL {
        for variant in [Backend::Nft, Backend::Legacy] {
            // Running the legacy tool creates its tables.
            let is_readable = variant == Backend::Nft || has_legacy(host, family);
            let is_marked = is_readable && save(host, variant, family).contains(&format!(":{HINT} "));
            if variant == backend && !is_marked {
                run(host, variant, family, &format!("-t mangle -N {HINT}"));
            } else if variant != backend && is_marked {
                run(host, variant, family, &format!("-t mangle -X {HINT}"));
                has_moved = true;
            }
        }
    }
    has_moved
}

/// Adds the rules of an `iptables-save` text to the existing ones (`--noflush`).
///
/// # Panics
/// If the tool rejects it.
pub fn restore(host: &Host, backend: Backend, family: Family, text: &str) {
    let tool = format!("{}-restore", tool(backend, family));
    if let Err(complaint) = host.feed(&tool, &["--noflush"], text) {
        panic!("{tool}: {complaint}\n{text}");
    }
}

/// The rules of upstream's proxy of this release in one family, in the format of `iptables-save`.
///
/// # Panics
/// If `testdata/upstream/iptables` has no such release.
pub fn left_by_upstream(version: &str, family: Family) -> String {
    let file = match family {
        Family::V4 => "iptables-save.txt",
        Family::V6 => "ip6tables-save.txt",
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/upstream/iptables");
    let path = folder.join(version).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Creates the nfacct counters that such rules refer to, in the network namespace of the calling thread.
///
/// # Panics
/// If the kernel lacks them (`nfnetlink_acct`), which the tests need.
pub fn create_counters() {
    for name in ["ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"] {
        ferry_kernel::nfacct::create(name).expect("a kernel with nfacct is needed");
    }
}

/// Output of `iptables-save` of a family.
pub fn save(host: &Host, backend: Backend, family: Family) -> String {
    host.sh(&format!("{}-save", tool(backend, family)), &[])
}

// === impl IptablesRules ===

impl IptablesRules {
    /// Reads the rules of the namespace. The legacy tool is only run if its tables exist, since running it creates them.
    pub fn of(host: &Host, backend: Backend) -> Self {
        let mut rules = Self::default();
        for family in Family::ALL {
            if backend == Backend::Nft || has_legacy(host, family) {
                rules.read(family, &save(host, backend, family));
            }
        }
        rules
    }

    /// Adds the rules of an `iptables-save` text.
    pub fn read(&mut self, family: Family, text: &str) {
        let mut table = String::new();
        let chain = |table: &String, name: &str| TableChain { family, table: table.clone(), name: name.to_owned() };
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            } else if let Some(declared) = line.strip_prefix(':') {
                let name = declared.split(' ').next().unwrap_or_default();
                self.chains.entry(chain(&table, name)).or_default();
            } else if let Some((name, rule)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' ')) {
                self.chains.entry(chain(&table, name)).or_default().push(rule.to_owned());
            }
        }
    }

    /// The rules of a chain, in order; empty if it doesn't exist.
    pub fn rules(&self, family: Family, table: &str, name: &str) -> &[String] {
        let chain = TableChain { family, table: table.to_owned(), name: name.to_owned() };
        self.chains.get(&chain).map_or(&[], Vec::as_slice)
    }

    /// The names of the chains of a table.
    pub fn names<'a>(&'a self, family: Family, table: &'a str) -> impl Iterator<Item = &'a str> {
        let mine = self.chains.keys().filter(move |chain| chain.family == family && chain.table == table);
        mine.map(|chain| chain.name.as_str())
    }

    /// Number of rules.
    pub fn number(&self) -> usize {
        self.chains.values().map(Vec::len).sum()
    }

    /// Descriptions of a kube-proxy's chains and jumps, except those shared with a kubelet.
    pub fn of_proxy(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let is_ours = |name: &str| name.starts_with("KUBE-") && !OF_KUBELET.contains(&name);
        for (chain, rules) in &self.chains {
            if is_ours(&chain.name) {
                found.insert(format!("chain {chain}"));
            }
            let jumps = rules.iter().filter(|rule| rule.rsplit(' ').next().is_some_and(is_ours));
            found.extend(jumps.map(|rule| format!("{chain}: {rule}")));
        }
        found
    }

    /// The same with the rules of each chain sorted.
    pub fn sorted(mut self) -> Self {
        self.chains.values_mut().for_each(|rules| rules.sort());
        self
    }

    /// The same with the rules of dispatch chains sorted, whose order has no effect: each matches packets of its own frontend. The
    /// jump to the node ports stays last.
    pub fn sorted_dispatch(mut self) -> Self {
        let is_dispatch = |chain: &TableChain| DISPATCH.contains(&(chain.table.as_str(), chain.name.as_str()));
        for (_, rules) in self.chains.iter_mut().filter(|(chain, _)| is_dispatch(chain)) {
            let jumps_at = rules.iter().position(|rule| rule.ends_with("-j KUBE-NODEPORTS")).unwrap_or(rules.len());
            rules.get_mut(..jumps_at).into_iter().for_each(<[String]>::sort);
        }
        self
    }

    /// The lines that only one of both has, at most fifty.
    pub fn difference(&self, other: &Self) -> String {
        let mut lines = Vec::new();
        let all: BTreeSet<&TableChain> = self.chains.keys().chain(other.chains.keys()).collect();
        for chain in all {
            let (mine, theirs) = (self.chains.get(chain), other.chains.get(chain));
            if mine == theirs {
                continue;
            }
            for (mark, here, there) in [("-", mine, theirs), ("+", theirs, mine)] {
                let Some(here) = here else { continue };
                let whole = if there.is_none() { " as a whole" } else { "" };
                lines.push(format!("  {mark} {chain}{whole}"));
                lines.extend(here.iter().map(|rule| format!("      {rule}")));
            }
        }
        lines.truncate(50);
        lines.join("\n")
    }
}

/// True if the namespace has legacy tables.
fn has_legacy(host: &Host, family: Family) -> bool {
    let file = match family {
        Family::V4 => "ip_tables_names",
        Family::V6 => "ip6_tables_names",
    };
    let path = format!("/proc/thread-self/net/{file}");
    host.run(move || std::fs::read_to_string(path).is_ok_and(|names| !names.is_empty()))
}

impl fmt::Display for TableChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.family, self.table, self.name)
    }
}

impl fmt::Debug for IptablesRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.chains).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "# a comment
*filter
:INPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A INPUT -s 192.0.2.1/32 -j DROP
COMMIT
";

    #[test]
    fn a_listing_is_read() {
        let mut rules = IptablesRules::default();
        rules.read(Family::V4, SAVED);
        assert_eq!(rules.names(Family::V4, "filter").collect::<Vec<_>>(), ["INPUT", "KUBE-FIREWALL", "KUBE-SERVICES"]);
        assert_eq!(rules.number(), 3);
        assert_eq!(rules.rules(Family::V4, "filter", "INPUT").len(), 3);
        let of_proxy = [
            "IPv4 filter INPUT: -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
            "chain IPv4 filter KUBE-SERVICES",
        ];
        assert_eq!(rules.of_proxy().into_iter().collect::<Vec<_>>(), of_proxy);
        let mut other = rules.clone();
        other.read(Family::V4, "*filter\n-A KUBE-SERVICES -j DROP\n");
        assert!(rules.difference(&other).contains("+ IPv4 filter KUBE-SERVICES"), "{}", rules.difference(&other));
        assert_eq!(rules.difference(&rules), "");
    }

    #[test]
    fn dispatch_rules_are_sorted_but_for_the_last_jump() {
        let of = |lines: &[&str]| {
            let mut rules = IptablesRules::default();
            let lines: Vec<String> = lines.iter().map(|line| format!("-A {line}\n")).collect();
            rules.read(Family::V4, &format!("*nat\n{}", lines.concat()));
            rules.sorted_dispatch()
        };
        let last = "KUBE-SERVICES -j KUBE-NODEPORTS";
        assert_eq!(
            of(&["KUBE-SERVICES -d b", "KUBE-SERVICES -d a", last]),
            of(&["KUBE-SERVICES -d a", "KUBE-SERVICES -d b", last])
        );
        assert_ne!(of(&["KUBE-SERVICES -d a", last]), of(&[last, "KUBE-SERVICES -d a"]));
        assert_ne!(of(&["KUBE-SVC-A -d b", "KUBE-SVC-A -d a"]), of(&["KUBE-SVC-A -d a", "KUBE-SVC-A -d b"]));
    }
}
