//! Routes of type `local`: they make an address local to this machine without adding it to an interface, so that it is never the
//! source of a connection to another machine. They have a protocol number of their own, unlike those of the kernel and of other programs.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use ferry_family::Family;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::errno::{self, ErrorClass};
use crate::netlink::{
    AnswerEnd, AnswerMessage, Attributes, Malformed, MessageWriter, Messages, Notifications, Overrun, Session, flag,
};

/// Message types of linux/rtnetlink.h.
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
/// `RTA_DST`
const DESTINATION: u16 = 1;
/// `RTA_OIF`
const DEVICE: u16 = 4;
/// `RT_TABLE_LOCAL`
const TABLE_LOCAL: u8 = 255;
/// `RT_SCOPE_HOST`
const SCOPE_HOST: u8 = 254;
/// `RTN_LOCAL`
const TYPE_LOCAL: u8 = 2;
/// Bytes of `struct rtmsg`.
const HEADER_LEN: usize = 12;
/// The index of the loopback device in every network namespace (`LOOPBACK_IFINDEX` of include/net/flow.h).
const LOOPBACK: u32 = 1;
/// The protocol number (`rtm_protocol`) of these routes: one that /etc/iproute2/rt_protos doesn't assign.
pub const PROTOCOL: u8 = 243;
/// Routes that are added or removed with one `send`.
const PER_SEND: usize = 256;
/// Multicast groups of linux/rtnetlink.h (`RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`).
const GROUPS: [(Family, u32); 2] = [(Family::V4, 7), (Family::V6, 11)];
/// Receive buffer of a monitor in bytes: 5,000 routes that go at once cause a notification each, about 1 KiB with overhead.
const RECEIVE_BYTES: usize = 8 << 20;
/// Most attempts at a list of routes that change meanwhile.
const LIST_ATTEMPTS: u32 = 8;

/// Adds, removes and lists local routes of this program.
#[derive(Debug)]
pub struct LocalRoutes {
    session: Session,
}

/// A local route of any program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRoute {
    /// the address
    pub address: IpAddr,
    /// who has added it: [`PROTOCOL`], or 2 (`RTPROT_KERNEL`) for the address of an interface
    pub protocol: u8,
}

/// A listener to the changes of local routes of one family, in the network namespace of the thread that opened it. Changes of other routes
/// wake it, too.
#[derive(Debug)]
pub struct RouteMonitor {
    notifications: Notifications,
}

// === impl LocalRoutes ===

impl LocalRoutes {
    /// Opens the socket in the network namespace of this thread.
    ///
    /// # Errors
    /// The system's error.
    pub fn open() -> io::Result<Self> {
        let session = Session::open(NETLINK_ROUTE)?;
        // Linux before 4.20 lists the routes of all tables; they are filtered here, too.
        let _ = session.set_strict();
        Ok(Self { session })
    }

    /// Makes addresses local, in any order. Returns the positions of those that were refused, with the error: `EEXIST` where there is
    /// such a route, `EPERM` without `CAP_NET_ADMIN`, and for IPv6 `ENETDOWN` while the loopback device is down.
    ///
    /// # Errors
    /// The system's error if an answer was lost: then an unknown part was added.
    pub fn add(&mut self, addresses: &[IpAddr]) -> io::Result<Vec<(usize, io::Error)>> {
        self.change(NEW_ROUTE, flag::CREATE | flag::EXCL, addresses)
    }

    /// Removes local routes of this program, in any order. Returns the positions of those that were refused, with the error.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn remove(&mut self, addresses: &[IpAddr]) -> io::Result<Vec<(usize, io::Error)>> {
        let mut refused = self.change(DELETE_ROUTE, 0, addresses)?;
        // It is gone already.
        refused.retain(|(_, error)| errno::number(error) != Some(libc::ESRCH));
        Ok(refused)
    }

    /// The netlink address of this socket, by which a monitor recognises its changes.
    pub fn port_id(&self) -> u32 {
        self.session.port_id()
    }

    /// The local routes to one address, whoever has added them.
    ///
    /// # Errors
    /// The system's error; `Interrupted` if routes kept changing while the kernel listed them.
    pub fn list(&mut self, family: Family) -> io::Result<Vec<LocalRoute>> {
        // The kernel accepts no scope here.
        let fill = |writer: &mut MessageWriter| header(writer, family, (0, 0));
        let listed = self.session.dump(GET_ROUTE, LIST_ATTEMPTS, &fill, &mut |attempt| Ok(!attempt.interrupted));
        let listed = match listed {
            // A network namespace has no such table before its loopback device is up or a route is added.
            Err(error) if ErrorClass::of(&error) == ErrorClass::Missing => return Ok(Vec::new()),
            listed => listed?,
        };
        let routes = listed.of(NEW_ROUTE).filter_map(|route| decode_local_route(route).transpose());
        let routes: Vec<LocalRoute> = routes.collect::<Result<_, Malformed>>()?;
        Ok(routes.into_iter().filter(|route| Family::of(route.address) == family).collect())
    }

    /// Sends one message for each address, many with one `send`. Only the last message of a `send` requests an acknowledgement; the
    /// others are answered if they fail.
    fn change(&mut self, kind: u16, flags: u16, addresses: &[IpAddr]) -> io::Result<Vec<(usize, io::Error)>> {
        let mut refused = Vec::new();
        for (number, some) in addresses.chunks(PER_SEND).enumerate() {
            let mut requests = self.session.requests();
            for (n, address) in some.iter().enumerate() {
                let acknowledge = if n + 1 == some.len() { flag::ACK } else { 0 };
                requests.add(kind, flags | acknowledge, |writer| encode(writer, *address));
            }
            self.session.exchange::<io::Error>(&requests, AnswerEnd::Reply, &mut |answer| {
                if let AnswerMessage::Refused(refusal) = answer {
                    let position = requests.position(refusal.sequence).ok_or(Malformed("sequence number"))?;
                    refused.push((number * PER_SEND + position, refusal.into()));
                }
                Ok(())
            })?;
        }
        Ok(refused)
    }
}

// === impl LocalRoute ===

impl LocalRoute {
    /// True if this program has added it.
    pub fn is_ours(&self) -> bool {
        self.protocol == PROTOCOL
    }
}

// === impl RouteMonitor ===

impl RouteMonitor {
    /// Starts to listen; the kernel leaves out the changes that are made through `except`.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(family: Family, except: &LocalRoutes) -> io::Result<Self> {
        let notifications = Notifications::open(NETLINK_ROUTE)?;
        notifications.set_receive_buffer(RECEIVE_BYTES)?;
        notifications.ignore(&BTreeSet::from([except.port_id()]))?;
        for (_, group) in GROUPS.iter().filter(|(of, _)| *of == family) {
            notifications.join(*group)?;
        }
        Ok(Self { notifications })
    }

    /// Reads all that is there, without waiting, and passes on each local route to one address, as it was before or after its change.
    /// A notification that can't be decoded counts as lost.
    ///
    /// # Errors
    /// The system's error, except for an overrun.
    pub fn read(&mut self, each: &mut dyn FnMut(LocalRoute)) -> io::Result<Overrun> {
        self.notifications.read(&mut |datagram| {
            for message in Messages::new(datagram) {
                let message = message?;
                if [NEW_ROUTE, DELETE_ROUTE].contains(&message.kind) {
                    decode_local_route(message.payload)?.into_iter().for_each(&mut *each);
                }
            }
            Ok(())
        })
    }
}

impl AsFd for RouteMonitor {
    /// To wait for it to be readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }
}

/// Reads the payload of a message about a route (`RTM_NEWROUTE`); `None` if it is not a local route to one address.
///
/// # Errors
/// [`Malformed`] if it is none.
pub fn decode_local_route(payload: &[u8]) -> Result<Option<LocalRoute>, Malformed> {
    let (header, rest) = payload.split_at_checked(HEADER_LEN).ok_or(Malformed("short route message"))?;
    let &[family, length, _, _, table, protocol, _, kind, ..] = header else { return Ok(None) };
    if (table, kind) != (TABLE_LOCAL, TYPE_LOCAL) {
        return Ok(None);
    }
    let Some(destination) = Attributes::new(rest).find(DESTINATION)? else { return Ok(None) };
    let address = if family == Family::V4.number() && length == 32 {
        <[u8; 4]>::try_from(destination.value).map(|octets| IpAddr::from(Ipv4Addr::from(octets))).ok()
    } else if family == Family::V6.number() && length == 128 {
        <[u8; 16]>::try_from(destination.value).map(|octets| IpAddr::from(Ipv6Addr::from(octets))).ok()
    } else {
        return Ok(None);
    };
    let address = address.ok_or(Malformed("destination of a route"))?;
    Ok(Some(LocalRoute { address, protocol }))
}

fn encode(writer: &mut MessageWriter, address: IpAddr) {
    let family = Family::of(address);
    header(writer, family, (if family == Family::V4 { 32 } else { 128 }, SCOPE_HOST));
    match address {
        IpAddr::V4(address) => writer.attribute(DESTINATION, &address.octets()),
        IpAddr::V6(address) => writer.attribute(DESTINATION, &address.octets()),
    }
    writer.attribute(DEVICE, &LOOPBACK.to_ne_bytes());
}

/// Writes `struct rtmsg`.
fn header(writer: &mut MessageWriter, family: Family, (length, scope): (u8, u8)) {
    writer.raw(&[family.number(), length, 0, 0, TABLE_LOCAL, PROTOCOL, scope, TYPE_LOCAL, 0, 0, 0, 0]);
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::netns::Namespace;

    fn addresses() -> [IpAddr; 3] {
        ["10.96.0.1", "203.0.113.7", "fd00:96::1"].map(|text| text.parse().unwrap())
    }

    fn ours(routes: &mut LocalRoutes) -> BTreeSet<IpAddr> {
        let listed = Family::ALL.into_iter().flat_map(|family| routes.list(family).unwrap());
        listed.filter(LocalRoute::is_ours).map(|route| route.address).collect()
    }

    #[test]
    fn a_monitor_reports_what_others_change() {
        let namespace = Namespace::new().unwrap();
        namespace.raise_loopback().unwrap();
        namespace
            .run(|| {
                for family in Family::ALL {
                    let (mut own, mut others) = (LocalRoutes::open().unwrap(), LocalRoutes::open().unwrap());
                    let mut monitor = RouteMonitor::open(family, &own).unwrap();
                    let addresses: Vec<IpAddr> =
                        addresses().into_iter().filter(|address| Family::of(*address) == family).collect();
                    let mut changed = || {
                        let mut changed = Vec::new();
                        assert!(!monitor.read(&mut |route| changed.push((route.address, route.is_ours()))).unwrap().0);
                        changed
                    };
                    assert!(own.add(&addresses).unwrap().is_empty());
                    assert_eq!(changed(), []);
                    assert!(others.remove(&addresses).unwrap().is_empty());
                    assert_eq!(changed(), addresses.iter().map(|address| (*address, true)).collect::<Vec<_>>());
                }
            })
            .unwrap();
    }

    #[test]
    fn an_address_is_local_as_long_as_its_route_exists() {
        let namespace = Namespace::new().unwrap();
        namespace.raise_loopback().unwrap();
        namespace
            .run(|| {
                let mut routes = LocalRoutes::open().unwrap();
                assert!(routes.add(&addresses()).unwrap().is_empty());
                let refused = routes.add(&addresses()).unwrap();
                assert!(refused.iter().all(|(_, error)| errno::number(error) == Some(libc::EEXIST)), "{refused:?}");
                assert_eq!(refused.iter().map(|(position, _)| *position).collect::<Vec<_>>(), [0, 1, 2]);
                assert_eq!(ours(&mut routes), addresses().into());
                for address in addresses() {
                    let answer = TcpStream::connect((address, 80)).unwrap_err();
                    assert_eq!(answer.kind(), io::ErrorKind::ConnectionRefused, "{address}: it is this machine's");
                }
                assert!(routes.remove(&addresses()).unwrap().is_empty());
                assert!(routes.remove(&addresses()).unwrap().is_empty(), "what is gone is no error");
                assert!(ours(&mut routes).is_empty());
                let answer = TcpStream::connect((addresses()[0], 80)).unwrap_err();
                assert_ne!(answer.kind(), io::ErrorKind::ConnectionRefused);
            })
            .unwrap();
    }

    #[test]
    fn where_the_loopback_device_was_never_up_there_is_no_route_and_ipv6_gets_none() {
        let namespace = Namespace::new().unwrap();
        namespace
            .run(|| {
                let mut routes = LocalRoutes::open().unwrap();
                assert!(ours(&mut routes).is_empty());
                let refused = routes.add(&addresses()).unwrap();
                let numbers: Vec<_> =
                    refused.iter().map(|(position, error)| (*position, errno::number(error))).collect();
                assert_eq!(numbers, [(2, Some(libc::ENETDOWN))], "{refused:?}");
                assert_eq!(ours(&mut routes), addresses()[..2].iter().copied().collect());
            })
            .unwrap();
    }

    #[test]
    fn routes_of_others_and_broken_messages_are_told_apart() {
        let message = |table, protocol, kind, length, octets: &[u8]| {
            let mut bytes = vec![Family::V4.number(), length, 0, 0, table, protocol, 0, kind, 0, 0, 0, 0];
            bytes.extend(u16::try_from(4 + octets.len()).unwrap().to_ne_bytes());
            bytes.extend(DESTINATION.to_ne_bytes());
            bytes.extend(octets);
            bytes
        };
        let of = |message: Vec<u8>| decode_local_route(&message);
        let address = [10, 96, 0, 1];
        let route = LocalRoute { address: address.into(), protocol: PROTOCOL };
        assert_eq!(of(message(TABLE_LOCAL, PROTOCOL, TYPE_LOCAL, 32, &address)), Ok(Some(route)));
        for other in [(254, TYPE_LOCAL, 32), (TABLE_LOCAL, 3, 32), (TABLE_LOCAL, TYPE_LOCAL, 24)] {
            assert_eq!(of(message(other.0, PROTOCOL, other.1, other.2, &address)), Ok(None), "{other:?}");
        }
        assert!(of(message(TABLE_LOCAL, PROTOCOL, TYPE_LOCAL, 32, &[10, 96])).is_err());
        assert!(of(vec![2; 5]).is_err());
    }
}
