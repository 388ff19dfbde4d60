//! TCP connections survive all changes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::{Endpoints, Family, Host, LabMachine, Manifests, TestService};

use crate::support::{rest, stage};

/// The port of the servers here.
const PORT: u16 = 8090;

fn web() -> TestService {
    TestService::new("web", 80).node_port(30080).external_ip(80)
}

fn with(service: TestService, endpoints: Endpoints) -> Manifests {
    Manifests::new().with_endpoints(service, endpoints)
}

/// Echo server for any number of clients.
fn echo(host: &Host, at: SocketAddr) {
    let listener = host.run(move || TcpListener::bind(at).expect("a port of our own"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                // until the client closes
                while let Ok(length @ 1..) = stream.read(&mut bytes) {
                    let _ = stream.write_all(bytes.get(..length).unwrap_or_default());
                }
            });
        }
    });
}

fn connect(host: &Host, to: SocketAddr) -> TcpStream {
    let stream = host.run(move || TcpStream::connect_timeout(&to, Duration::from_secs(3)).expect("a connection"));
    stream.set_read_timeout(Some(Duration::from_secs(3))).expect("a time limit");
    stream
}

fn lives(stream: &mut TcpStream, text: &[u8]) -> bool {
    let mut bytes = vec![0; text.len()];
    stream.write_all(text).and_then(|()| stream.read_exact(&mut bytes)).is_ok() && bytes == text
}

#[test]
fn established_connections_survive_every_change() {
    let here = || web().endpoints(PORT, &[LabMachine::PodA]);
    let there = || web().endpoints(PORT, &[LabMachine::PodB]);
    let mut stage = stage(&with(web(), here()));
    for family in Family::ALL {
        for place in [LabMachine::PodA, LabMachine::PodB] {
            echo(stage.lab.host(place), SocketAddr::new(place.address(family), PORT));
        }
    }
    let mut streams = Vec::new();
    for family in Family::ALL {
        for (place, to) in [
            (LabMachine::Client, at_cluster_ip(family, 80)),
            (LabMachine::PodB, at_cluster_ip(family, 80)),
            (LabMachine::Client, at_node_port(family, 30080)),
            (LabMachine::Client, at_external_ip(family, 80)),
        ] {
            streams.push((to, connect(stage.lab.host(place), to)));
        }
    }
    let other = |port| TestService::new("other", 81).port(port);
    let changes = [
        ("another endpoint comes", with(web(), web().endpoints(PORT, &[LabMachine::PodA, LabMachine::PodB]))),
        ("its endpoint goes", with(web(), there())),
        ("and comes back", with(web(), here())),
        ("external policy Local", with(web().external_local(), here())),
        ("internal policy Local", with(web().internal_local(), here())),
        ("affinity", with(web().affinity(10), here())),
        ("other affinity", with(web().affinity(600), there())),
        ("another service comes", with(web(), here()).with(other(80), &[LabMachine::PodB])),
        ("its port changes", with(web(), here()).with(other(82), &[LabMachine::PodB])),
        ("no endpoints", Manifests::new().without_endpoints(web())),
        ("another service port", with(web().port(83), here())),
        ("only a cluster IP", with(TestService::new("web", 80), here())),
        ("no service", Manifests::new()),
        ("as in the beginning", with(web(), here())),
    ];
    for (what, manifests) in &changes {
        stage.set(manifests);
        for (to, stream) in &mut streams {
            assert!(lives(stream, what.as_bytes()), "{what}: {to}");
        }
    }
    rest(&stage);
    for (to, stream) in &mut streams {
        assert!(lives(stream, b"after all"), "{to}");
    }
}
