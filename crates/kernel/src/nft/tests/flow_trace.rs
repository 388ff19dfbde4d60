//! Reports about the packets of a flow: all tables are in them, other flows are not, and nothing is left.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::tool::nft;
use super::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const UDP: u8 = 17;
const TCP: u8 = 6;
const PORT: u16 = 5300;

fn flow(protocol: u8, port: u16) -> Flow {
    Flow { source: HERE, destination: HERE, protocol, port }
}

/// The reports that come within a moment.
fn events(trace: &mut FlowTrace) -> Vec<TraceEvent> {
    let mut events = Vec::new();
    while trace.wait(Duration::from_millis(200)).unwrap() {
        assert_eq!(trace.read(&mut |event| events.push(event)).unwrap(), Overrun(false));
    }
    events
}

fn send(port: u16) {
    let socket = UdpSocket::bind((HERE, 0)).unwrap();
    // The system reports an ICMP error of an earlier packet here.
    let _ = socket.send_to(b"x", (HERE, port));
}

#[test]
fn a_packet_is_reported_from_its_mark_to_the_foreign_rule_that_drops_it() {
    isolated(|| {
        nft("add table inet wall
             add chain inet wall entry { type filter hook input priority 0; }
             add chain inet wall checks
             add rule inet wall entry jump checks
             add rule inet wall checks udp dport 5300 drop");
        let mut trace = FlowTrace::start(&flow(UDP, PORT), "marks").unwrap();
        assert_eq!(trace.table(), "marks");
        send(PORT + 1);
        assert_eq!(events(&mut trace), []);
        send(PORT);
        let met = events(&mut trace);
        let first = met.first().unwrap();
        assert_eq!((&*first.table, &*first.chain), ("marks", "output"));
        let ends = first.headers.unwrap();
        assert_eq!((ends.source.0, ends.destination), (HERE, (HERE, PORT)));
        let last = met.last().unwrap();
        assert_eq!((&*last.table, &*last.chain, last.family), ("wall", "checks", Some(TableFamily::Inet)));
        assert!(matches!(last.kind, TraceKind::Rule { verdict: Some(Verdict::Drop), .. }), "{last:?}");
        let TraceKind::Rule { handle, .. } = last.kind else { unreachable!() };
        let rules = NftSocket::open().unwrap().rules(TableFamily::Inet, "wall", Some("checks")).unwrap();
        assert!(rules.iter().any(|(_, rule)| rule.handle == handle));
        let jump = met.iter().find(|event| event.chain == "entry").unwrap();
        assert!(
            matches!(&jump.kind, TraceKind::Rule { verdict: Some(Verdict::Jump(to)), .. } if to == "checks"),
            "{jump:?}"
        );
    });
}

#[test]
fn of_a_tcp_connection_the_packet_that_opens_it_is_reported() {
    isolated(|| {
        nft("add table ip wall
             add chain ip wall entry { type filter hook input priority 0; policy accept; }");
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut trace = FlowTrace::start(&flow(TCP, port), "marks").unwrap();
        let _client = TcpStream::connect((HERE, port)).unwrap();
        let met = events(&mut trace);
        let marked: Vec<&str> =
            met.iter().filter(|event| event.table == "marks").map(|event| event.chain.as_str()).collect();
        assert!(marked.contains(&"output") && marked.contains(&"prerouting"), "{met:?}");
        assert!(
            met.iter().any(|event| event.chain == "entry" && event.kind == TraceKind::Policy { drops: false }),
            "{met:?}"
        );
    });
}

#[test]
fn the_table_goes_with_its_owner_and_admits_no_second_one() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let trace = FlowTrace::start(&flow(UDP, PORT), "marks").unwrap();
        let table = socket.table(Family::V4, "marks").unwrap().unwrap();
        assert!(table.owner.is_some(), "{table:?}");
        let second = FlowTrace::start(&flow(UDP, PORT), "marks");
        assert_eq!(second.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        drop(trace);
        assert_eq!(socket.table(Family::V4, "marks").unwrap(), None);
        let two = Flow { source: HERE, destination: "::1".parse().unwrap(), protocol: UDP, port: PORT };
        assert_eq!(FlowTrace::start(&two, "marks").unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    });
}
