//! Determines at a start which virtual servers of the kernel are this proxy's, or its predecessor's: all others are other
//! programs' and never touched.
//!
//! IPVS has no field for an owner. The table of this mode lists each frontend before its servers are created and until they are
//! deleted. Where it isn't there, since another mode or upstream's proxy ran before, the device decides, which is the last thing
//! that a proxy removes: without service addresses on it no server is ours. With some, those at its addresses are, and servers of
//! node ports by what they lead to. The maps of another mode's table and upstream's ipsets prove nothing alone: they list
//! frontends, not servers, and another program's director may have the same ones.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_kernel::dummy::{DeviceError, DeviceSocket};
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::ipset::{self, Member};
use ferry_kernel::ipvs::{Forwarding, IpvsDestination, IpvsServer};
use ferry_kernel::link;
use ferry_kernel::nft::NftSocket;
use ferry_ruleset::table::Vocabulary as _;

use super::convert::{id_of, settings_of};
use crate::element::{ElementKey, IpvsTable};
use crate::names::{DEVICE, FixedSet, TABLE, TABLE_COMMENT};
use crate::server::ServerId;

/// Evidence of the virtual servers that an earlier proxy of this node has made.
#[derive(Debug)]
pub(crate) enum Ledger {
    /// a table of this mode, which lists all of them
    Listed(Listed),
    /// there is no such table
    Traces(Traces),
}

/// The frontends that a table of this mode lists.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    frontends: HashSet<ServerId>,
    node_ports: HashSet<(Protocol, u16)>,
    /// addresses with servers of node ports
    node_addresses: HashSet<IpAddr>,
}

/// The traces of a proxy without a table of this mode.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    /// the service addresses on the device; nothing else is read if there are none
    pub(super) bound: HashSet<IpAddr>,
    /// addresses of the node's other interfaces
    pub(super) local: HashSet<IpAddr>,
    /// node ports in the table of another mode, or in upstream's ipsets
    pub(super) node_ports: HashSet<(Protocol, u16)>,
    /// the list has all: upstream's ipsets list those of its virtual servers. The table of another mode lacks those that have gone since the
    /// last proxy of this mode has ended
    pub(super) has_all_node_ports: bool,
    /// ranges in which no server is taken for ours by its traces (ipvs.excludeCIDRs)
    pub(super) excluded: Vec<IpNet>,
}

/// The API server's default range of node ports: a server whose node port isn't listed is recognised only within it.
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

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
        let found = NftSocket::open().and_then(|mut socket| {
            let table = socket.table(family, TABLE)?;
            Ok(table.map(|table| (table, socket)))
        });
        let mut in_table = match found {
            Err(error) if ErrorClass::of(&error).lacks_subsystem() => None,
            found => found?,
        };
        if let Some((table, socket)) = &mut in_table
            && table.comment.as_deref() == Some(TABLE_COMMENT)
        {
            return Ok(Self::Listed(Listed::read(socket, family)?));
        }
        let bound = bound(family)?;
        if bound.is_empty() {
            return Ok(Self::Traces(Traces { excluded: excluded.to_vec(), ..Traces::default() }));
        }
        let node_ports = in_table.map_or(Ok(HashSet::new()), |(_, mut socket)| node_ports(&mut socket, family));
        let mut node_ports = node_ports?;
        let of_upstream = upstreams(family)?;
        let has_all_node_ports = of_upstream.is_some();
        node_ports.extend(of_upstream.into_iter().flatten());
        let local = link::addresses(&[DEVICE])?.into_iter().map(|local| local.address).collect();
        Ok(Self::Traces(Traces { bound, local, node_ports, has_all_node_ports, excluded: excluded.to_vec() }))
    }

    /// True if no server is ours, whichever there are.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Listed(Listed { frontends, node_ports, .. }) => frontends.is_empty() && node_ports.is_empty(),
            Self::Traces(traces) => traces.bound.is_empty(),
        }
    }

    /// Those of the servers that are this proxy's or its predecessor's. `destinations` reads those of one of them.
    pub(crate) fn own<E>(
        &self,
        servers: &[IpvsServer],
        destinations: impl FnMut(ServerId) -> Result<Vec<IpvsDestination>, E>,
    ) -> Result<HashSet<ServerId>, E> {
        match self {
            Self::Listed(listed) => {
                Ok(servers.iter().map(|server| id_of(server.id)).filter(|id| listed.holds(*id)).collect())
            }
            Self::Traces(traces) => traces.own(servers, destinations),
        }
    }
}

// === impl Listed ===

impl Listed {
    fn read(socket: &mut NftSocket, family: Family) -> io::Result<Self> {
        let mut listed = Self::default();
        for set in [FixedSet::ServiceIps, FixedSet::ServiceNodePorts, FixedSet::NodePortIps] {
            keys(socket, family, set, &mut |key| listed.add(key))?;
        }
        Ok(listed)
    }

    fn add(&mut self, key: ElementKey) {
        match key {
            ElementKey::Vip { at, .. } => drop(self.frontends.insert(at)),
            ElementKey::NodePort { protocol, port } => drop(self.node_ports.insert((protocol, port))),
            ElementKey::NodePortIp(address) => drop(self.node_addresses.insert(address)),
            ElementKey::BoundIp(_) | ElementKey::PingedIp(_) | ElementKey::HealthPort(_) | ElementKey::SameOctet(_) => {
            }
        }
    }

    fn holds(&self, id: ServerId) -> bool {
        let is_node_port = self.node_ports.contains(&(id.protocol, id.port));
        self.frontends.contains(&id) || is_node_port && self.node_addresses.contains(&id.address)
    }
}

// === impl Traces ===

impl Traces {
    /// True in a range in which no server is taken for ours by its traces.
    pub(crate) fn excludes(&self, address: IpAddr) -> bool {
        self.excluded.iter().any(|range| range.contains(&address))
    }

    /// Those at addresses of the device, and those of node ports: at another address of this node, masquerading to all of their
    /// endpoints, and sharing one with a server at an address of the device. Other directors lead elsewhere. One without
    /// endpoints is ours if its node port is listed.
    fn own<E>(
        &self,
        servers: &[IpvsServer],
        mut destinations: impl FnMut(ServerId) -> Result<Vec<IpvsDestination>, E>,
    ) -> Result<HashSet<ServerId>, E> {
        let (mut own, mut candidates) = (HashSet::new(), Vec::new());
        for server in servers {
            let id = id_of(server.id);
            if self.excludes(id.address) {
                continue;
            }
            if self.bound.contains(&id.address) {
                own.insert(id);
            } else if self.local.contains(&id.address) && self.may_be_node_port(server) {
                candidates.push(id);
            }
        }
        let mut endpoints: HashSet<SocketAddr> = HashSet::new();
        for id in own.iter().filter(|_| !candidates.is_empty()) {
            endpoints.extend(destinations(*id)?.into_iter().map(|to| to.address));
        }
        for id in candidates {
            let found = destinations(id)?;
            let leads_to_services = match &*found {
                [] => self.node_ports.contains(&(id.protocol, id.port)),
                found => found.iter().any(|to| endpoints.contains(&to.address)),
            };
            if leads_to_services && masquerades(&found) {
                own.insert(id);
            }
        }
        Ok(own)
    }

    /// True for a listed node port, and, unless the list has all, within the default range for a server as this mode makes them.
    fn may_be_node_port(&self, server: &IpvsServer) -> bool {
        let id = id_of(server.id);
        let is_listed = self.node_ports.contains(&(id.protocol, id.port));
        let may_have_gone = || NODE_PORTS.contains(&id.port) && !settings_of(server).altered;
        is_listed || !self.has_all_node_ports && may_have_gone()
    }
}

/// True if packets to all of the endpoints are translated, as by every proxy: directors of other programs often route or tunnel.
pub(super) fn masquerades(destinations: &[IpvsDestination]) -> bool {
    destinations.iter().all(|to| to.forwarding == Forwarding::MASQUERADE)
}

/// Reads the keys of a set or map; none if it doesn't exist. The maps of frontends have the same names and keys in this mode, in
/// mode nftables and in upstream's mode nftables.
fn keys(socket: &mut NftSocket, family: Family, set: FixedSet, each: &mut dyn FnMut(ElementKey)) -> io::Result<()> {
    let listed = socket.elements(family, TABLE, set.name(), &mut |element| {
        let is_single = element.key_end.is_none() && !element.interval_end;
        if let Some(key) = IpvsTable::key(None, set, family, &element.key).filter(|_| is_single) {
            each(key);
        }
    });
    match listed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        listed => listed,
    }
}

/// The node ports in the table of another mode.
fn node_ports(socket: &mut NftSocket, family: Family) -> io::Result<HashSet<(Protocol, u16)>> {
    let mut ports = HashSet::new();
    keys(socket, family, FixedSet::ServiceNodePorts, &mut |key| {
        if let ElementKey::NodePort { protocol, port } = key {
            ports.insert((protocol, port));
        }
    })?;
    Ok(ports)
}

/// The node ports in upstream's ipsets; `None` if there is no such set.
fn upstreams(family: Family) -> io::Result<Option<HashSet<(Protocol, u16)>>> {
    let mut ports: Option<HashSet<(Protocol, u16)>> = None;
    for (protocol, name) in upstreams_sets(family) {
        match ipset::members(name) {
            Err(error) if is_absent(&error) => {}
            members => ports.get_or_insert_default().extend(members?.into_iter().filter_map(|member| match member {
                Member::Port(port) | Member::Socket { port, .. } => Some((protocol, port)),
                Member::Net(_) => None,
            })),
        }
    }
    Ok(ports)
}

/// True if there is no such set, or no kernel support for sets.
fn is_absent(error: &io::Error) -> bool {
    let class = ErrorClass::of(error);
    class == ErrorClass::Missing || class.lacks_subsystem()
}

/// The addresses of the device; none if there is none, or if it is of another kind.
pub(crate) fn bound(family: Family) -> io::Result<HashSet<IpAddr>> {
    let mut socket = DeviceSocket::open()?;
    let device = match socket.find(DEVICE) {
        Ok(Some(device)) => device,
        Ok(None) | Err(DeviceError::AnotherKind { .. }) => return Ok(HashSet::new()),
        Err(DeviceError::Io(error)) => return Err(error),
    };
    let addresses = socket.addresses(device.index, family)?;
    Ok(addresses.into_iter().map(|address| address.network.addr()).collect())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::num::NonZeroU32;

    use ferry_model::Scheduler;

    use super::super::convert::{destination, endpoint_of, kernel_server};
    use super::*;
    use crate::server::ServerSettings;

    const VIP: [u8; 4] = [10, 96, 0, 1];
    const NODE: [u8; 4] = [192, 0, 2, 1];
    const ELSEWHERE: [u8; 4] = [192, 0, 2, 99];

    fn id(address: [u8; 4], port: u16) -> ServerId {
        ServerId { protocol: Protocol::Tcp, address: address.into(), port }
    }

    fn server(id: ServerId) -> IpvsServer {
        let settings = ServerSettings { scheduler: Scheduler::Rr, persistence: None, altered: false };
        kernel_server(id, settings, Scheduler::Rr).unwrap()
    }

    fn pod(last: u8) -> IpvsDestination {
        destination(endpoint_of(SocketAddr::new([10, 244, 0, last].into(), 8080)), 1)
    }

    /// A server and its destinations.
    type Served = (ServerId, Vec<IpvsDestination>);

    fn own(ledger: &Ledger, all: &[Served]) -> Vec<ServerId> {
        let servers: Vec<IpvsServer> = all.iter().map(|(id, _)| server(*id)).collect();
        let destinations = |id| {
            let (_, found) = all.iter().find(|(of, _)| *of == id).unwrap();
            Ok::<_, Infallible>(found.clone())
        };
        let mut own: Vec<ServerId> = ledger.own(&servers, destinations).unwrap().into_iter().collect();
        own.sort_unstable();
        own
    }

    fn traces() -> Traces {
        Traces { bound: [VIP.into()].into(), local: [NODE.into()].into(), ..Traces::default() }
    }

    fn ports(listed: &[u16]) -> HashSet<(Protocol, u16)> {
        listed.iter().map(|port| (Protocol::Tcp, *port)).collect()
    }

    #[test]
    fn a_table_of_this_mode_lists_all_of_ours() {
        let listed = Listed {
            frontends: [id(VIP, 80)].into(),
            node_ports: [(Protocol::Tcp, 30_080)].into(),
            node_addresses: [NODE.into()].into(),
        };
        let foreign = [id(VIP, 81), id(NODE, 80), id(ELSEWHERE, 30_080)];
        let all = [id(VIP, 80), id(NODE, 30_080)].into_iter().chain(foreign).map(|id| (id, vec![pod(1)]));
        let all: Vec<Served> = all.collect();
        assert_eq!(own(&Ledger::Listed(listed), &all), [id(VIP, 80), id(NODE, 30_080)]);
    }

    /// The table of mode nftables lists the numbers of other programs' servers.
    #[test]
    fn without_addresses_on_the_device_nothing_is_ours() {
        let traces = Traces { bound: HashSet::new(), node_ports: ports(&[30_080]), ..traces() };
        let ledger = Ledger::Traces(traces);
        assert!(ledger.is_empty());
        let all = [(id(VIP, 80), vec![pod(1)]), (id(NODE, 30_080), vec![pod(1)]), (id(NODE, 30_081), vec![])];
        assert_eq!(own(&ledger, &all), []);
    }

    #[test]
    fn a_listed_node_port_is_ours_at_local_addresses_by_its_endpoints() {
        let routed = IpvsDestination { forwarding: Forwarding(3), ..pod(1) };
        let traces = Traces { node_ports: ports(&[30_080, 6443]), has_all_node_ports: true, ..traces() };
        let ledger = Ledger::Traces(traces);
        let at = |id, found: &[IpvsDestination]| {
            let all = [(id, found.to_vec()), (self::id(VIP, 80), vec![pod(1), pod(2)])];
            own(&ledger, &all).contains(&id)
        };
        assert!(at(id(VIP, 443), &[pod(9)]), "an address of the device");
        assert!(at(id(NODE, 30_080), &[pod(1), pod(3)]) && at(id(NODE, 6443), &[pod(2)]) && at(id(NODE, 30_080), &[]));
        assert!(!at(id(ELSEWHERE, 30_080), &[pod(1)]), "not an address of this node");
        assert!(!at(id(NODE, 30_081), &[pod(1)]), "not a node port");
        assert!(!at(id(NODE, 30_080), &[pod(9)]) && !at(id(NODE, 30_080), &[routed]), "another program's endpoints");
        let udp = ServerId { protocol: Protocol::Udp, ..id(NODE, 30_080) };
        assert!(!at(udp, &[pod(1)]), "not a node port of this protocol");
    }

    /// A node port may have gone after the last proxy of this mode has ended.
    #[test]
    fn servers_within_the_default_range_are_ours_though_nothing_lists_them() {
        let ledger = Ledger::Traces(Traces { node_ports: ports(&[30_080]), ..traces() });
        let vip = || (id(VIP, 80), vec![pod(1)]);
        let at = |port, found: &[IpvsDestination]| {
            own(&ledger, &[(id(NODE, port), found.to_vec()), vip()]).contains(&id(NODE, port))
        };
        assert!(at(30_000, &[pod(1)]) && at(32_767, &[pod(2), pod(1)]));
        assert!(!at(29_999, &[pod(1)]) && !at(32_768, &[pod(1)]) && !at(6443, &[pod(1)]));
        assert!(!at(30_000, &[]) && !at(30_000, &[pod(2)]));
        let (id, persistence) = (id(NODE, 30_000), NonZeroU32::new(60));
        let settings = ServerSettings { scheduler: Scheduler::Rr, persistence, altered: false };
        let narrow = IpvsServer { netmask: 24, ..kernel_server(id, settings, Scheduler::Rr).unwrap() };
        assert!(!traces().may_be_node_port(&narrow), "settings that this mode never makes");
    }

    #[test]
    fn nothing_in_an_excluded_range_is_ours_by_its_traces() {
        let excluded = vec!["10.96.0.0/16".parse().unwrap(), "192.0.2.0/24".parse().unwrap()];
        let ledger = Ledger::Traces(Traces { excluded, node_ports: ports(&[30_080]), ..traces() });
        assert_eq!(own(&ledger, &[(id(VIP, 80), vec![pod(1)]), (id(NODE, 30_080), vec![pod(1)])]), []);
        let listed = Listed { frontends: [id(VIP, 80)].into(), ..Listed::default() };
        assert_eq!(own(&Ledger::Listed(listed), &[(id(VIP, 80), vec![pod(1)])]), [id(VIP, 80)]);
    }
}
