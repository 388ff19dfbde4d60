//! The view that operators know from the tutorials of this field.

use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use ferry_lab::lab::cluster_ip;
use ferry_lab::patience::slowly;
use ferry_lab::{Family, Host, LabMachine, Manifests, TestService};
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::{LIMIT, stage};

/// The columns of `ipvsadm -ln`: each endpoint is a line below its virtual server.
const LISTED: &str = "\
TCP  10.96.0.1:443 rr
  -> 10.244.0.10:8080             Masq    1      0          0         
  -> 10.244.0.11:8080             Masq    1      0          0         
";

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn the_tools_show_what_the_tutorials_show() {
    let service = TestService::new("web", 1).port(443);
    let stage = stage(&Manifests::new().with(service, &[LabMachine::PodA, LabMachine::PodB]));
    let node = stage.node();
    let listed = node.sh("ipvsadm", &["-ln"]);
    assert!(listed.contains(LISTED), "{listed}");
    assert!(listed.contains("TCP  [fd00:10:96::1]:443 rr\n"), "{listed}");
    let addresses = node.sh("ip", &["addr", "show", "kube-ipvs0"]);
    for part in [
        "kube-ipvs0: <BROADCAST,NOARP> mtu 1500 qdisc noop state DOWN",
        "    inet 10.96.0.1/32 scope host kube-ipvs0\n",
        "    inet6 fd00:10:96::1/128 scope global nodad deprecated",
    ] {
        assert!(addresses.contains(part), "{part}\n{addresses}");
    }
    for family in Family::ALL {
        for place in [LabMachine::Node, LabMachine::PodA, LabMachine::Client] {
            assert!(answers_ping(stage.lab.host(place), cluster_ip(family, 1), LIMIT), "{family} {place:?}");
        }
    }
    assert!(stage.proxy.get(10249, "/proxyMode").is_some_and(|answer| answer.ends_with("ipvs")));
}

/// Sends an echo request of ICMP, as a flow of its own; true if an echo comes from that address within this time.
pub(crate) fn answers_ping(host: &Host, to: IpAddr, patience: Duration) -> bool {
    static FLOW: AtomicU16 = AtomicU16::new(1);
    let flow = FLOW.fetch_add(1, Ordering::Relaxed);
    let (domain, protocol, kind, reply) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    // Of IPv6 the kernel writes the checksum.
    let [[sum_high, sum_low], [high, low]] = [!(0x0800 + flow), flow].map(u16::to_be_bytes);
    let request = [kind, 0, sum_high, sum_low, high, low, 0, 0];
    host.run(move || {
        let mut socket = Socket::new(domain, Type::RAW, Some(protocol)).expect("a raw socket needs root");
        socket.connect(&SocketAddr::new(to, 0).into()).expect("a route");
        socket.set_read_timeout(Some(slowly(patience))).expect("a time limit");
        match socket.send(&request) {
            // The host's own packet, which its table drops on the way out.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return false,
            sent => sent.expect("sending"),
        };
        let mut packet = [0; 128];
        // A raw socket of IPv4 delivers the header too; one of the host itself also receives the request.
        let header = if to.is_ipv4() { 20 } else { 0 };
        while socket.read(&mut packet).is_ok() {
            if packet[header] == reply {
                return true;
            }
        }
        false
    })
}
