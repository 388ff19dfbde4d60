//! Tells at a start which virtual servers of the kernel are this proxy's, or its predecessor's: all others are other programs'
//! and never touched.
//!
//! IPVS has no field for an owner. The table of this mode lists each frontend before its servers are created and until they are
//! deleted. Where it isn't there, since another mode or upstream's proxy ran before, the addresses of the device, the maps of
//! the table that is there and upstream's ipsets decide.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::ipset::{self, Member};
use ferry_kernel::{dummy, nft};

use crate::names::{DEVICE, FixedSet, TABLE, TABLE_COMMENT};
use crate::object::ElementKey;
use crate::server::ServerId;
use crate::wire;

/// The frontends that an earlier proxy of this node has served.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    frontends: HashSet<ServerId>,
    node_ports: HashSet<(Protocol, u16)>,
    /// addresses with servers of node ports, where a table of this mode lists them; otherwise any may have one
    node_addresses: Option<HashSet<IpAddr>>,
    /// addresses of the device, where no table of this mode lists the frontends
    bound: HashSet<IpAddr>,
    /// ranges in which only listed frontends are ours (ipvs.excludeCIDRs)
    excluded: Vec<IpNet>,
}

/// Upstream's sets of node ports of this family.
fn upstreams_sets(family: Family) -> [(Protocol, &'static str); 3] {
    match family {
        Family::V4 => [
            (Protocol::Tcp, "KUBE-NODE-PORT-TCP"),
            (Protocol::Udp, "KUBE-NODE-PORT-UDP"),
            (Protocol::Sctp, "KUBE-NODE-PORT-SCTP-HASH"),
        ],
        Family::V6 => [
            (Protocol::Tcp, "KUBE-6-NODE-PORT-TCP"),
            (Protocol::Udp, "KUBE-6-NODE-PORT-UDP"),
            (Protocol::Sctp, "KUBE-6-NODE-PORT-SCTP-HAS"),
        ],
    }
}

// === impl Ledger ===

impl Ledger {
    /// Reads the ledger of a family.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn read(family: Family, excluded: &[IpNet]) -> io::Result<Self> {
        let mut ledger = Self { excluded: excluded.to_vec(), ..Self::default() };
        let mut socket = nft::Socket::open()?;
        let comment = socket.table(family, TABLE)?.map(|table| table.comment.unwrap_or_default());
        let is_own = comment.as_deref() == Some(TABLE_COMMENT);
        ledger.node_addresses = is_own.then(HashSet::new);
        if comment.is_some() {
            ledger.read_maps(&mut socket, family)?;
        }
        if !is_own {
            ledger.read_upstreams(family)?;
            ledger.bound = bound(family)?;
        }
        Ok(ledger)
    }

    /// The maps of frontends have the same names and keys in this mode, in mode nftables and in upstream's mode nftables.
    fn read_maps(&mut self, socket: &mut nft::Socket, family: Family) -> io::Result<()> {
        for set in [FixedSet::ServiceIps, FixedSet::ServiceNodePorts, FixedSet::NodePortIps] {
            let listed = socket.elements(family, TABLE, set.name(), &mut |element| {
                if let Some((key, _)) = wire::element(set, family, &element) {
                    self.add(key);
                }
            });
            match listed {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                listed => listed?,
            }
        }
        Ok(())
    }

    fn add(&mut self, key: ElementKey) {
        match key {
            ElementKey::Vip { at, .. } => drop(self.frontends.insert(at)),
            ElementKey::NodePort { protocol, port } => drop(self.node_ports.insert((protocol, port))),
            ElementKey::NodePortIp(address) => self.node_addresses.iter_mut().for_each(|listed| {
                listed.insert(address);
            }),
            ElementKey::BoundIp(_) | ElementKey::PingedIp(_) | ElementKey::HealthPort(_) | ElementKey::SameOctet(_) => {
            }
        }
    }

    fn read_upstreams(&mut self, family: Family) -> io::Result<()> {
        for (protocol, name) in upstreams_sets(family) {
            let members = match ipset::members(name) {
                Err(error) if is_absent(&error) => Vec::new(),
                members => members?,
            };
            self.node_ports.extend(members.into_iter().map(|member| match member {
                Member::Port(port) | Member::Socket { port, .. } => (protocol, port),
            }));
        }
        Ok(())
    }

    /// True if the server is this proxy's or its predecessor's.
    pub(crate) fn holds(&self, id: ServerId) -> bool {
        let is_excluded = || self.excluded.iter().any(|range| range.contains(&id.address));
        let has_node_port = || match &self.node_addresses {
            Some(listed) => listed.contains(&id.address),
            None => !is_excluded(),
        };
        self.frontends.contains(&id)
            || self.bound.contains(&id.address) && !is_excluded()
            || self.node_ports.contains(&(id.protocol, id.port)) && has_node_port()
    }
}

/// True if there is no such set, or no kernel support for sets.
fn is_absent(error: &io::Error) -> bool {
    let class = ErrorClass::of(error);
    class == ErrorClass::Missing || class.lacks_subsystem()
}

/// The addresses of the device; none if there is none, or if it is of another kind.
pub(crate) fn bound(family: Family) -> io::Result<HashSet<IpAddr>> {
    let mut socket = dummy::Socket::open()?;
    let device = match socket.find(DEVICE) {
        Ok(Some(device)) => device,
        Ok(None) | Err(dummy::Error::AnotherKind { .. }) => return Ok(HashSet::new()),
        Err(dummy::Error::Io(error)) => return Err(error),
    };
    let addresses = socket.addresses(device.index, family)?;
    Ok(addresses.into_iter().map(|address| address.network.addr()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(address: [u8; 4], port: u16) -> ServerId {
        ServerId { protocol: Protocol::Tcp, address: address.into(), port }
    }

    #[test]
    fn a_server_is_ours_by_its_frontend_its_address_or_its_node_port() {
        const VIP: [u8; 4] = [10, 96, 0, 1];
        const NODE: [u8; 4] = [192, 0, 2, 1];
        let none = Ledger::default();
        assert!(!none.holds(id(VIP, 80)));
        let listed = Ledger { frontends: [id(VIP, 80)].into(), ..Ledger::default() };
        assert!(listed.holds(id(VIP, 80)) && !listed.holds(id(VIP, 81)));
        let bound = Ledger { bound: [VIP.into()].into(), ..Ledger::default() };
        assert!(bound.holds(id(VIP, 81)) && !bound.holds(id(NODE, 81)));
        let ports = Ledger { node_ports: [(Protocol::Tcp, 30_080)].into(), ..Ledger::default() };
        assert!(ports.holds(id(NODE, 30_080)) && !ports.holds(id(NODE, 80)));
        let listed = Ledger { node_addresses: Some([NODE.into()].into()), ..ports };
        assert!(listed.holds(id(NODE, 30_080)) && !listed.holds(id(VIP, 30_080)), "another program's");
    }

    #[test]
    fn in_an_excluded_range_only_listed_frontends_are_ours() {
        let range = "10.96.0.0/16".parse().unwrap();
        let vip = id([10, 96, 0, 1], 80);
        let bound = Ledger { bound: [vip.address].into(), excluded: vec![range], ..Ledger::default() };
        assert!(!bound.holds(vip));
        let listed = Ledger { frontends: [vip].into(), excluded: vec![range], ..Ledger::default() };
        assert!(listed.holds(vip));
    }
}
