use ferry_api::object::{EndpointSliceBuilder, Hints};

use super::*;
use crate::testing::*;

fn table<'a>(slices: &[&'a EndpointSlice], name: &str) -> (Vec<EndpointRow<'a>>, Vec<String>) {
    let (mut rows, mut diagnostics) = (Vec::new(), Vec::new());
    PortIndex::new(slices, Family::V4, &mut diagnostics).endpoints(name, Protocol::Tcp, usize::MAX, &mut rows);
    (rows, diagnostics.iter().map(ToString::to_string).collect())
}

fn endpoints(rows: &[EndpointRow<'_>]) -> Vec<String> {
    rows.iter().map(|row| row.endpoint.to_string()).collect()
}

#[test]
fn sorted_by_number_not_by_text() {
    let slice = slice("a", "web", &[("10.0.0.10", "", READY), ("10.0.0.9", "", READY), ("9.0.0.1", "", READY)]);
    assert_eq!(endpoints(&table(&[&slice], "").0), ["9.0.0.1:8080", "10.0.0.9:8080", "10.0.0.10:8080"]);
}

#[test]
fn the_later_copy_counts_unless_it_is_terminating() {
    for (first, second, wanted) in [
        (READY, UNREADY, UNREADY),
        (UNREADY, READY, READY),
        (READY, DRAINING, READY),
        (DRAINING, READY, READY),
        (DRAINING, ENDED, DRAINING),
    ] {
        let (a, b) = (slice("a", "web", &[("10.0.0.1", "x", first)]), slice("b", "web", &[("10.0.0.1", "y", second)]));
        let (rows, _) = table(&[&a, &b], "");
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].conditions, wanted, "{first:?} {second:?}");
        // the whole copy counts, not only its conditions
        assert_eq!(rows[0].is_on("y"), wanted == second && !second.terminating, "{first:?} {second:?}");
    }
}

#[test]
fn ports_match_by_name_and_protocol_and_numbers_add_up() {
    let mut a = slice("a", "web", &[("10.0.0.1", "", READY)]);
    let mut b = slice("b", "web", &[("10.0.0.1", "", READY)]);
    a.ports = [slice_port("http", 8080), slice_port("other", 9090)].into();
    b.ports = [
        slice_port("http", 8081),
        SlicePort { protocol: Ok(Protocol::Udp), ..slice_port("http", 8082) },
        SlicePort { name: None, ..slice_port("", 8083) },
        SlicePort { port: None, ..slice_port("http", 0) },
    ]
    .into();
    let (rows, diagnostics) = table(&[&a, &b], "http");
    assert_eq!(endpoints(&rows), ["10.0.0.1:8080", "10.0.0.1:8081"]);
    assert_eq!(diagnostics, [""; 0]);
    assert!(table(&[&a, &b], "").0.is_empty(), "a port without name matches nothing");
}

#[test]
fn headless_and_other_families_are_left_out() {
    let mut headless = slice("a", "web", &[("10.0.0.1", "", READY)]);
    headless.headless = true;
    let mut six = slice("b", "web", &[("10.0.0.2", "", READY)]);
    six.address_type = AddressType::Ipv6;
    let mut named = slice("c", "web", &[("10.0.0.3", "", READY)]);
    named.address_type = AddressType::Other;
    let (rows, diagnostics) = table(&[&headless, &six, &named], "");
    assert!(rows.is_empty());
    assert_eq!(diagnostics, [""; 0]);
}

#[test]
fn what_is_malformed_costs_itself_only() {
    let mut builder = EndpointSliceBuilder::default();
    for address in ["10.0.0.1", "fd00::1", "10.0.0.300", "fd00::2", "nonsense"] {
        builder.push(address.parse().map_err(|_| address.into()), READY, None, None, Hints::default());
    }
    let bad = |field: &str| SlicePort { port: Some(Err(field.into())), ..slice_port("", 0) };
    let ports = vec![
        slice_port("", 80),
        bad("70000"),
        bad("0"),
        SlicePort { protocol: Err("ICMP".into()), ..slice_port("", 81) },
    ];
    let slice = builder.build(name("a"), Some(name("web")), AddressType::Ipv4, ports);
    let (rows, diagnostics) = table(&[&slice], "");
    assert_eq!(endpoints(&rows), ["10.0.0.1:80"]);
    assert_eq!(
        diagnostics,
        [
            "EndpointSlice default/a: endpoints[].addresses[0]: \"10.0.0.300\" is no address: not used as an endpoint (1 more like it)",
            "EndpointSlice default/a: endpoints[].addresses[0]: fd00::1 is no IPv4 address: not used as an endpoint (1 more like it)",
            "EndpointSlice default/a: ports[1].port: \"70000\" is no port: this port is not used (1 more like it)",
            "EndpointSlice default/a: ports[3].protocol: \"ICMP\" is no known protocol: this port is not used",
        ]
    );
}

#[test]
fn nowhere_is_no_node() {
    let slice = slice("a", "web", &[("10.0.0.1", "", READY)]);
    assert!(!table(&[&slice], "").0[0].is_on(""));
}

#[test]
fn slices_are_read_until_their_endpoints_exceed_the_most() {
    let of = |text, addresses: &[&str]| {
        slice(text, "web", &addresses.iter().map(|address| (*address, "", READY)).collect::<Vec<_>>())
    };
    let slices = [of("a", &["10.0.0.1", "10.0.0.2"]), of("b", &["10.0.0.1"]), of("c", &["10.0.0.3"])];
    let index = PortIndex::new(&slices.each_ref(), Family::V4, &mut Vec::new());
    let mut rows = Vec::new();
    for most in [4, 5] {
        assert_eq!(index.endpoints("", Protocol::Tcp, most, &mut rows), 4, "copies count");
        assert_eq!(endpoints(&rows), ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"]);
    }
    for (most, seen) in [(3, 4), (2, 3), (1, 2), (0, 2)] {
        assert_eq!(index.endpoints("", Protocol::Tcp, most, &mut rows), seen, "{most}");
    }
}

#[test]
fn the_ports_of_all_slices_are_listed_sorted_and_once() {
    let (mut a, mut b) = (slice("a", "web", &[]), slice("b", "web", &[]));
    let udp = |port| SlicePort { protocol: Ok(Protocol::Udp), ..port };
    a.ports = [slice_port("http", 8080), udp(slice_port("dns", 53)), slice_port("dns", 53)].into();
    b.ports = [slice_port("http", 8081), SlicePort { name: None, ..slice_port("", 8083) }].into();
    let names = PortIndex::new(&[&a, &b], Family::V4, &mut Vec::new()).names();
    assert_eq!(names, [("dns", Protocol::Tcp), ("dns", Protocol::Udp), ("http", Protocol::Tcp)]);
}
