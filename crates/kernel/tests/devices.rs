//! The device of kind `dummy` and ipset, on kernels that have them, with `ip` and `ipset` as oracles; each test in a network
//! namespace of its own. `tests/lanes/vm` boots such a kernel.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use ferry_family::Family;
use ferry_kernel::dummy::{ADDRESSES_PER_SEND, Device, DeviceChange, DeviceError, DeviceSocket, Monitor, Refused};
use ferry_kernel::errno::{self, ErrorClass};
use ferry_kernel::ipset::{self, Member, Set};
use ferry_kernel::netns::Namespace;
use ipnet::IpNet;

const NAME: &str = "kube-ipvs0";

/// Runs a test in a fresh namespace.
fn isolated(test: impl FnOnce() + Send) {
    let namespace = Namespace::new().expect("these tests need root");
    namespace.raise_loopback().unwrap();
    namespace.run(test).unwrap();
}

/// Runs a tool and returns its output.
fn run(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn numbers(refused: &[Refused]) -> Vec<(usize, Option<i32>)> {
    refused.iter().map(|refused| (refused.position, errno::number(&refused.error))).collect()
}

fn create() -> (DeviceSocket, Device) {
    let mut socket = DeviceSocket::open().unwrap();
    let device = socket.create(NAME).unwrap();
    (socket, device)
}

#[test]
#[ignore = "needs a kernel with dummy devices: runs in virtual machines"]
fn a_dummy_is_created_found_and_deleted() {
    isolated(|| {
        let mut socket = DeviceSocket::open().unwrap();
        assert_eq!(socket.find(NAME).unwrap(), None);
        let device = socket.create(NAME).unwrap();
        let wanted =
            Device { index: device.index, name: NAME.to_owned(), kind: Some("dummy".to_owned()), is_up: false };
        assert_eq!(device, wanted);
        assert_eq!(socket.find(NAME).unwrap(), Some(wanted.clone()));
        let shown = run(&format!("ip -d -o link show {NAME}"));
        assert!(shown.contains(" dummy ") && shown.contains("state DOWN"), "{shown}");
        let Err(DeviceError::Io(error)) = socket.create(NAME) else { panic!("created twice") };
        assert_eq!(ErrorClass::of(&error), ErrorClass::Exists);

        run(&format!("ip link set {NAME} up"));
        assert_eq!(socket.find(NAME).unwrap(), Some(Device { is_up: true, ..wanted }));
        assert!(socket.delete(NAME).unwrap());
        assert!(!socket.delete(NAME).unwrap());
        assert!(!run("ip link").contains(NAME));
    });
}

#[test]
#[ignore = "needs a kernel with dummy devices: runs in virtual machines"]
fn a_device_of_another_kind_is_left_alone() {
    isolated(|| {
        run(&format!("ip link add {NAME} type bridge"));
        let mut socket = DeviceSocket::open().unwrap();
        for error in [socket.find(NAME).unwrap_err(), socket.delete(NAME).unwrap_err()] {
            assert_eq!(error.to_string(), "device kube-ipvs0 is of kind bridge, not dummy");
        }
        let Err(DeviceError::Io(error)) = socket.create(NAME) else { panic!("the name is taken") };
        assert_eq!(ErrorClass::of(&error), ErrorClass::Exists);
        assert!(run(&format!("ip -d -o link show {NAME}")).contains(" bridge "));
    });
}

/// On a device that is down, as upstream's is.
#[test]
#[ignore = "needs a kernel with dummy devices: runs in virtual machines"]
fn service_addresses_are_local_but_no_sources() {
    isolated(|| {
        let (mut socket, device) = create();
        let service = ["10.96.0.1", "fd00:96::1"].map(ip);
        assert_eq!(numbers(&socket.add(device.index, &service).unwrap()), []);
        let shown = run(&format!("ip -o addr show dev {NAME}"));
        let line = |address: &str| {
            shown.lines().find(|line| line.contains(address)).unwrap_or_else(|| panic!("{address} in {shown}"))
        };
        assert!(line("10.96.0.1/32").contains(" scope host "), "{shown}");
        let v6 = line("fd00:96::1/128");
        assert!(v6.contains(" deprecated") && v6.contains("preferred_lft 0sec"), "{shown}");
        assert!(v6.contains("valid_lft forever") && !v6.contains("tentative"), "{shown}");
        for family in Family::ALL {
            let found = socket.addresses(device.index, family).unwrap();
            let service: Vec<IpNet> = found.iter().map(|found| found.network).collect();
            assert_eq!(service, [IpNet::from(if family == Family::V4 { ip("10.96.0.1") } else { ip("fd00:96::1") })]);
            assert!(!found[0].is_source());
        }
        for address in service {
            assert!(run(&format!("ip route get {address}")).starts_with("local "), "{address}");
        }

        // The interface to the outside has no address of its own, so that the kernel chooses among those of the others.
        run("ip link add outside type bridge");
        run("ip link add node type bridge");
        run("ip link set outside up");
        run("ip address add 192.0.2.7/24 dev node");
        run("ip address add fd00:7::7/64 dev node nodad");
        run("ip route add default dev outside");
        run("ip -6 route add default dev outside");
        let source = |other: &str| {
            let socket = UdpSocket::bind(if ip(other).is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
            socket.connect((ip(other), 9)).unwrap();
            socket.local_addr().unwrap().ip()
        };
        assert_eq!(["198.51.100.1", "fd00:96::99"].map(source), ["192.0.2.7", "fd00:7::7"].map(ip));
        // An address with neither scope `host` nor the preferred lifetime 0 is chosen.
        run(&format!("ip address add 10.96.0.2/32 dev {NAME}"));
        run(&format!("ip address add fd00:96::2/128 dev {NAME} nodad"));
        assert_eq!(["198.51.100.1", "fd00:96::99"].map(source), ["10.96.0.2", "fd00:96::2"].map(ip));
    });
}

#[test]
#[ignore = "needs a kernel with dummy devices: runs in virtual machines"]
fn an_adopted_address_is_deprecated_in_place() {
    isolated(|| {
        let (mut socket, device) = create();
        run(&format!("ip address add fd00:96::1/128 dev {NAME} nodad"));
        assert!(socket.addresses(device.index, Family::V6).unwrap()[0].is_source());
        let addresses: [Ipv6Addr; 1] = ["fd00:96::1".parse().unwrap()];
        assert_eq!(numbers(&socket.deprecate(device.index, &addresses).unwrap()), []);
        let found = socket.addresses(device.index, Family::V6).unwrap();
        assert_eq!((found.len(), found[0].is_source(), found[0].preferred), (1, false, Some(Duration::ZERO)));
        let shown = run(&format!("ip -o addr show dev {NAME}"));
        assert!(shown.contains("deprecated") && shown.contains("valid_lft forever"), "{shown}");
    });
}

#[test]
#[ignore = "needs a kernel with dummy devices: runs in virtual machines"]
fn many_addresses_are_added_and_removed_in_batches() {
    const COUNT: u16 = 10_000;
    isolated(|| {
        let (mut socket, device) = create();
        let v4 = |n: u16| IpAddr::from(Ipv4Addr::from(0x0a60_0000 + u32::from(n)));
        let v6 = |n: u16| IpAddr::from(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, n));
        let both = |n: u16| if n.is_multiple_of(2) { v4(n) } else { v6(n) };
        let present = [3, 255, 256, 1_000, 9_999];
        let some: Vec<_> = present.map(both).to_vec();
        assert_eq!(numbers(&socket.add(device.index, &some).unwrap()), []);

        let all: Vec<_> = (0..COUNT).map(both).collect();
        let before = socket.sent();
        let start = Instant::now();
        let refused = socket.add(device.index, &all).unwrap();
        println!("{COUNT} addresses added in {:?}", start.elapsed());
        assert_eq!(numbers(&refused), present.map(|n| (usize::from(n), Some(libc::EEXIST))));
        let sends = all.len().div_ceil(ADDRESSES_PER_SEND) as u64;
        assert_eq!(socket.sent().messages - before.messages, COUNT.into());
        assert_eq!(socket.sent().sends - before.sends, sends);
        let listed: BTreeSet<IpNet> = Family::ALL
            .into_iter()
            .flat_map(|family| socket.addresses(device.index, family).unwrap())
            .map(|address| address.network)
            .collect();
        let networks: Vec<_> = all.iter().copied().map(IpNet::from).collect();
        assert_eq!(listed, networks.iter().copied().collect());
        assert_eq!(run(&format!("ip -o addr show dev {NAME}")).lines().count(), all.len());

        assert_eq!(numbers(&socket.remove(device.index, &present.map(|n| both(n).into())).unwrap()), []);
        let refused = socket.remove(device.index, &networks).unwrap();
        assert_eq!(numbers(&refused), present.map(|n| (usize::from(n), Some(libc::EADDRNOTAVAIL))));
        assert_eq!(run(&format!("ip -o addr show dev {NAME}")), "");
        // Every one of a send is refused, with all their errors.
        assert_eq!(socket.remove(device.index, &networks).unwrap().len(), all.len());
    });
}

/// The state of each address of which something was read: present or not.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    addresses: BTreeMap<String, bool>,
    /// of the device: its index, or that it is gone
    devices: Vec<Option<u32>>,
    /// those who changed IPv4 addresses
    port_ids: BTreeSet<u32>,
}

/// Reads until so many addresses were seen: the kernel notifies a new one of IPv6 a little later, in a work item.
fn read_addresses(monitor: &mut Monitor, number: usize) -> Seen {
    let mut seen = Seen::default();
    let start = Instant::now();
    while seen.addresses.len() < number && start.elapsed() < Duration::from_secs(20) {
        read_into(monitor, &mut seen);
    }
    seen
}

fn read(monitor: &mut Monitor) -> Seen {
    let mut seen = Seen::default();
    read_into(monitor, &mut seen);
    seen
}

fn read_into(monitor: &mut Monitor, seen: &mut Seen) {
    let overrun = monitor.read(&mut |event| match event.change {
        DeviceChange::Device(device) => seen.devices.push(Some(device.index)),
        DeviceChange::DeviceGone => seen.devices.push(None),
        DeviceChange::Added(address) | DeviceChange::Removed(address) => {
            if address.network.addr().is_ipv4() {
                seen.port_ids.insert(event.port_id);
            } else {
                assert_eq!(event.port_id, 0, "documented");
            }
            let is_there = matches!(event.change, DeviceChange::Added(_));
            seen.addresses.insert(address.network.addr().to_string(), is_there);
        }
    });
    assert!(!overrun.unwrap().0);
}

#[test]
#[ignore = "needs a kernel with dummy devices: runs in virtual machines"]
fn changes_are_notified_and_own_ones_told_apart() {
    isolated(|| {
        let state = |states: &[(&str, bool)]| states.iter().map(|(ip, is)| ((*ip).to_owned(), *is)).collect();
        let mut monitor = Monitor::open(NAME, &Family::ALL).unwrap();
        let (mut socket, device) = create();
        assert_eq!(read(&mut monitor).devices.first(), Some(&Some(device.index)));
        let service = ["10.96.0.1", "fd00:96::1"].map(ip);
        assert_eq!(numbers(&socket.add(device.index, &service).unwrap()), []);
        let seen = read_addresses(&mut monitor, 2);
        assert_eq!(seen.addresses, state(&[("10.96.0.1", true), ("fd00:96::1", true)]));
        assert_eq!(seen.port_ids, BTreeSet::from([socket.port_id()]));

        // Another program's changes of this device, and of another one.
        run(&format!("ip addr del 10.96.0.1/32 dev {NAME}"));
        run(&format!("ip addr del fd00:96::1/128 dev {NAME}"));
        run("ip addr add 10.96.0.9/32 dev lo");
        let seen = read(&mut monitor);
        assert_eq!(seen.addresses, state(&[("10.96.0.1", false), ("fd00:96::1", false)]));
        assert!(!seen.port_ids.contains(&socket.port_id()));

        // Ignored: the own ones of IPv4. The last event of an address is its state.
        monitor.ignore(&[socket.port_id()].into()).unwrap();
        assert_eq!(numbers(&socket.add(device.index, &service).unwrap()), []);
        run(&format!("ip addr del fd00:96::1/128 dev {NAME}"));
        assert_eq!(read(&mut monitor).addresses, state(&[("fd00:96::1", false)]));

        run(&format!("ip link set {NAME} name kube-other0"));
        assert_eq!(read(&mut monitor).devices, [None]);
        run(&format!("ip link set kube-other0 name {NAME}"));
        assert_eq!(read(&mut monitor).devices, [Some(device.index)]);
        run(&format!("ip link del {NAME}"));
        let seen = read(&mut monitor);
        assert_eq!((seen.devices.last(), seen.addresses), (Some(&None), state(&[("10.96.0.1", false)])));
    });
}

#[test]
#[ignore = "needs a kernel with dummy devices: runs in virtual machines"]
fn an_overrun_is_reported_and_the_device_followed() {
    isolated(|| {
        let (mut socket, device) = create();
        let mut monitor = Monitor::open(NAME, &[Family::V4]).unwrap();
        monitor.set_receive_buffer(4_096).unwrap();
        let many: Vec<_> = (0..200).map(|n| IpAddr::from([10, 96, 1, n])).collect();
        assert_eq!(numbers(&socket.add(device.index, &many).unwrap()), []);
        assert!(socket.delete(NAME).unwrap());
        let device = socket.create(NAME).unwrap();
        assert!(monitor.read(&mut |_| {}).unwrap().0);
        assert_eq!(numbers(&socket.add(device.index, &[ip("10.96.0.1")]).unwrap()), []);
        assert_eq!(read(&mut monitor).addresses.len(), 1, "of the new device");
    });
}

#[test]
#[ignore = "needs a kernel with ipset: runs in virtual machines"]
fn sets_are_listed_with_their_members_and_destroyed() {
    isolated(|| {
        assert_eq!(ipset::sets().unwrap(), []);
        run("ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535");
        run("ipset create KUBE-CLUSTER-IP hash:ip,port");
        run("ipset create KUBE-6-CLUSTER-IP hash:ip,port family inet6");
        run("ipset create KUBE-LOOP-BACK hash:ip,port,ip");
        for member in ["KUBE-NODE-PORT-TCP 30080", "KUBE-NODE-PORT-TCP 53", "KUBE-CLUSTER-IP 10.96.0.1,tcp:443"] {
            run(&format!("ipset add {member}"));
        }
        run("ipset add KUBE-6-CLUSTER-IP fd00:96::1,udp:53");
        run("ipset add KUBE-LOOP-BACK 10.1.0.1,tcp:443,10.1.0.1");
        run("iptables -A OUTPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT");

        let mut sets = ipset::sets().unwrap();
        sets.sort_by(|a, b| a.name.cmp(&b.name));
        let set = |name: &str, type_name: &str, family, references, elements| Set {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            family,
            references,
            elements: Some(elements),
        };
        let all = [
            set("KUBE-6-CLUSTER-IP", "hash:ip,port", Some(Family::V6), 0, 1),
            set("KUBE-CLUSTER-IP", "hash:ip,port", Some(Family::V4), 1, 1),
            set("KUBE-LOOP-BACK", "hash:ip,port,ip", Some(Family::V4), 0, 1),
            set("KUBE-NODE-PORT-TCP", "bitmap:port", None, 0, 2),
        ];
        assert_eq!(sets, all);
        let member = |address, protocol, port| Member::Socket { address: ip(address), protocol, port };
        assert_eq!(ipset::members("KUBE-NODE-PORT-TCP").unwrap(), [Member::Port(53), Member::Port(30_080)]);
        assert_eq!(ipset::members("KUBE-CLUSTER-IP").unwrap(), [member("10.96.0.1", 6, 443)]);
        assert_eq!(ipset::members("KUBE-6-CLUSTER-IP").unwrap(), [member("fd00:96::1", 17, 53)]);
        let error = ipset::members("KUBE-LOOP-BACK").unwrap_err();
        assert_eq!(error.to_string(), "ipset KUBE-LOOP-BACK is of type hash:ip,port,ip, whose members are not decoded");

        assert_eq!(ErrorClass::of(&ipset::destroy("KUBE-CLUSTER-IP").unwrap_err()), ErrorClass::InUse);
        run("iptables -F OUTPUT");
        for set in all {
            ipset::destroy(&set.name).unwrap();
            for error in [ipset::destroy(&set.name).unwrap_err(), ipset::members(&set.name).unwrap_err()] {
                assert_eq!(errno::number(&error), Some(libc::ENOENT));
            }
        }
        assert_eq!(run("ipset list -n"), "");
    });
}

/// More members than one datagram has room for.
#[test]
#[ignore = "needs a kernel with ipset: runs in virtual machines"]
fn long_lists_of_members_are_complete() {
    isolated(|| {
        run("ipset create PORTS bitmap:port range 0-65535");
        run("ipset add PORTS 1-5000");
        let mut members = ipset::members("PORTS").unwrap();
        members.sort_unstable();
        assert_eq!(members, (1..=5_000).map(Member::Port).collect::<Vec<_>>());
        ipset::destroy("PORTS").unwrap();
    });
}
