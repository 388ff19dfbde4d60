//! Messages as bytes, and sockets over scripted answers. The tests on a kernel are in `tests/ipvs.rs`: not every kernel has IPVS.

mod garbage;
mod messages;
mod sockets;

use super::*;

/// The number of IPVS's generic netlink family in these tests.
const FAMILY: u16 = 35;

/// `TCP 10.96.0.1:80 rr`, as Linux 6.12 dumps it.
const V4_SERVER: &str = "010100002c01010006000100020000000600020006000000140003000a600001000000000000000000000000060004000050000007000600\
     727200000c00070002000000ffffffff080008000000000008000900ffffffff5c000a00080001000700000008000200090000000800030008000000\
     0c00040000000000010000000c00050000000000020000000800060000000000080007000000000008000800000000000800090000000000\
     08000a00000000007c000c000c00010007000000030000000c00020009000000000000000c00030008000000000000000c00040000000000\
     010000000c00050000000000020000000c00060000000000000000000c00070000000000000000000c00080000000000000000000c000900\
     00000000000000000c000a000000000000000000";

/// `UDP [fd00:96::1]:53 sh (sh-port) persistent 10800`, as Linux 6.12 dumps it, without its statistics.
const V6_SERVER: &str = "0101000054000100060001000a000000060002001100000014000300fd00009600000000000000000000000106000400003500000700\
     0600736800000c00070013000000ffffffff08000800302a00000800090080000000";

/// `FWM 7 rr`, as Linux 6.12 dumps it, without its statistics.
const MARK: &str = "010100003800010006000100020000000800050007000000070006007272\
     00000c00070002000000ffffffff080008000000000008000900ffffffff";

/// `10.1.0.1:8080 Masq 3`, as Linux 6.12 dumps it, without its statistics.
const V4_DESTINATION: &str = "0501000078000200140001000a010001000000000000000000000000060002001f9000000800030000000000080004000300000005000d00\
     0000000006000e000000000006000f00000000000800050000000000080006000000000008000700020000000800080001000000080009000500000006000b00\
     02000000";

/// `[fd00:1::1]:5353 Masq 1` with thresholds, as Linux 6.12 dumps it, without its statistics.
const V6_DESTINATION: &str = "050100007800020014000100fd0000010000000000000000000000010600020014e900000800030000000000080004000100000005000d00\
     0000000006000e000000000006000f00000000000800050009000000080006000400000008000700000000000800080000000000080009000000000006000b00\
     0a000000";

/// 900, 120 and 300 seconds.
const TIMEOUTS: &str = "0c010000080004008403000008000500780000000800060\
     02c010000";

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes().chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

fn id(protocol: IpvsProtocol, address: &str) -> ServerId {
    let address: std::net::SocketAddr = address.parse().unwrap();
    ServerId { address: address.ip(), port: address.port(), protocol }
}

fn v4_server() -> IpvsServer {
    IpvsServer {
        id: id(IpvsProtocol::Tcp, "10.96.0.1:80"),
        scheduler: Scheduler::new("rr").unwrap(),
        flags: Flags::default(),
        timeout_seconds: 0,
        netmask: u32::MAX,
    }
}

fn v6_server() -> IpvsServer {
    IpvsServer {
        id: id(IpvsProtocol::Udp, "[fd00:96::1]:53"),
        scheduler: Scheduler::new("sh").unwrap(),
        flags: Flags(Flags::PERSISTENT.0 | Flags::SCHEDULER_2.0),
        timeout_seconds: 10_800,
        netmask: 128,
    }
}

fn v4_destination() -> IpvsDestination {
    IpvsDestination {
        address: "10.1.0.1:8080".parse().unwrap(),
        weight: 3,
        forwarding: Forwarding::MASQUERADE,
        upper_threshold: 0,
        lower_threshold: 0,
    }
}

fn v6_destination() -> IpvsDestination {
    IpvsDestination {
        address: "[fd00:1::1]:5353".parse().unwrap(),
        weight: 1,
        upper_threshold: 9,
        lower_threshold: 4,
        ..v4_destination()
    }
}
