//! In every case and mode, the Services that `View::concerned` selects give a packet the same verdict as all Services.

use ferry_api::config;
use ferry_api::object::Family;
use ferry_conformance::case::{Case, objects};
use ferry_conformance::decided::Decided;
use ferry_conformance::matrix::packets;
use ferry_model::{PerFamily, ServiceState, decide};

use super::*;
use crate::planes::Plane;

/// Packets of a case that are tried: every one of a few, evenly spread ones of many.
const MOST: usize = 1000;

/// Returns the number of packets.
fn compare(case: &Case, mode: &str) -> usize {
    let mut config = config::decode(&case.text("config.yaml").unwrap()).unwrap().config;
    config.mode = mode.to_owned();
    let profile = Plane::named(mode).unwrap().offline(&config).profile;
    let manifests = ["objects.yaml", "node.yaml"].into_iter().filter_map(|file| case.text(file));
    let all = manifests.flat_map(|manifest| objects(&case.name, &manifest)).collect();
    let addresses = LocalAddresses::These(case.local_addresses.clone());
    let node = InspectedNode {
        config: &config,
        settings: &case.settings,
        addresses,
        missing_schedulers: PerFamily::default(),
    };
    let desired = desired(ListedObjects::of_running(all, false), &node, profile).unwrap();
    let mut compared = 0;
    for family in Family::ALL {
        let in_family = desired.in_family(family).unwrap();
        let packets = packets(case, &Decided::by(case, family, &profile));
        for packet in packets.iter().step_by(packets.len().div_ceil(MOST).max(1)) {
            let of = |states: Vec<&ServiceState>| decide(states, in_family.base, packet, in_family.context, &profile);
            let concerned = desired.view().concerned(packet, &in_family);
            let (got, wanted) = (of(concerned.iter().collect()), of(desired.services(family)));
            assert_eq!(got, wanted, "{}, mode {mode}: {packet:?}", case.name);
            compared += 1;
        }
    }
    compared
}

#[test]
fn services_that_a_packet_concerns_decide_its_verdict() {
    let cases = Case::all();
    for mode in ["nftables", "iptables", "ipvs", "userspace"] {
        let compared: usize = cases.iter().map(|case| compare(case, mode)).sum();
        assert!(compared > 50 * cases.len(), "{mode}: {compared}");
    }
}
