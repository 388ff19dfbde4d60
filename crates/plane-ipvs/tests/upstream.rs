//! Compares the compiled virtual servers and addresses with those that upstream's proxy makes of the same objects.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panic")]

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::mode::ThisMode;
use ferry_api::object::Family;
use ferry_conformance::{Case, Decided};
use ferry_plane_ipvs::names::DEVICE;
use ferry_plane_ipvs::object::Lifetime;
use ferry_plane_ipvs::{Ipvs, IpvsObject, Pings};

/// Lines in which both differ: upstream's, Ferry's, and the reason. `*` stands for each address of the family.
const DIFFERS: [(&str, &str, &str); 2] = [
    (
        "inet * scope global",
        "inet * scope host",
        "no connection of the node takes a service address as its source, except one to that address",
    ),
    (
        "inet6 * scope global",
        "inet6 * scope global deprecated",
        "likewise: IPv6 addresses have no scope that does this",
    ),
];

/// Output of a tool beside upstream's proxy.
fn left(version: &str, file: &str) -> String {
    let path = format!("{}/../../testdata/upstream/ipvs/{version}/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The virtual servers of `ipvsadm -ln`, each in one line with its endpoints, sorted.
fn servers(listed: &str) -> BTreeSet<String> {
    let mut servers: Vec<(String, Vec<(SocketAddr, String)>)> = Vec::new();
    for line in listed.lines().skip(3) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["->", at, "Masq", weight, "0", "0"] => {
                servers.last_mut().unwrap().1.push((at.parse().unwrap(), weight.to_owned()));
            }
            ["TCP" | "UDP" | "SCTP", ..] => servers.push((words.join(" "), Vec::new())),
            _ => panic!("{line}"),
        }
    }
    let text = |(server, mut endpoints): (String, Vec<(SocketAddr, String)>)| {
        endpoints.sort();
        endpoints.iter().fold(server, |text, (at, weight)| format!("{text} -> {at} weight {weight}"))
    };
    servers.into_iter().map(text).collect()
}

/// The addresses of `ip -o addr show`: `inet 10.96.0.10/32 scope global`.
fn addresses(listed: &str) -> BTreeSet<String> {
    let address = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().filter(|word| *word != DEVICE).collect();
        words.join(" ")
    };
    listed.lines().map(address).collect()
}

/// What this mode makes of the objects, in the same form: virtual servers, and addresses.
fn ours() -> (BTreeSet<String>, BTreeSet<String>) {
    let objects = include_str!("../../../testdata/upstream/objects.yaml").to_owned();
    let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n\
                  clusterCIDR: 10.180.0.0/16\nhostnameOverride: node-a";
    let case = Case::of("upstream", config, &[objects]);
    let (mut servers, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    for family in Family::ALL {
        for object in Decided::of::<ThisMode>(&case, family).compiled_by(&Ipvs::new(family, Pings::Answered)) {
            match object {
                IpvsObject::Server(id, server) => assert!(servers.insert(format!("{id} {server}"))),
                // A Service's frontends at one address want the same object.
                IpvsObject::Address(address, lifetime) => drop(addresses.insert(match (family, lifetime) {
                    (Family::V4, Lifetime::Deprecated) => format!("inet {address}/32 scope host"),
                    (Family::V6, Lifetime::Deprecated) => format!("inet6 {address}/128 scope global deprecated"),
                    (_, Lifetime::Preferred) => panic!("only the kernel has such addresses: {address}"),
                })),
                _ => {}
            }
        }
    }
    (servers, addresses)
}

/// An upstream line as Ferry has it.
fn as_ours(line: &str) -> String {
    let found = DIFFERS.iter().find_map(|(upstream, ours, _)| {
        let (head, tail) = upstream.split_once('*').unwrap();
        let address = line.strip_prefix(head)?.strip_suffix(tail)?;
        Some(ours.replace('*', address))
    });
    found.unwrap_or_else(|| line.to_owned())
}

fn the_same(version: &str) {
    let (our_servers, our_addresses) = ours();
    let upstream = servers(&left(version, "ipvsadm-ln.txt"));
    assert!(upstream.len() > 25);
    assert_eq!(our_servers, upstream, "{version}");
    let upstream = addresses(&left(version, &format!("ip-o-addr-show-{DEVICE}.txt")));
    assert!(upstream.len() > 15);
    for (differs, ..) in DIFFERS {
        let (head, tail) = differs.split_once('*').unwrap();
        assert!(upstream.iter().any(|line| line.starts_with(head) && line.ends_with(tail)), "no longer so: {differs}");
    }
    assert_eq!(our_addresses, upstream.iter().map(|line| as_ours(line)).collect(), "{version}");
}

#[test]
fn the_same_as_1_36() {
    the_same("1.36");
}

#[test]
fn the_same_as_1_30() {
    the_same("1.30");
}
