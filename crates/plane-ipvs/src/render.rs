//! Renders objects as text that tools load, for people and golden files; Ferry never parses it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use ferry_api::object::{Family, Protocol};
use ferry_ruleset::table::{InTable as _, draw};

use crate::names::DEVICE;
use crate::object::IpvsObject;
use crate::server::{ServerId, VirtualServer};

/// The table of one family, as `nft` loads it. Objects may come in any order; duplicates are printed once.
pub fn table(family: Family, objects: &[IpvsObject]) -> String {
    draw(family, objects.iter().filter_map(IpvsObject::in_table))
}

/// The virtual servers with their endpoints, as `ipvsadm-restore` loads them. Objects may come in any order; duplicates are printed once.
pub fn servers(objects: &[IpvsObject]) -> String {
    let servers: BTreeMap<ServerId, &VirtualServer> = objects.iter().filter_map(server).collect();
    let mut text = String::new();
    // Writing to a String can't fail.
    for (id, server) in servers {
        let at = format!("{} {}", option(id.protocol), SocketAddr::new(id.address, id.port));
        let _ = write!(text, "-A {at} -s {}", server.settings.scheduler);
        if let Some(seconds) = server.settings.persistence {
            let _ = write!(text, " -p {seconds}");
        }
        text.push('\n');
        for weighted in server.endpoints.iter() {
            let endpoint = SocketAddr::new(weighted.endpoint.address, weighted.endpoint.port);
            let _ = writeln!(text, "-a {at} -r {endpoint} -m -w {}", weighted.weight);
        }
    }
    text
}

/// The addresses of the device, as `ip -batch` adds them. Objects may come in any order; duplicates are printed once.
pub fn addresses(objects: &[IpvsObject]) -> String {
    let addresses: BTreeSet<IpAddr> = objects.iter().filter_map(address).collect();
    let line = |address: IpAddr| match address {
        IpAddr::V4(address) => format!("address add {address}/32 dev {DEVICE} scope host\n"),
        IpAddr::V6(address) => {
            format!("address add {address}/128 dev {DEVICE} nodad valid_lft forever preferred_lft 0\n")
        }
    };
    addresses.into_iter().map(line).collect()
}

/// The option of `ipvsadm` for a virtual server of this protocol.
fn option(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "-t",
        Protocol::Udp => "-u",
        Protocol::Sctp => "--sctp-service",
    }
}

fn server(object: &IpvsObject) -> Option<(ServerId, &VirtualServer)> {
    match object {
        IpvsObject::Server(id, server) => Some((*id, server)),
        IpvsObject::Table(_) | IpvsObject::Address(..) => None,
    }
}

fn address(object: &IpvsObject) -> Option<IpAddr> {
    match object {
        IpvsObject::Address(address, _) => Some(*address),
        IpvsObject::Table(_) | IpvsObject::Server(..) => None,
    }
}
