//! The model's verdict, by the Services that a packet can concern.

use std::collections::HashMap;
use std::net::IpAddr;

use ferry_model::{FrontendAddr, Packet, Profile, ServiceState, Verdict, decide};

use crate::core::FamilyView;

/// The Services of a family, indexed by what a packet has: the model looks at each Service that it is given.
#[derive(Debug)]
pub(super) struct Expected<'a> {
    in_family: FamilyView<'a>,
    profile: Profile,
    by_address: HashMap<IpAddr, Vec<&'a ServiceState>>,
    /// by node ports, and by ports of health checks
    by_port: HashMap<u16, Vec<&'a ServiceState>>,
}

// === impl Expected ===

impl<'a> Expected<'a> {
    pub(super) fn new(in_family: FamilyView<'a>, services: &[&'a ServiceState], profile: Profile) -> Self {
        let mut expected = Self { in_family, profile, by_address: HashMap::new(), by_port: HashMap::new() };
        for &state in services {
            if let Some(check) = state.health_check {
                expected.by_port.entry(check.port.get()).or_default().push(state);
            }
            for frontend in state.ports.iter().flat_map(|port| &port.frontends) {
                match frontend.at {
                    FrontendAddr::Vip(address, _) => expected.by_address.entry(address).or_default().push(state),
                    FrontendAddr::NodePort(port) => expected.by_port.entry(port).or_default().push(state),
                }
            }
        }
        for states in expected.by_address.values_mut().chain(expected.by_port.values_mut()) {
            states.dedup_by_key(|state| std::ptr::from_ref(*state));
        }
        expected
    }

    /// The verdict that the packet should meet.
    pub(super) fn verdict(&self, packet: &Packet) -> Verdict {
        let at_address = self.by_address.get(&packet.destination).into_iter().flatten();
        let at_port = self.by_port.get(&packet.port).into_iter().flatten();
        let FamilyView { base, context, .. } = self.in_family;
        decide(at_address.chain(at_port).copied(), base, packet, context, &self.profile)
    }
}
