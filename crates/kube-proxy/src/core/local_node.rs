//! Creates a Node for a machine without a Node manifest, from its name and its own addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ferry_api::object::{AddressKind, Family, Kind, KubeObject, Node, NodeAddress, ObjectName};
use ferry_model::store::Event;

/// Replaces this node's Node object until the source has one, and again after the source's is deleted.
#[derive(Debug)]
pub(super) struct LocalNode {
    name: ObjectName,
    /// node addresses; the preferred one of each family comes first
    addresses: Vec<IpAddr>,
    /// the source has a Node
    given: bool,
    /// the source's initial list is complete
    synced: bool,
    /// the store has the stand-in
    stands_in: bool,
}

// === impl LocalNode ===

impl LocalNode {
    /// A stand-in of this name; `addresses` as from [`preferred_first`].
    pub(super) fn new(node_name: &str, addresses: Vec<IpAddr>) -> Self {
        Self { name: ObjectName::cluster_wide(node_name), addresses, given: false, synced: false, stands_in: false }
    }

    /// Completes what a source delivers.
    pub(super) fn complete(&mut self, events: Vec<Event>) -> Vec<Event> {
        let mut out = Vec::with_capacity(events.len() + 1);
        for event in events {
            match &event {
                Event::Upsert(KubeObject::Node(node)) if node.name == self.name => {
                    self.given = true;
                    if std::mem::take(&mut self.stands_in) {
                        // Facts of the stand-in don't count as lost by the Node.
                        out.push(Event::Delete(Kind::Node, self.name.clone()));
                    }
                }
                Event::Delete(Kind::Node, name) if *name == self.name => {
                    self.given = false;
                    out.push(self.upsert());
                    continue;
                }
                // A new list: it has the Node or not by its completion.
                Event::Restart(Kind::Node) => self.given = false,
                Event::Synced(Kind::Node) => {
                    self.synced = true;
                    if !self.given {
                        out.push(self.upsert());
                    }
                }
                _ => {}
            }
            out.push(event);
        }
        out
    }

    /// Takes over changed addresses of the machine; returns the resulting event, if any.
    pub(super) fn readdress(&mut self, addresses: Vec<IpAddr>) -> Option<Event> {
        if self.addresses == addresses {
            return None;
        }
        self.addresses = addresses;
        (self.synced && !self.given).then(|| self.upsert())
    }

    fn upsert(&mut self) -> Event {
        self.stands_in = true;
        let address = |address: &IpAddr| NodeAddress { kind: AddressKind::Internal, address: Ok(*address) };
        Event::Upsert(KubeObject::Node(Node {
            name: self.name.clone(),
            zone: None,
            addresses: self.addresses.iter().map(address).collect(),
            pod_cidrs: Box::default(),
            deleting: false,
            to_be_deleted: false,
        }))
    }
}

/// The addresses that a Node may have, in an order that depends only on them and the routes: the source address of the default
/// route comes first.
pub(super) fn preferred_first(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut list: Vec<IpAddr> = addresses.iter().copied().filter(|address| !is_confined(address)).collect();
    list.sort_unstable();
    list.dedup();
    for family in Family::ALL {
        if let Some(address) = outward(family)
            && let Some(at) = list.iter().position(|known| *known == address)
        {
            let address = list.remove(at);
            list.insert(0, address);
        }
    }
    list
}

/// True for addresses that other machines can't reach.
fn is_confined(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local() || address.is_unspecified(),
    }
}

/// The source address of the default route. Connecting a UDP socket resolves the route and sends nothing; the destinations are
/// addresses reserved for documentation.
fn outward(family: Family) -> Option<IpAddr> {
    let (any, far): (IpAddr, IpAddr) = match family {
        Family::V4 => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        Family::V6 => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    socket.connect(SocketAddr::new(far, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn node(name: &str) -> Event {
        let mut local = LocalNode::new(name, vec![address("192.0.2.9")]);
        local.complete(vec![Event::Synced(Kind::Node)]).remove(0)
    }

    #[test]
    fn stands_in_when_the_list_has_none() {
        let mut local = LocalNode::new("n", vec![address("10.0.0.1")]);
        let events = local.complete(vec![Event::Restart(Kind::Node), node("other"), Event::Synced(Kind::Node)]);
        let Event::Upsert(KubeObject::Node(made)) = &events[2] else { panic!("{events:?}") };
        assert_eq!(made.name, ObjectName::cluster_wide("n"));
        assert_eq!(made.addresses[0].address, Ok(address("10.0.0.1")));
        assert_eq!(events[3], Event::Synced(Kind::Node));
    }

    #[test]
    fn gives_way_and_returns() {
        let mut local = LocalNode::new("n", vec![address("10.0.0.1")]);
        assert_eq!(local.complete(vec![node("n"), Event::Synced(Kind::Node)]).len(), 2);
        assert_eq!(local.readdress(vec![address("10.0.0.2")]), None);
        let events = local.complete(vec![Event::Delete(Kind::Node, ObjectName::cluster_wide("n"))]);
        let [Event::Upsert(KubeObject::Node(made))] = &events[..] else { panic!("{events:?}") };
        assert_eq!(made.addresses[0].address, Ok(address("10.0.0.2")));
        assert!(local.readdress(vec![address("10.0.0.3")]).is_some());
        assert!(local.readdress(vec![address("10.0.0.3")]).is_none());
        let gone = Event::Delete(Kind::Node, ObjectName::cluster_wide("n"));
        assert_eq!(local.complete(vec![node("n")]), [gone, node("n")], "the Node has lost nothing of the stand-in");
        assert_eq!(local.complete(vec![node("n")]), [node("n")]);
    }

    #[test]
    fn confined_addresses_are_no_node_addresses() {
        let all = ["127.0.0.1", "::1", "fe80::1", "169.254.1.1", "203.0.113.9", "2001:db8:1::9"].map(address);
        let mut chosen = preferred_first(&all);
        chosen.sort();
        assert_eq!(chosen, [address("203.0.113.9"), address("2001:db8:1::9")]);
    }
}
