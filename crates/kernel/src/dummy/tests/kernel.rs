//! The running kernel. A bridge without ports stands for the dummy, which not every kernel has: the addresses of both are alike.

use std::process::Command;

use ferry_family::Family;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::*;
use crate::errno::{self, ErrorClass};
use crate::netlink::{Messages, Notifications};
use crate::netns::Namespace;

/// `RTNLGRP_IPV4_ROUTE`
const ROUTES: u32 = 7;
/// `RTM_DELROUTE`
const ROUTE_GONE: u16 = 25;

/// Runs a test in a fresh namespace with a device, and passes its index.
fn with_device(test: impl FnOnce(DeviceSocket, u32) + Send) {
    let namespace = Namespace::new().expect("these tests need root");
    namespace
        .run(|| {
            let mut socket = DeviceSocket::open().unwrap();
            run(&format!("link add {NAME} type bridge"));
            let index = socket.device(NAME).unwrap().unwrap().index;
            test(socket, index);
        })
        .unwrap();
}

fn run(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn numbers(refused: &[Refused]) -> Vec<(usize, Option<i32>)> {
    refused.iter().map(|refused| (refused.position, errno::number(&refused.error))).collect()
}

#[test]
fn a_device_of_another_kind_is_left_alone() {
    with_device(|mut socket, index| {
        for error in [socket.find(NAME).unwrap_err(), socket.delete(NAME).unwrap_err()] {
            assert!(
                matches!(&error, DeviceError::AnotherKind { name, kind: Some(kind) } if name == NAME && kind == "bridge")
            );
            assert_eq!(error.to_string(), "device kube-ipvs0 is of kind bridge, not dummy");
        }
        assert_eq!(socket.find("lo").unwrap_err().to_string(), "device lo is of no kind, not dummy");
        assert_eq!(socket.device(NAME).unwrap().unwrap().index, index);
        assert_eq!(socket.find("kube-ipvs").unwrap(), None);
        assert!(!socket.delete("kube-ipvs").unwrap());
        assert!(matches!(socket.find("sixteen-letters0"), Err(DeviceError::Io(_))), "too long for a name");
    });
}

#[test]
fn addresses_are_added_listed_and_removed_each_refused_on_its_own() {
    with_device(|mut socket, index| {
        run(&format!("address add 10.96.0.2/24 dev {NAME}"));
        run("address add 10.96.0.3/32 dev lo");
        let before = socket.sent();
        let wanted = ["10.96.0.1", "10.96.0.1", "fd00:96::1", "fd00:96::1", "10.96.0.3"].map(ip);
        let refused = socket.add(index, &wanted).unwrap();
        assert_eq!(numbers(&refused), [(1, Some(libc::EEXIST)), (3, Some(libc::EEXIST))]);
        assert_eq!(socket.sent(), Sent { messages: before.messages + 5, sends: before.sends + 1 });
        let mut list = |family| {
            let found = socket.addresses(index, family).unwrap();
            found.iter().map(|found| (found.network.to_string(), found.is_source())).collect::<Vec<_>>()
        };
        let entry = |network: &str, is_source| (network.to_owned(), is_source);
        let mut v4 = list(Family::V4);
        v4.sort();
        let all = [entry("10.96.0.1/32", false), entry("10.96.0.2/24", true), entry("10.96.0.3/32", false)];
        assert_eq!(v4, all);
        assert_eq!(list(Family::V6), [entry("fd00:96::1/128", false)]);

        let networks = ["10.96.0.1/32", "10.96.0.2/32", "10.96.0.2/24", "fd00:96::2/128", "fd00:96::1/128"];
        let refused = socket.remove(index, &networks.map(|text| text.parse().unwrap())).unwrap();
        assert_eq!(numbers(&refused), [1, 3].map(|position| (position, Some(libc::EADDRNOTAVAIL))));
        assert_eq!(socket.addresses(index, Family::V4).unwrap().len(), 1);
        assert_eq!(socket.addresses(index, Family::V6).unwrap(), []);
    });
}

#[test]
fn an_adopted_address_is_deprecated_in_place() {
    with_device(|mut socket, index| {
        run(&format!("address add fd00:96::1/128 dev {NAME} nodad"));
        let found = socket.addresses(index, Family::V6).unwrap();
        assert_eq!((found.len(), found[0].is_source(), found[0].preferred), (1, true, None));
        let refused = socket.deprecate(index, &["fd00:96::1".parse().unwrap()]).unwrap();
        assert_eq!(numbers(&refused), []);
        let found = socket.addresses(index, Family::V6).unwrap();
        assert_eq!((found.len(), found[0].is_source(), found[0].preferred), (1, false, Some(Duration::ZERO)));
    });
}

/// Its route to itself is there all the time: the kernel would notify of a removed one.
#[test]
fn an_adopted_ipv4_address_becomes_one_of_the_host_without_a_gap() {
    with_device(|mut socket, index| {
        let wanted: Vec<std::net::Ipv4Addr> = (0..=255).map(|last| [10, 96, 1, last].into()).collect();
        // More than one `send` takes, with neighbours that share a prefix with the stand-ins.
        for ip in &wanted {
            run(&format!("address add {ip}/32 dev {NAME}"));
        }
        let routes = Notifications::open(NETLINK_ROUTE).unwrap();
        routes.join(ROUTES).unwrap();
        let mut routes = routes;
        let before = socket.sent();
        assert_eq!(numbers(&socket.rescope(index, &wanted).unwrap()), []);
        assert_eq!(socket.sent().sends - before.sends, 4);
        let found = socket.addresses(index, Family::V4).unwrap();
        assert_eq!(found.len(), wanted.len());
        assert!(found.iter().all(|found| !found.is_source() && found.network.prefix_len() == 32), "{found:?}");
        let mut gone = 0;
        let overrun = routes.read(&mut |datagram| {
            gone += Messages::new(datagram).filter(|message| message.as_ref().unwrap().kind == ROUTE_GONE).count();
            Ok(())
        });
        assert!(!overrun.unwrap().0 && gone == 0, "{gone} addresses were not local for a moment");
        // One that another program has removed is added; a missing device is an error.
        let refused = socket.rescope(index, &[[10, 96, 2, 1].into()]).unwrap();
        assert_eq!((numbers(&refused), socket.addresses(index, Family::V4).unwrap().len()), (vec![], wanted.len() + 1));
        let refused = socket.rescope(index + 1, &wanted).unwrap();
        assert_eq!(numbers(&refused).last(), Some(&(wanted.len() - 1, Some(libc::ENODEV))));
    });
}

#[test]
fn a_kernel_without_dummies_is_recognised() {
    Namespace::new()
        .unwrap()
        .run(|| match DeviceSocket::open().unwrap().create(NAME) {
            Ok(device) => assert!(device.is_dummy()),
            Err(DeviceError::Io(error)) => assert_eq!(ErrorClass::of(&error), ErrorClass::Unsupported, "{error}"),
            Err(error) => panic!("{error}"),
        })
        .unwrap();
}

#[test]
fn a_missing_device_is_an_error() {
    with_device(|mut socket, index| {
        let refused = socket.add(index + 1, &["10.96.0.1", "fd00:96::1"].map(ip)).unwrap();
        assert_eq!(numbers(&refused), [(0, Some(libc::ENODEV)), (1, Some(libc::ENODEV))]);
        for family in Family::ALL {
            let error = socket.addresses(index + 1, family).unwrap_err();
            assert_eq!(errno::number(&error), Some(libc::ENODEV));
        }
    });
}

#[test]
fn own_changes_of_ipv4_addresses_are_not_notified() {
    with_device(|mut socket, index| {
        let mut monitor = Monitor::open(NAME, &[Family::V4]).unwrap();
        monitor.ignore(&[socket.port_id()].into()).unwrap();
        let mut read = || {
            let mut changes = Vec::new();
            assert!(!monitor.read(&mut |event| changes.push(event.change)).unwrap().0);
            changes
        };
        assert_eq!(numbers(&socket.add(index, &["10.96.0.1", "fd00:96::1"].map(ip)).unwrap()), []);
        assert_eq!(read(), []);
        let added = socket.addresses(index, Family::V4).unwrap()[0];
        run(&format!("address del 10.96.0.1/32 dev {NAME}"));
        assert_eq!(read(), [DeviceChange::Removed(added)]);
        run(&format!("link del {NAME}"));
        assert_eq!(read().last(), Some(&DeviceChange::DeviceGone));
    });
}
