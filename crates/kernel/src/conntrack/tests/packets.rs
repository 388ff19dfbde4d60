//! Conntrack entries created by packets.

use std::net::UdpSocket;
use std::process::Command;

use rustix::net::{AddressFamily, SendFlags, SocketType};

use super::*;

/// The kernel tracks connections only in namespaces with a rule that needs it, such as DNAT.
const RULES: &str = "table ip t {
    chain c {
        type nat hook output priority -100
        ip daddr 192.0.2.1 udp dport 53 dnat to 127.0.0.1:5353
    }
}";

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A datagram that a rule translates, its answer, and one more after the entry was deleted.
#[test]
fn a_translated_flow_has_its_status_bits() {
    isolated(|| {
        run("ip", &["address", "add", "192.0.2.9/24", "dev", "lo"]);
        run("nft", &[RULES]);
        let server = UdpSocket::bind("127.0.0.1:5353").unwrap();
        let client = UdpSocket::bind("127.0.0.1:4000").unwrap();
        client.send_to(b"question", "192.0.2.1:53").unwrap();
        let mut socket = ConntrackSocket::open().unwrap();
        let filter = Filter { port: Some(53), unanswered: true, ..all(Family::V4, UDP) };
        let unreplied = listed(&mut socket, &filter);
        assert_eq!(unreplied.len(), 1);
        assert_eq!(unreplied[0].original, tuple("127.0.0.1:4000", "192.0.2.1:53"));
        assert_eq!(unreplied[0].reply, tuple("127.0.0.1:5353", "127.0.0.1:4000"));
        assert!(unreplied[0].status.contains(FlowStatus::DST_NAT));
        assert!(!unreplied[0].status.contains(FlowStatus::SEEN_REPLY));

        let mut bytes = [0; 16];
        let (length, from) = server.recv_from(&mut bytes).unwrap();
        server.send_to(&bytes[..length], from).unwrap();
        assert_eq!(listed(&mut socket, &filter), []);
        let answered = listed(&mut socket, &all(Family::V4, UDP));
        assert_eq!(answered.len(), 1);
        assert!(answered[0].status.contains(FlowStatus::SEEN_REPLY));
        assert_eq!(answered[0].id, unreplied[0].id, "the id stays");
        assert!(run("conntrack", &["-L", "-p", "udp", "-o", "id"]).contains(&format!("id={}", unreplied[0].id)));

        assert_eq!(socket.delete(&answered).deleted, 1);
        assert_eq!(listed(&mut socket, &all(Family::V4, UDP)), []);
        client.send_to(b"again", "192.0.2.1:53").unwrap();
        assert_eq!(listed(&mut socket, &filter).len(), 1);
    });
}

/// A shortened timeout lasts until the client's next packet, which shows that there was one.
#[test]
fn a_packet_renews_a_timeout() {
    isolated(|| {
        run("ip", &["address", "add", "192.0.2.9/24", "dev", "lo"]);
        run("nft", &[RULES]);
        let clients = [4000, 4001].map(|port| UdpSocket::bind(("127.0.0.1", port)).unwrap());
        let send = |client: &UdpSocket| client.send_to(b"question", "192.0.2.1:53").unwrap();
        clients.iter().for_each(|client| _ = send(client));
        let mut socket = ConntrackSocket::open().unwrap();
        let both = listed(&mut socket, &all(Family::V4, UDP));
        let timeouts = |socket: &mut ConntrackSocket| {
            let mut found = Vec::new();
            socket.timeouts(&both, &mut |entry, seconds| found.push((entry.original.source_port, seconds))).unwrap();
            found
        };
        let full = |seconds: u32| (28..=30).contains(&seconds);
        assert!(matches!(timeouts(&mut socket)[..], [(4000, a), (4001, b)] if full(a) && full(b)));
        socket.set_timeouts(&both.iter().map(|entry| (*entry, 20)).collect::<Vec<_>>()).unwrap();
        let short = |seconds: u32| (18..=20).contains(&seconds);
        assert!(matches!(timeouts(&mut socket)[..], [(4000, a), (4001, b)] if short(a) && short(b)));
        send(&clients[1]);
        assert!(matches!(timeouts(&mut socket)[..], [(4000, a), (4001, b)] if short(a) && full(b)));

        assert_eq!(socket.delete(&both[..1]).deleted, 1);
        assert!(matches!(timeouts(&mut socket)[..], [(4001, _)]));
        for of in [&both[..], &both[..1]] {
            socket.set_timeouts(&of.iter().map(|entry| (*entry, 20)).collect::<Vec<_>>()).unwrap();
        }
        assert!(matches!(timeouts(&mut socket)[..], [(4001, a)] if short(a)));
        assert_eq!(listed(&mut socket, &all(Family::V4, UDP)).len(), 1, "none is created");
    });
}

/// Entries of protocols without ports are not listed.
#[test]
fn icmp_entries_are_left_out() {
    isolated(|| {
        run("nft", &[RULES]);
        let icmp = Some(rustix::net::ipproto::ICMP);
        let raw = rustix::net::socket(AddressFamily::INET, SocketType::RAW, icmp).unwrap();
        let to: std::net::SocketAddrV4 = "127.0.0.1:0".parse().unwrap();
        let request = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
        rustix::net::sendto(&raw, &request, SendFlags::empty(), &to).unwrap();
        assert!(run("conntrack", &["-L", "-p", "icmp"]).contains("icmp"));
        assert_eq!(listed(&mut ConntrackSocket::open().unwrap(), &all(Family::V4, 1)), []);
    });
}

#[test]
fn without_capabilities_conntrack_is_unusable() {
    isolated(|| {
        rustix::thread::set_capabilities(
            None,
            rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            },
        )
        .unwrap();
        let error = ConntrackSocket::open().and_then(|mut socket| socket.dump(&all(Family::V4, UDP), &mut |_| {}));
        assert!(matches!(error, Err(ConntrackError::Unusable(_))), "{error:?}");
    });
}
