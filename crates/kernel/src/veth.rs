//! Pairs of virtual Ethernet devices between two network namespaces, with their addresses, routes and neighbours, by route netlink.
//!
//! Hardware addresses are given, and neighbours entered, so that no packet waits for address resolution.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, AsRawFd as _};

use ferry_family::Family;
use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::link;
use crate::netlink::{MessageWriter, Session, flag};
use crate::netns::Namespace;

/// Message types of linux/rtnetlink.h.
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const NEW_NEIGHBOUR: u16 = 28;
/// Attributes of a device (linux/if_link.h, linux/veth.h): its hardware address, name, and network namespace; its kind, and what that needs.
const HARDWARE: u16 = 1;
const NAME: u16 = 3;
const INFO: u16 = 18;
const KIND: u16 = 1;
const DATA: u16 = 2;
const PEER: u16 = 1;
const NAMESPACE: u16 = 28;
/// Attributes of an address (`IFA_ADDRESS`, `IFA_LOCAL`), and the flag `IFA_F_NODAD`: usable at once, without detection of duplicates.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const NO_DAD: u8 = 0x02;
/// Attributes of a neighbour (`NDA_DST`, `NDA_LLADDR`), and its state `NUD_PERMANENT`.
const NEIGHBOUR: u16 = 1;
const LINK_LAYER: u16 = 2;
const PERMANENT: u16 = 0x80;
/// Attributes of a route (`RTA_DST`, `RTA_OIF`, `RTA_GATEWAY`), and the flag `RTNH_F_ONLINK`.
const DESTINATION: u16 = 1;
const DEVICE: u16 = 4;
const GATEWAY: u16 = 5;
const ON_LINK: u32 = 4;
/// Table `main`, protocol `static`, type `unicast`, and the scopes of a route (linux/rtnetlink.h).
const TABLE_MAIN: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
const TYPE_UNICAST: u8 = 1;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;

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
    near: Device,
    far: Device,
}

/// A device of a pair.
#[derive(Clone, Copy, Debug)]
struct Device {
    index: u32,
    hardware: [u8; 6],
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
        session.request(NEW_LINK, flag::CREATE | flag::EXCL, |writer| {
            encode_end(writer, near);
            let info = writer.nest(INFO);
            writer.attribute(KIND, b"veth");
            let data = writer.nest(DATA);
            let peer = writer.nest(PEER);
            encode_end(writer, far);
            writer.attribute(NAMESPACE, &namespace.as_fd().as_raw_fd().to_ne_bytes());
            writer.end_nest(peer);
            writer.end_nest(data);
            writer.end_nest(info);
        })?;
        // From here on the pair is removed if a step fails.
        let mut pair = Self {
            session,
            near: Device { index: link::index(near.name)?, hardware: near.hardware },
            far: Device { index: 0, hardware: far.hardware },
        };
        link::raise(pair.near.index)?;
        pair.far.index =
            namespace.run(|| link::index(far.name).and_then(|index| link::raise(index).map(|()| index)))??;
        Ok(pair)
    }

    /// Gives the far end, in its namespace, this address, with a default route over the near end, and the near end the route to it.
    ///
    /// # Errors
    /// The system's error: `EEXIST` if there is a route to this very address; `EACCES` or `EPERM` for a family that is disabled on new
    /// devices.
    pub fn assign(&mut self, address: IpAddr, namespace: &Namespace) -> io::Result<()> {
        let gateway = gateway(Family::of(address));
        let Self { near, far, .. } = *self;
        namespace.run(|| {
            let mut session = Session::open(NETLINK_ROUTE)?;
            add_address(&mut session, far.index, address)?;
            add_neighbour(&mut session, far.index, (gateway, near.hardware))?;
            add_default_route(&mut session, far.index, gateway)
        })??;
        add_neighbour(&mut self.session, near.index, (address, far.hardware))?;
        add_host_route(&mut self.session, near.index, address)
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        let index = self.near.index;
        // The end of the other namespace may have removed it already.
        let _ = self.session.request(DELETE_LINK, 0, |writer| encode_device_header(writer, index));
    }
}

fn gateway(family: Family) -> IpAddr {
    let [v4, v6] = GATEWAYS;
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

/// Writes `struct ifinfomsg` of the device with this index, or of one that its name tells.
fn encode_device_header(writer: &mut MessageWriter, index: u32) {
    let [i0, i1, i2, i3] = index.to_ne_bytes();
    writer.raw(&[0, 0, 0, 0, i0, i1, i2, i3, 0, 0, 0, 0, 0, 0, 0, 0]);
}

fn encode_end(writer: &mut MessageWriter, end: VethEnd<'_>) {
    encode_device_header(writer, 0);
    writer.text(NAME, end.name);
    writer.attribute(HARDWARE, &end.hardware);
}

fn add_address(session: &mut Session, device: u32, address: IpAddr) -> io::Result<()> {
    let change = session.request(NEW_ADDRESS, flag::CREATE | flag::EXCL, |writer| {
        let [d0, d1, d2, d3] = device.to_ne_bytes();
        writer.raw(&[number(address), bits(address), NO_DAD, SCOPE_UNIVERSE, d0, d1, d2, d3]);
        encode_ip(writer, LOCAL, address);
        encode_ip(writer, ADDRESS, address);
    });
    change.map(drop)
}

fn add_neighbour(session: &mut Session, device: u32, (address, hardware): (IpAddr, [u8; 6])) -> io::Result<()> {
    let change = session.request(NEW_NEIGHBOUR, flag::CREATE | flag::REPLACE, |writer| {
        let ([d0, d1, d2, d3], [s0, s1]) = (device.to_ne_bytes(), PERMANENT.to_ne_bytes());
        writer.raw(&[number(address), 0, 0, 0, d0, d1, d2, d3, s0, s1, 0, 0]);
        encode_ip(writer, NEIGHBOUR, address);
        writer.attribute(LINK_LAYER, &hardware);
    });
    change.map(drop)
}

fn add_host_route(session: &mut Session, device: u32, address: IpAddr) -> io::Result<()> {
    let change = session.request(NEW_ROUTE, flag::CREATE | flag::EXCL, |writer| {
        let scope = if address.is_ipv4() { SCOPE_LINK } else { SCOPE_UNIVERSE };
        encode_route_header(writer, address, (bits(address), scope, 0));
        encode_ip(writer, DESTINATION, address);
        writer.attribute(DEVICE, &device.to_ne_bytes());
    });
    change.map(drop)
}

fn add_default_route(session: &mut Session, device: u32, gateway: IpAddr) -> io::Result<()> {
    let change = session.request(NEW_ROUTE, flag::CREATE | flag::EXCL, |writer| {
        encode_route_header(writer, gateway, (0, SCOPE_UNIVERSE, ON_LINK));
        encode_ip(writer, GATEWAY, gateway);
        writer.attribute(DEVICE, &device.to_ne_bytes());
    });
    change.map(drop)
}

/// Writes `struct rtmsg` of a route in this address's family.
fn encode_route_header(writer: &mut MessageWriter, of: IpAddr, (length, scope, flags): (u8, u8, u32)) {
    let [f0, f1, f2, f3] = flags.to_ne_bytes();
    writer.raw(&[number(of), length, 0, 0, TABLE_MAIN, PROTOCOL_STATIC, scope, TYPE_UNICAST, f0, f1, f2, f3]);
}

fn encode_ip(writer: &mut MessageWriter, attribute: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => writer.attribute(attribute, &address.octets()),
        IpAddr::V6(address) => writer.attribute(attribute, &address.octets()),
    }
}

/// The number of an address's family.
fn number(address: IpAddr) -> u8 {
    Family::of(address).number()
}

/// The length of an address in bits.
fn bits(address: IpAddr) -> u8 {
    IpNet::from(address).prefix_len()
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
                        [v4, v6].iter().for_each(|text| pair.assign(address(text), namespace).unwrap());
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
