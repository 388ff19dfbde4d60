//! Pairs of virtual Ethernet devices between two network namespaces, with their addresses, routes and neighbours, by route netlink.
//!
//! Hardware addresses are given, and neighbours entered, so that no packet waits for address resolution.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, AsRawFd as _};

use ferry_family::Family;
use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::link::{self, emit};
use crate::netlink::{Session, flag};
use crate::netns::Namespace;

/// Message types of linux/rtnetlink.h.
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const NEW_NEIGHBOUR: u16 = 28;

/// The next hop of the namespace at the far end: addresses that no other device of it has, so that the near end needs none.
const GATEWAYS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1)), IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1))];

/// One end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VethEnd<'a> {
    /// the device's name, at most 15 bytes
    pub name: &'a str,
    /// its hardware address
    pub hardware: [u8; 6],
}

/// A pair of devices: the near end is in the network namespace of the thread that made it, the far end in another one. Dropping it removes
/// both; the end of the other namespace does so, too.
#[derive(Debug)]
pub struct VethPair {
    session: Session,
    /// the near end's
    index: u32,
    hardware: [u8; 6],
    far_hardware: [u8; 6],
}

// === impl VethPair ===

impl VethPair {
    /// Makes a pair whose ends are up.
    ///
    /// # Errors
    /// The system's error: `EPERM` without `CAP_NET_ADMIN` here or there, `EEXIST` if a name is used, `EOPNOTSUPP` without the module
    /// `veth`.
    pub fn create(near: VethEnd<'_>, far: VethEnd<'_>, namespace: &Namespace) -> io::Result<Self> {
        let mut session = Session::open(NETLINK_ROUTE)?;
        let mut peer = named(far);
        peer.attributes.push(LinkAttribute::NetNsFd(namespace.as_fd().as_raw_fd()));
        let mut request = named(near);
        request.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        session.request(NEW_LINK, flag::CREATE | flag::EXCL, emit(&request))?;
        let index = link::index(near.name)?;
        let pair = Self { session, index, hardware: near.hardware, far_hardware: far.hardware };
        link::raise(index)?;
        namespace.run(|| link::raise(link::index(far.name)?))??;
        Ok(pair)
    }

    /// Gives the far end this address, with a default route over the near end, and the near end the route to it. A route to the same
    /// address that another pair has left is replaced.
    ///
    /// # Errors
    /// The system's error: `EACCES` or `EPERM` for a family that is disabled on new devices.
    pub fn assign(&mut self, address: IpAddr, (far, namespace): (VethEnd<'_>, &Namespace)) -> io::Result<()> {
        let gateway = gateway(Family::of(address));
        let hardware = self.hardware;
        namespace.run(|| {
            let mut session = Session::open(NETLINK_ROUTE)?;
            let index = link::index(far.name)?;
            add_address(&mut session, index, address)?;
            add_neighbour(&mut session, index, (gateway, hardware))?;
            add_default_route(&mut session, index, gateway)
        })??;
        add_neighbour(&mut self.session, self.index, (address, self.far_hardware))?;
        add_host_route(&mut self.session, self.index, address)
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        let mut request = LinkMessage::default();
        request.header.index = self.index;
        // The end of the other namespace may have removed it already.
        let _ = self.session.request(DELETE_LINK, 0, emit(&request));
    }
}

fn gateway(family: Family) -> IpAddr {
    let [v4, v6] = GATEWAYS;
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

fn named(end: VethEnd<'_>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(end.name.to_owned()));
    message.attributes.push(LinkAttribute::Address(end.hardware.to_vec()));
    message
}

/// Adds an address that is usable at once, without detection of duplicates.
fn add_address(session: &mut Session, device: u32, address: IpAddr) -> io::Result<()> {
    let mut request = AddressMessage::default();
    request.header.family = family_of(address);
    request.header.prefix_len = IpNet::from(address).prefix_len();
    request.header.index = device;
    request.header.scope = AddressScope::Universe;
    request.attributes.push(AddressAttribute::Local(address));
    request.attributes.push(AddressAttribute::Address(address));
    request.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    session.request(NEW_ADDRESS, flag::CREATE | flag::EXCL, emit(&request)).map(drop)
}

fn add_neighbour(session: &mut Session, device: u32, (address, hardware): (IpAddr, [u8; 6])) -> io::Result<()> {
    let mut request = NeighbourMessage::default();
    request.header.family = family_of(address);
    request.header.ifindex = device;
    request.header.state = NeighbourState::Permanent;
    request.attributes.push(NeighbourAttribute::Destination(match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    }));
    request.attributes.push(NeighbourAttribute::LinkLayerAddress(hardware.to_vec()));
    session.request(NEW_NEIGHBOUR, flag::CREATE | flag::REPLACE, emit(&request)).map(drop)
}

fn add_host_route(session: &mut Session, device: u32, address: IpAddr) -> io::Result<()> {
    let mut request = route_over(device, family_of(address));
    request.header.destination_prefix_length = IpNet::from(address).prefix_len();
    request.header.scope = if address.is_ipv4() { RouteScope::Link } else { RouteScope::Universe };
    request.attributes.push(RouteAttribute::Destination(RouteAddress::from(address)));
    session.request(NEW_ROUTE, flag::CREATE | flag::REPLACE, emit(&request)).map(drop)
}

fn add_default_route(session: &mut Session, device: u32, gateway: IpAddr) -> io::Result<()> {
    let mut request = route_over(device, family_of(gateway));
    request.header.flags = RouteFlags::Onlink;
    request.attributes.push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
    session.request(NEW_ROUTE, flag::CREATE | flag::EXCL, emit(&request)).map(drop)
}

fn route_over(device: u32, family: AddressFamily) -> RouteMessage {
    let mut request = RouteMessage::default();
    request.header = RouteHeader {
        address_family: family,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    request.attributes.push(RouteAttribute::Oif(device));
    request
}

fn family_of(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;
    use crate::sysctl;

    const NEAR: [VethEnd<'_>; 2] = [
        VethEnd { name: "near-a", hardware: [2, 0, 0, 0, 0, 1] },
        VethEnd { name: "near-b", hardware: [2, 0, 0, 0, 0, 2] },
    ];
    const FAR: VethEnd<'_> = VethEnd { name: "far", hardware: [2, 0, 0, 0, 0, 9] };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// The near end's namespace routes between two far ones, which have an address of each family; the device in the middle has none.
    #[test]
    fn two_namespaces_reach_each_other_over_a_third_one() {
        let [middle, a, b] = [(); 3].map(|()| Namespace::new().unwrap());
        middle
            .run(|| {
                sysctl::write("net/ipv4/ip_forward", "1").unwrap();
                sysctl::write("net/ipv6/conf/all/forwarding", "1").unwrap();
                let ends = [(&a, "10.1.0.1", "fd00:1::1"), (&b, "10.1.0.2", "fd00:1::2")];
                let pairs: Vec<VethPair> = NEAR
                    .into_iter()
                    .zip(ends)
                    .map(|(near, (namespace, v4, v6))| {
                        let mut pair = VethPair::create(near, FAR, namespace).unwrap();
                        [v4, v6].iter().for_each(|text| pair.assign(address(text), (FAR, namespace)).unwrap());
                        pair
                    })
                    .collect();
                for to in ["10.1.0.2", "fd00:1::2"] {
                    let listener = b.run(|| TcpListener::bind((address(to), 80)).unwrap()).unwrap();
                    let stream = a.run(|| TcpStream::connect((address(to), 80)).unwrap()).unwrap();
                    assert_eq!(listener.accept().unwrap().1, stream.local_addr().unwrap());
                }
                drop(pairs);
                assert!(NEAR.iter().all(|near| link::index(near.name).is_err()));
            })
            .unwrap();
        let outside = a.run(|| UdpSocket::bind("[::]:0").unwrap().connect("[fd00:1::2]:80").is_err()).unwrap();
        assert!(outside, "the far end is gone, too");
    }

    #[test]
    fn a_name_that_is_used_is_refused() {
        let [middle, far] = [(); 2].map(|()| Namespace::new().unwrap());
        middle
            .run(|| {
                let _pair = VethPair::create(NEAR[0], FAR, &far).unwrap();
                let again = VethPair::create(NEAR[0], FAR, &far).unwrap_err();
                assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
            })
            .unwrap();
    }
}
