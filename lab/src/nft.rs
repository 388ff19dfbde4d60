//! Runs the `nft` tool, as an oracle and as a source of foreign changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ferry_kernel::nft::NftSocket;

use crate::host::Host;

/// A ruleset from `nft`'s listing in canonical form, equal for two listings of the same ruleset: objects by name, elements
/// of sets and maps unordered, counters and expirations left out.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Ruleset {
    /// content by table (`ip kube-proxy`) and object (`chain services`; empty for the table's own lines)
    pub objects: BTreeMap<(String, String), ObjectContent>,
}

/// Content of an object.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ObjectContent {
    /// its lines in order: rules, or the properties of a set
    pub lines: Vec<String>,
    /// its elements
    pub elements: BTreeSet<String>,
}

/// Output of `nft list ruleset`, without values that change by themselves.
pub fn list(host: &Host) -> String {
    host.sh("nft", &["--stateless", "list", "ruleset"])
}

/// Runs a script as one transaction.
///
/// # Panics
/// If the kernel or the tool rejects it.
pub fn load(host: &Host, script: &str) {
    try_load(host, script).unwrap_or_else(|complaint| panic!("{complaint}\n{script}"));
}

/// Runs a script as one transaction.
///
/// # Errors
/// If the kernel or the tool rejects it: the tool's message.
pub fn try_load(host: &Host, script: &str) -> Result<(), String> {
    host.feed("nft", &["-f", "-"], script).map(drop)
}

/// The generation of nf_tables in the namespace: it increases with each commit by any process.
pub fn generation(host: &Host) -> u32 {
    host.run(|| {
        let mut socket = NftSocket::open().expect("a netlink socket");
        socket.generation().expect("the generation's number")
    })
}

// === impl Ruleset ===

impl Ruleset {
    /// Reads the ruleset of the namespace.
    pub fn of(host: &Host) -> Self {
        Self::parse(&list(host))
    }

    /// Parses a listing.
    pub fn parse(text: &str) -> Self {
        let mut ruleset = Self::default();
        let (mut table, mut object, mut in_elements) = (String::new(), String::new(), false);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let key = || (table.clone(), object.clone());
            if in_elements || line.starts_with("elements = {") {
                let content = ruleset.objects.entry(key()).or_default();
                let bare = line.trim_start_matches("elements = {").trim_end_matches('}');
                content.elements.extend(elements(bare));
                in_elements = !line.ends_with('}');
            } else if let Some(name) = line.strip_prefix("table ").and_then(|rest| rest.strip_suffix(" {")) {
                (table, object) = (name.to_owned(), String::new());
                ruleset.objects.entry((table.clone(), String::new())).or_default();
            } else if let Some(name) = line.strip_suffix(" {") {
                object = name.to_owned();
                ruleset.objects.entry((table.clone(), object.clone())).or_default();
            } else if line == "}" {
                object.clear();
            } else {
                ruleset.objects.entry(key()).or_default().lines.push(line.to_owned());
            }
        }
        ruleset
    }

    /// The part in which two proxies must agree after different histories: without the order of endpoints in slots, without
    /// unreferenced chains and source ranges, without the affinities of clients.
    pub fn essence(mut self) -> Self {
        for ((_, object), content) in &mut self.objects {
            if ["map endpoints", "map nodeport-endpoints"].contains(&object.as_str()) {
                content.elements = content.elements.iter().map(|element| without_slot(element)).collect();
            } else if content.lines.iter().any(|line| line.contains("dynamic")) {
                content.elements.clear();
            }
        }
        self.without_spares()
    }

    /// The same without unreferenced chains and sets of source ranges: the proxy deletes both some time after the commit that
    /// took them out of use.
    pub fn without_spares(mut self) -> Self {
        let tables: BTreeSet<_> = self.objects.keys().map(|(table, _)| table.clone()).collect();
        for table in tables {
            let mine = self.objects.iter().filter(|((own, _), _)| *own == table);
            let named: BTreeSet<_> = mine.flat_map(|(_, content)| content.words()).map(str::to_owned).collect();
            self.objects.retain(|(own, object), content| {
                let is_base = content.lines.iter().any(|line| line.contains(" hook "));
                let in_use = match object.split_once(' ') {
                    Some(("chain", name)) => is_base || named.contains(name),
                    Some(("set", name)) if name.starts_with("sources-") => named.contains(&format!("@{name}")),
                    _ => true,
                };
                *own != table || in_use
            });
        }
        self
    }

    /// The names of the chains, sets and maps of a table.
    pub fn names<'a>(&'a self, table: &'a str) -> impl Iterator<Item = &'a str> {
        let mine = self.objects.keys().filter(move |(own, object)| own == table && !object.is_empty());
        mine.map(|(_, object)| object.as_str())
    }

    /// The content of an object.
    ///
    /// # Panics
    /// If there is none.
    pub fn get(&self, table: &str, object: &str) -> &ObjectContent {
        let key = (table.to_owned(), object.to_owned());
        self.objects.get(&key).unwrap_or_else(|| panic!("no {object} in table {table}"))
    }

    /// Difference to another ruleset: lines only in this one (-) and only in the other (+), limited to a page.
    pub fn difference(&self, other: &Self) -> String {
        let nothing = ObjectContent::default();
        let mut lines = Vec::new();
        for (mark, these, those) in [('-', self, other), ('+', other, self)] {
            for (key, content) in &these.objects {
                let there = those.objects.get(key);
                if there == Some(content) {
                    continue;
                }
                let whole = if there.is_none() { " as a whole" } else { "" };
                lines.push(format!("  {mark} {} {}{whole}", key.0, key.1));
                let there = there.unwrap_or(&nothing);
                let new = content.lines.iter().filter(|line| !there.lines.contains(line));
                let new = new.chain(content.elements.difference(&there.elements));
                lines.extend(new.map(|line| format!("      {line}")));
            }
        }
        lines.truncate(50);
        lines.join("\n")
    }
}

impl fmt::Debug for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.objects).finish()
    }
}

// === impl ObjectContent ===

impl ObjectContent {
    fn words(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().chain(&self.elements).flat_map(|line| line.split_whitespace())
    }
}

/// Splits a line of elements at commas; elements never contain any here.
fn elements(line: &str) -> impl Iterator<Item = String> {
    line.split(',').map(|element| element.trim().to_owned()).filter(|element| !element.is_empty())
}

/// `10.96.0.1 . tcp . 80 . 2 : 10.244.0.10 . 8080` without the 2, the slot number: slots of policy Cluster are below 65536,
/// those of policy Local start there.
fn without_slot(element: &str) -> String {
    let parts = element.split_once(" : ").and_then(|(key, value)| {
        let (key, slot) = key.rsplit_once(" . ")?;
        let slot: u32 = slot.parse().ok()?;
        Some(format!("{key} . {} : {value}", if slot < 65536 { "cluster" } else { "local" }))
    });
    parts.unwrap_or_else(|| element.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "table ip kube-proxy {
	comment \"kube-proxy by Ferry\"
	map endpoints {
		typeof ip daddr . meta l4proto . th dport . numgen random mod 131072 : ip daddr . th dport
		elements = { 10.96.0.1 . tcp . 80 . 0 : 10.244.0.10 . 8080,
			     10.96.0.1 . tcp . 80 . 1 : 10.244.0.11 . 8080 }
	}

	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.96.0.1 . tcp . 80 : goto int-2 }
	}

	set sources-1 {
		type ipv4_addr
		flags interval
		elements = { 198.51.100.164, 203.0.113.0/24 }
	}

	set sources-2 {
		type ipv4_addr
		flags interval
		elements = { 192.0.2.0/24 }
	}

	chain int-2 {
		ip saddr @sources-2 return
	}

	chain int-3 {
		return
	}

	chain nat-output {
		type nat hook output priority -100; policy accept;
		jump services
	}
}
";

    #[test]
    fn a_listing_is_read() {
        let ruleset = Ruleset::parse(LISTING);
        let names: Vec<_> = ruleset.names("ip kube-proxy").collect();
        assert_eq!(
            names,
            [
                "chain int-2",
                "chain int-3",
                "chain nat-output",
                "map endpoints",
                "map service-ips",
                "set sources-1",
                "set sources-2"
            ]
        );
        assert_eq!(ruleset.get("ip kube-proxy", "map endpoints").elements.len(), 2);
        assert_eq!(ruleset.get("ip kube-proxy", "chain nat-output").lines.len(), 2);
        assert_eq!(ruleset.get("ip kube-proxy", "").lines, ["comment \"kube-proxy by Ferry\""]);
    }

    #[test]
    fn spares_are_the_chains_and_source_ranges_that_no_rule_names() {
        let ruleset = Ruleset::parse(LISTING).without_spares();
        let names: Vec<_> = ruleset.names("ip kube-proxy").collect();
        assert_eq!(names, ["chain int-2", "chain nat-output", "map endpoints", "map service-ips", "set sources-2"]);
    }

    #[test]
    fn the_essence_forgets_slots_and_spare_chains() {
        let swapped = LISTING.replace(". 80 . 0 :", ". 80 . 9 :").replace("chain int-3 {\n\t\treturn\n\t}", "");
        let (one, other) = (Ruleset::parse(LISTING), Ruleset::parse(&swapped));
        assert_ne!(one, other);
        assert!(one.difference(&other).contains("- ip kube-proxy chain int-3 as a whole"));
        assert_eq!(one.essence(), other.essence());
        let changed = LISTING.replace("10.244.0.10", "10.244.0.12");
        assert_ne!(Ruleset::parse(LISTING).essence(), Ruleset::parse(&changed).essence());
    }
}
