//! Interfaces and their addresses, by route netlink.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{Emitable, Parseable};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::{Malformed, MessageWriter, Messages, Notifications, Session};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
const DUMP_ATTEMPTS: u32 = 8;

/// An address of this machine, in the network namespace of the thread that asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalAddress {
    /// of its interface
    pub index: u32,
    /// the machine's own end, where a link has two
    pub address: IpAddr,
    /// of the network
    pub prefix_length: u8,
    /// it is within `127.0.0.0/8` or `::1`
    pub loopback: bool,
    /// it is within `169.254.0.0/16` or `fe80::/10`
    pub link_local: bool,
}

/// A listener to changes of addresses in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct AddressMonitor {
    notifications: Notifications,
    /// names of devices whose addresses don't matter
    ignored: Vec<String>,
}

// === impl AddressMonitor ===

impl AddressMonitor {
    /// Starts to listen, to all devices but those of these names: changes from here on are seen.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(ignored: &[&str]) -> io::Result<Self> {
        let notifications = Notifications::open(NETLINK_ROUTE)?;
        notifications.join(RTNLGRP_IPV4_IFADDR)?;
        notifications.join(RTNLGRP_IPV6_IFADDR)?;
        Ok(Self { notifications, ignored: ignored.iter().map(|&name| name.to_owned()).collect() })
    }

    /// True if an address was added or removed since the last call, or may have been because a notification was lost. Doesn't
    /// wait. [`addresses`] lists what there is now.
    ///
    /// # Errors
    /// The system's.
    pub fn changed(&mut self) -> io::Result<bool> {
        let mut changed = BTreeSet::new();
        let overrun = self.notifications.read(&mut |datagram| {
            for message in Messages::new(datagram) {
                let message = message?;
                if matches!(message.kind, RTM_NEWADDR | RTM_DELADDR) {
                    changed.insert(device_of(message.payload));
                }
            }
            Ok(())
        })?;
        if overrun.0 || changed.is_empty() || self.ignored.is_empty() {
            return Ok(overrun.0 || !changed.is_empty());
        }
        let ignored = indexes(self.ignored.iter().map(String::as_str))?;
        // A device that has gone since has no index any more: that counts as a change.
        Ok(changed.iter().any(|device| device.is_none_or(|device| !ignored.contains(&device))))
    }
}

impl AsFd for AddressMonitor {
    /// To wait for it to be readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }
}

/// Reads the payload of a message about an address; `None` if it names none.
///
/// # Errors
/// [`Malformed`] if it is none.
pub fn decode_address(payload: &[u8]) -> Result<Option<LocalAddress>, Malformed> {
    const HEADER_LEN: usize = 8; // the codec takes it for granted
    payload.get(..HEADER_LEN).ok_or(Malformed("short address message"))?;
    let message = AddressMessage::parse(payload).map_err(|_| Malformed("address message"))?;
    let (mut local, mut address) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            _ => {} // label, broadcast, times
        }
    }
    Ok(local.or(address).map(|address| LocalAddress {
        index: message.header.index,
        address,
        prefix_length: message.header.prefix_len,
        loopback: address.is_loopback(),
        link_local: match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        },
    }))
}

/// The index of the device in the head of a message about an address or a device, where it is the second word; `None` if the
/// message is too short.
fn device_of(payload: &[u8]) -> Option<u32> {
    payload.get(4..8)?.try_into().ok().map(u32::from_ne_bytes)
}

/// All addresses of this machine in the network namespace of the calling thread, also those of devices that are down, except
/// those of the devices with the `ignored` names.
///
/// # Errors
/// The system's error; `Interrupted` if addresses kept changing while the kernel listed them.
pub fn addresses(ignored: &[&str]) -> io::Result<Vec<LocalAddress>> {
    let request = AddressMessage::default();
    let listed = Session::open(NETLINK_ROUTE)?
        .dump(RTM_GETADDR, DUMP_ATTEMPTS, &emit(&request), &mut |attempt| Ok(!attempt.interrupted))?;
    // After the list, so that no device of it can have been made later.
    let ignored = indexes(ignored.iter().copied())?;
    let is_ignored = |payload: &[u8]| device_of(payload).is_some_and(|device| ignored.contains(&device));
    let payloads = listed.of(RTM_NEWADDR).filter(|payload| !is_ignored(payload));
    Ok(payloads.filter_map(|payload| decode_address(payload).transpose()).collect::<Result<_, _>>()?)
}

/// The indexes of the devices of these names that there are.
fn indexes<'a>(names: impl Iterator<Item = &'a str>) -> io::Result<BTreeSet<u32>> {
    let mut indexes = BTreeSet::new();
    for name in names {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let answer = match Session::open(NETLINK_ROUTE)?.request(RTM_GETLINK, 0, emit(&request)) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
            answer => answer?,
        };
        indexes.extend(answer.of(RTM_NEWLINK).filter_map(device_of));
    }
    Ok(indexes)
}

/// The index of the interface with this name.
///
/// # Errors
/// The system's error: `ENODEV` if there is none.
pub fn index(name: &str) -> io::Result<u32> {
    let found = indexes(std::iter::once(name))?;
    found.first().copied().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

/// Brings an interface up.
///
/// # Errors
/// The system's error.
pub fn raise(index: u32) -> io::Result<()> {
    let mut request = LinkMessage::default();
    request.header.index = index;
    request.header.flags = LinkFlags::Up;
    request.header.change_mask = LinkFlags::Up;
    Session::open(NETLINK_ROUTE)?.request(RTM_NEWLINK, 0, emit(&request)).map(drop)
}

/// Writes the payload of a request: header and attributes.
fn emit(request: &impl Emitable) -> impl Fn(&mut MessageWriter) {
    let mut payload = vec![0; request.buffer_len()];
    request.emit(&mut payload);
    move |writer| writer.raw(&payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use std::process::Command;

    fn ip(arguments: &str) {
        let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    }

    fn listed() -> Vec<(IpAddr, u8, bool, bool)> {
        let mut found: Vec<_> = addresses(&[])
            .unwrap()
            .into_iter()
            .map(|a| (a.address, a.prefix_length, a.loopback, a.link_local))
            .collect();
        found.sort();
        found
    }

    #[test]
    fn addresses_are_listed_and_changes_seen() {
        Namespace::new()
            .unwrap()
            .run(|| {
                assert_eq!(listed(), []);
                let mut monitor = AddressMonitor::open(&[]).unwrap();
                assert!(!monitor.changed().unwrap());
                raise(1).unwrap();
                assert!(monitor.changed().unwrap());
                assert!(!monitor.changed().unwrap());
                ip("address add 192.0.2.7/24 dev lo");
                ip("address add 169.254.3.4 peer 198.51.100.1/32 dev lo");
                ip("address add 2001:db8::7/64 dev lo nodad");
                assert!(monitor.changed().unwrap());
                let address = |text: &str| text.parse::<IpAddr>().unwrap();
                let all = [
                    (address("127.0.0.1"), 8, true, false),
                    (address("169.254.3.4"), 32, false, true),
                    (address("192.0.2.7"), 24, false, false),
                    (address("::1"), 128, true, false),
                    (address("2001:db8::7"), 64, false, false),
                ];
                assert_eq!(listed(), all);
                assert!(addresses(&[]).unwrap().iter().all(|address| address.index == 1));
                ip("address del 192.0.2.7/24 dev lo");
                assert!(monitor.changed().unwrap());
                assert_eq!(listed().len(), all.len() - 1);
            })
            .unwrap();
    }

    /// Bridges without ports stand for dummy devices, which not every kernel has: the addresses of both are alike.
    #[test]
    fn devices_of_our_own_are_left_out() {
        const OWN: &[&str] = &["kube-ipvs0", "kube-other0"];
        Namespace::new()
            .unwrap()
            .run(|| {
                let mut monitor = AddressMonitor::open(OWN).unwrap();
                let of = |ignored: &[&str]| {
                    let found = addresses(ignored).unwrap();
                    found.iter().map(|found| found.address.to_string()).collect::<BTreeSet<_>>()
                };
                ip("link add kube-ipvs0 type bridge");
                for address in ["10.96.0.1/32", "10.96.0.10/32"] {
                    ip(&format!("address add {address} dev kube-ipvs0"));
                }
                ip("address add 2001:db8:96::1/128 dev kube-ipvs0 nodad");
                assert!(!monitor.changed().unwrap(), "nothing changed elsewhere");
                assert_eq!(of(OWN), BTreeSet::new());
                assert_eq!(of(&[]).len(), 3);

                // The same address on a device of the node counts, and so does a name that only begins so.
                ip("link add kube-ipvs type bridge");
                ip("address add 10.96.0.1/32 dev kube-ipvs");
                assert!(monitor.changed().unwrap());
                assert_eq!(of(OWN), BTreeSet::from(["10.96.0.1".to_owned()]));
                ip("address del 10.96.0.10/32 dev kube-ipvs0");
                ip("address add 10.96.0.11/32 dev kube-ipvs0");
                assert!(!monitor.changed().unwrap());

                ip("link del kube-ipvs0");
                assert!(monitor.changed().unwrap(), "whose they were isn't known any more");
                assert_eq!(of(OWN), BTreeSet::from(["10.96.0.1".to_owned()]));
            })
            .unwrap();
    }

    #[test]
    fn a_missing_interface_is_an_error() {
        let error = Namespace::new().unwrap().run(|| raise(77)).unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn short_messages_are_refused() {
        assert!(decode_address(&[2, 24, 0]).is_err());
        assert_eq!(decode_address(&[2, 24, 0, 0, 1, 0, 0, 0]), Ok(None));
    }
}
