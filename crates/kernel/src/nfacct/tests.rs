use super::*;
use crate::netns::Namespace;

const NAME: &str = "ct_state_invalid_dropped_pkts";

fn run<T: Send>(namespace: &Namespace, action: impl FnOnce() -> T + Send) -> T {
    namespace.run(action).unwrap()
}

#[test]
fn counters_are_per_namespace_and_persist() {
    let (one, other) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    assert_eq!(run(&one, || packets(NAME)).unwrap(), None);
    run(&one, || create(NAME)).unwrap();
    assert_eq!(run(&one, || packets(NAME)).unwrap(), Some(0));
    assert_eq!(run(&other, || packets(NAME)).unwrap(), None);
}

/// A rule counts packets; creating the counter again keeps its count.
#[test]
fn packets_are_counted() {
    let namespace = Namespace::new().unwrap();
    namespace.raise_loopback().unwrap();
    run(&namespace, || {
        create(NAME).unwrap();
        let status = std::process::Command::new("iptables-nft")
            .args(["-A", "OUTPUT", "-p", "udp", "--dport", "9", "-m", "nfacct", "--nfacct-name", NAME])
            .status()
            .expect("iptables-nft must be installed");
        assert!(status.success());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for count in 1..=3 {
            // the previous datagram may have been answered by "port unreachable", which fails the next send
            let sent = || socket.send_to(b"x", "127.0.0.1:9");
            sent().or_else(|_| sent()).unwrap();
            create(NAME).unwrap();
            assert_eq!(packets(NAME).unwrap(), Some(count));
        }
    });
}

#[test]
fn malformed_names_are_refused() {
    let namespace = Namespace::new().unwrap();
    for name in ["", &"x".repeat(32)] {
        assert!(run(&namespace, || create(name)).is_err(), "{name:?}");
    }
    run(&namespace, || create(&"x".repeat(31))).unwrap();
    assert_eq!(run(&namespace, || packets(&"x".repeat(31))).unwrap(), Some(0));
    assert_eq!(run(&namespace, || packets(&"x".repeat(30))).unwrap(), None);
}

#[test]
fn truncated_answers_are_errors() {
    let whole = [0, 0, 0, 0, 12, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 2];
    assert_eq!(count(&whole), Ok(Some(0x102)));
    for end in 0..whole.len() {
        assert!(count(&whole[..end]).is_err() || end == nfnetlink::HEADER_LEN, "{end}");
    }
    assert_eq!(count(&whole[..nfnetlink::HEADER_LEN]), Ok(None));
    assert!(count(&[0, 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 1]).is_err(), "a count of four bytes");
}
