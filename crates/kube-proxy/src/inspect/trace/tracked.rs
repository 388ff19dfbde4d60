//! The flows that the traced client already has to the destination. The connection table translates their packets, and no rule does: so
//! a stale flow goes elsewhere although all rules are right.

use ferry_model::{FrontendAddr, Packet, RightFlows, ServiceState, flow_rules};

use crate::platform::{self, TrackedFlow};

/// The flows in the connection table.
#[derive(Debug)]
pub(super) struct TrackedFlows {
    /// those that are stale: the Service leads elsewhere
    pub(super) stale: Vec<TrackedFlow>,
    /// the others
    pub(super) right: Vec<TrackedFlow>,
}

// === impl TrackedFlows ===

impl TrackedFlows {
    /// Reads the flows of this packet's client, and compares them with the Services as the running proxy does.
    ///
    /// # Errors
    /// The reason why the table can't be read.
    pub(super) fn read(packet: &Packet, services: &[ServiceState]) -> Result<Self, String> {
        let flows = platform::tracked_flows(packet).map_err(|error| error.to_string())?;
        let right = right_flows(packet, services);
        let is_right = |tracked: &TrackedFlow| right.as_ref().is_none_or(|right| right.allows(&tracked.flow));
        let (right, stale) = flows.into_iter().partition(is_right);
        Ok(Self { stale, right })
    }
}

/// The flows that may stay at the packet's destination; `None` if no Service is there, since another program may have translated them.
fn right_flows(packet: &Packet, services: &[ServiceState]) -> Option<RightFlows> {
    let rules: Vec<_> = services.iter().flat_map(|state| flow_rules(None, Some(state))).collect();
    let at = |at: FrontendAddr| {
        rules.iter().find(|rule| rule.protocol == packet.protocol && rule.at == at).map(|rule| rule.right.clone())
    };
    // As for packets, an address of the node takes precedence over its node ports.
    at(FrontendAddr::Vip(packet.destination, packet.port))
        .or_else(|| packet.destination_local.then(|| at(FrontendAddr::NodePort(packet.port))).flatten())
}
