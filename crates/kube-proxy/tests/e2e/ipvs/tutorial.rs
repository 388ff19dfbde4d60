//! The view that operators know from the tutorials of this field.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};

use ferry_lab::lab::cluster_ip;
use ferry_lab::stage::slowly;
use ferry_lab::{Family, Host, Manifests, Place, Service};
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::{LIMIT, stage};

/// The columns of `ipvsadm -ln`: each endpoint is a line below its virtual server.
const LISTED: &str = "\
TCP  10.96.0.1:443 rr
  -> 10.244.0.10:8080             Masq    1      0          0         
  -> 10.244.0.11:8080             Masq    1      0          0         
";

#[test]
#[ignore = "needs IPVS: runs in emulated machines"]
fn the_tools_show_what_the_tutorials_show() {
    let service = Service::new("web", 1).port(443);
    let stage = stage(&Manifests::new().with(service, &[Place::PodA, Place::PodB]));
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
        for place in [Place::Node, Place::PodA, Place::Client] {
            assert!(answers_ping(stage.lab.host(place), cluster_ip(family, 1)), "{family} {place:?}");
        }
    }
    assert!(stage.proxy.get(10249, "/proxyMode").is_some_and(|answer| answer.ends_with("ipvs")));
}

/// Sends an echo request of ICMP; true if an echo comes from that address.
pub(crate) fn answers_ping(host: &Host, to: IpAddr) -> bool {
    let (domain, protocol, request, reply) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, [8, 0, 0xf7, 0xff, 0, 0, 0, 0], 0),
        // The kernel writes the checksum.
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, [128, 0, 0, 0, 0, 0, 0, 0], 129),
    };
    host.run(move || {
        let mut socket = Socket::new(domain, Type::RAW, Some(protocol)).expect("a raw socket needs root");
        socket.connect(&SocketAddr::new(to, 0).into()).expect("a route");
        socket.set_read_timeout(Some(slowly(LIMIT))).expect("a time limit");
        socket.send(&request).expect("sending");
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
