//! Renders objects as text, for people and golden files: the table as the `nft` tool loads it, the virtual servers as
//! `ipvsadm -ln` prints them, the addresses of the device.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use ferry_api::object::Family;
use ferry_ruleset::Rules;
use ferry_ruleset::sources::Ranges;
use ferry_ruleset::text::TableText;

use crate::layout;
use crate::names::{ChainName, DEVICE, FixedSet, SetName, TABLE, TABLE_COMMENT};
use crate::object::{ElementKey, IpvsObject, Value};
use crate::server::{ServerId, VirtualServer};

/// The table, the virtual servers and the addresses of one family. Objects may come in any order; duplicates are printed once.
pub fn ruleset(family: Family, objects: &[IpvsObject]) -> String {
    let mut sets: BTreeMap<FixedSet, BTreeMap<ElementKey, Value>> = BTreeMap::new();
    let mut sources: BTreeMap<SetName, &Ranges> = BTreeMap::new();
    let mut chains: BTreeMap<ChainName, &Rules> = BTreeMap::new();
    let mut servers: BTreeMap<ServerId, &VirtualServer> = BTreeMap::new();
    let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
    for object in objects {
        match object {
            IpvsObject::Table(_) | IpvsObject::Set(SetName::Sources(_)) => {}
            IpvsObject::Set(SetName::Fixed(name)) => drop(sets.entry(*name).or_default()),
            IpvsObject::Ranges(id, ranges) => drop(sources.insert(SetName::Sources(*id), ranges)),
            IpvsObject::Chain(name, rules) => drop(chains.insert(*name, rules)),
            IpvsObject::Element(key, value) => drop(sets.entry(key.set()).or_default().insert(*key, *value)),
            IpvsObject::Server(id, server) => drop(servers.insert(*id, server)),
            IpvsObject::Address(address, _) => drop(addresses.insert(*address)),
        }
    }
    let mut table = TableText::new(family, TABLE, TABLE_COMMENT);
    for (name, elements) in &sets {
        let elements: Vec<String> = elements.iter().map(|(key, value)| format!("{key}{value}")).collect();
        table.set(name, &layout::layout(SetName::Fixed(*name)), &elements);
    }
    for (name, ranges) in &sources {
        let elements: Vec<String> = ranges.as_slice().iter().map(ToString::to_string).collect();
        table.set(name, &layout::layout(*name), &elements);
    }
    for (name, rules) in &chains {
        table.chain(name, name.chain().hook, rules);
    }
    let mut text = table.finish();
    // Writing to a String can't fail.
    for (id, server) in &servers {
        let _ = write!(text, "\n{id} {}", server.settings);
        for weighted in server.endpoints.iter() {
            let at = SocketAddr::new(weighted.endpoint.address, weighted.endpoint.port);
            let _ = write!(text, "\n  -> {at} Masq {}", weighted.weight);
        }
    }
    text.push('\n');
    for address in &addresses {
        let _ = writeln!(text, "{DEVICE} {address}");
    }
    text
}
