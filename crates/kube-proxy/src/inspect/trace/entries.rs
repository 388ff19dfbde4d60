//! Compares the conntrack entries of the traced client with the desired state. The entry of a flow translates its packets, and no rule
//! does: a stale conntrack entry sends them elsewhere although all rules are right.

use std::net::SocketAddr;

use ferry_model::{Packet, RightFlows, Verdict};

use crate::platform::{self, ClientFlow};

/// The conntrack entries of a client's flows to one destination.
#[derive(Debug, Default)]
pub(super) struct ConntrackEntries {
    /// stale ones: the running proxy deletes them
    pub(super) stale: Vec<ClientFlow>,
    /// the number of those that lead to an endpoint of new connections
    pub(super) serving: usize,
    /// the number of all others, such as established TCP connections to an earlier endpoint
    pub(super) other: usize,
}

// === impl ConntrackEntries ===

impl ConntrackEntries {
    /// Reads the entries of this packet's client. `expected` is the verdict on a new connection; `rules` are those of the frontends that
    /// match the packet.
    ///
    /// # Errors
    /// The reason why the conntrack table can't be read.
    pub(super) fn read(packet: &Packet, expected: &Verdict, rules: &[RightFlows]) -> Result<Self, String> {
        let flows = platform::client_flows(packet).map_err(|error| error.to_string())?;
        Ok(Self::of(flows, expected, rules))
    }

    fn of(flows: Vec<ClientFlow>, expected: &Verdict, rules: &[RightFlows]) -> Self {
        let is_stale =
            |of_client: &ClientFlow| !rules.is_empty() && !rules.iter().any(|rule| rule.allows(&of_client.flow));
        let (stale, others): (Vec<_>, Vec<_>) = flows.into_iter().partition(is_stale);
        let is_serving = |of_client: &&ClientFlow| leads_to(expected, of_client.flow.answers_from);
        let serving = others.iter().filter(is_serving).count();
        Self { stale, serving, other: others.len() - serving }
    }
}

/// True if the verdict forwards new connections to this endpoint.
fn leads_to(verdict: &Verdict, endpoint: SocketAddr) -> bool {
    let is_it = |address, port| SocketAddr::new(address, port) == endpoint;
    matches!(verdict, Verdict::Forward(endpoints) if endpoints.keys().any(|one| is_it(one.address, one.port)))
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Protocol;
    use ferry_model::Flow;
    use ferry_model::state::{Endpoint, Pool, Snat};

    use super::*;

    fn endpoint(last: u8) -> Endpoint {
        Endpoint { address: [10, 244, 0, last].into(), port: 53 }
    }

    fn flow(protocol: Protocol, last: u8) -> ClientFlow {
        let answers_from = SocketAddr::new(endpoint(last).address, 53);
        let flow = Flow { protocol, destination: ([10, 96, 0, 10], 53).into(), answers_from, answered: true };
        ClientFlow { client_port: last.into(), flow }
    }

    fn numbers(flows: Vec<ClientFlow>, expected: &Verdict, rules: &[RightFlows]) -> [usize; 3] {
        let ConntrackEntries { stale, serving, other } = ConntrackEntries::of(flows, expected, rules);
        [stale.len(), serving, other]
    }

    #[test]
    fn an_entry_is_stale_if_no_matching_frontend_keeps_it() {
        let pool = |all: &[u8]| Pool::new(all.iter().map(|last| endpoint(*last)).collect::<Vec<_>>());
        let to = |all: &[u8]| RightFlows::To([pool(all), Pool::default(), Pool::default()]);
        let forward = Verdict::Forward([(endpoint(1), Snat::Keep)].into());
        let flows = || [1, 2, 3].map(|last| flow(Protocol::Udp, last)).to_vec();
        assert_eq!(numbers(flows(), &forward, &[to(&[1, 2])]), [1, 1, 1], "the second endpoint is of another scope");
        assert_eq!(numbers(flows(), &forward, &[to(&[1]), to(&[3])]), [1, 1, 1], "two frontends match");
        assert_eq!(numbers(flows(), &Verdict::Reject, &[to(&[])]), [3, 0, 0]);
        assert_eq!(numbers(flows(), &Verdict::Pass, &[]), [0, 0, 3], "another program's");
    }

    #[test]
    fn a_tcp_connection_keeps_its_endpoint() {
        let forward = Verdict::Forward([(endpoint(1), Snat::Keep)].into());
        let flows = [1, 2].map(|last| flow(Protocol::Tcp, last)).to_vec();
        assert_eq!(numbers(flows, &forward, &[RightFlows::Answered]), [0, 1, 1]);
    }
}
