//! Renders objects as text, for people and golden files: the table as the `nft` tool loads it, the virtual servers as
//! `ipvsadm -ln` prints them, the addresses of the device.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use ferry_api::object::Family;
use ferry_ruleset::table::{InTable as _, draw};

use crate::names::DEVICE;
use crate::object::IpvsObject;
use crate::server::{ServerId, VirtualServer};

/// The table, the virtual servers and the addresses of one family. Objects may come in any order; duplicates are printed once.
pub fn ruleset(family: Family, objects: &[IpvsObject]) -> String {
    let mut text = draw(family, objects.iter().filter_map(IpvsObject::in_table));
    let mut servers: BTreeMap<ServerId, &VirtualServer> = BTreeMap::new();
    let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
    for object in objects {
        match object {
            IpvsObject::Table(_) => {}
            IpvsObject::Server(id, server) => drop(servers.insert(*id, server)),
            IpvsObject::Address(address, _) => drop(addresses.insert(*address)),
        }
    }
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
