//! Derives the required health check listeners from the acknowledged state. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferry_api::object::{Family, ObjectName};
use ferry_model::{HealthCheck, NodePortAddresses};
use ferry_plane::{Acknowledged, Unit, UnitId};

/// The acknowledged state of each family, as far as health checks need it.
#[derive(Debug, Default)]
pub(super) struct Book {
    families: BTreeMap<Family, FamilyPage>,
}

/// Required listeners, and conflicts about ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListenerPlan {
    /// the Service that each listener answers for; an unspecified address means all addresses of its family
    pub(super) listeners: BTreeMap<SocketAddr, ObjectName>,
    /// claims that lost a conflict, with the owner of the port
    pub(super) contested: BTreeMap<Claim, ObjectName>,
}

/// A Service's claim to a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub(super) family: Family,
    pub(super) port: u16,
    pub(super) service: ObjectName,
}

/// State of one family.
#[derive(Debug, Default)]
struct FamilyPage {
    /// addresses of node ports; `None` before the base is in force
    addresses: Option<NodePortAddresses>,
    services: BTreeMap<ObjectName, HealthCheck>,
    /// the Services that claim a port, in order of arrival: the first owns it
    claims: BTreeMap<u16, Vec<ObjectName>>,
}

// === impl Book ===

impl Book {
    /// Takes over acknowledged units. True if the required listeners change.
    pub(super) fn acknowledged(&mut self, family: Family, units: &[Acknowledged]) -> bool {
        let page = self.families.entry(family).or_default();
        let mut changed = false;
        for Acknowledged { id, after, .. } in units {
            changed |= match (id, after.as_deref()) {
                (UnitId::Service(name), Some(Unit::Service(state))) => page.set_check(name, state.health_check),
                (UnitId::Service(name), _) => page.set_check(name, None),
                (UnitId::Base, Some(Unit::Base(base))) => page.set_addresses(Some(&base.node_ports)),
                (UnitId::Base, _) => page.set_addresses(None),
            };
        }
        changed
    }

    /// The number of ready endpoints of a Service on this node; 0 for one without health checks.
    pub(super) fn local_endpoints(&self, family: Family, service: &ObjectName) -> u32 {
        let check = self.families.get(&family).and_then(|page| page.services.get(service));
        check.map_or(0, |check| check.local_endpoints)
    }

    /// The required listeners.
    pub(super) fn plan(&self) -> ListenerPlan {
        let mut plan = ListenerPlan::default();
        for (&family, page) in &self.families {
            let Some(addresses) = &page.addresses else { continue };
            let all = [unspecified(family)];
            let addresses = match addresses {
                NodePortAddresses::All => &all[..],
                NodePortAddresses::Only(addresses) => addresses,
            };
            for (&port, services) in &page.claims {
                let Some((owner, others)) = services.split_first() else { continue };
                let listeners = addresses.iter().map(|&address| (SocketAddr::new(address, port), owner.clone()));
                plan.listeners.extend(listeners);
                let claim = |service: &ObjectName| Claim { family, port, service: service.clone() };
                plan.contested.extend(others.iter().map(|service| (claim(service), owner.clone())));
            }
        }
        plan
    }
}

// === impl FamilyPage ===

impl FamilyPage {
    /// Replaces a Service's claim. True if the owner of a port changes.
    fn set_check(&mut self, name: &ObjectName, check: Option<HealthCheck>) -> bool {
        let before = match check {
            Some(check) => self.services.insert(name.clone(), check),
            None => self.services.remove(name),
        };
        let (before, after) = (before.map(|check| check.port.get()), check.map(|check| check.port.get()));
        if before == after {
            return false;
        }
        if let Some(port) = before
            && let Some(claims) = self.claims.get_mut(&port)
        {
            claims.retain(|service| service != name);
            if claims.is_empty() {
                self.claims.remove(&port);
            }
        }
        if let Some(port) = after {
            self.claims.entry(port).or_default().push(name.clone());
        }
        true
    }

    fn set_addresses(&mut self, addresses: Option<&NodePortAddresses>) -> bool {
        let changed = self.addresses.as_ref() != addresses;
        if changed {
            self.addresses = addresses.cloned();
        }
        changed
    }
}

fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ferry_model::{BaseState, ServiceState};

    use super::*;

    fn name(name: &str) -> ObjectName {
        ObjectName::new("default", name)
    }

    fn base(node_ports: NodePortAddresses) -> Acknowledged {
        let base = BaseState { node_ports, localhost: false, service_cidrs: Vec::new(), affinity: false };
        Acknowledged { id: UnitId::Base, before: None, after: Some(Arc::new(Unit::Base(base))) }
    }

    fn only(addresses: &[&str]) -> Acknowledged {
        base(NodePortAddresses::Only(addresses.iter().map(|address| address.parse().unwrap()).collect()))
    }

    fn service(service: &str, check: Option<(u16, u32)>) -> Acknowledged {
        let health_check = check.and_then(|(port, local_endpoints)| HealthCheck::new(port, local_endpoints));
        let state = ServiceState { name: name(service), ports: Vec::new(), health_check };
        let id = UnitId::Service(name(service));
        Acknowledged { id, before: None, after: Some(Arc::new(Unit::Service(state))) }
    }

    fn gone(service: &str) -> Acknowledged {
        Acknowledged { id: UnitId::Service(name(service)), before: None, after: None }
    }

    #[track_caller]
    fn listens(book: &Book, wanted: &[(&str, &str)]) {
        let wanted: BTreeMap<SocketAddr, ObjectName> =
            wanted.iter().map(|(address, service)| (address.parse().unwrap(), name(service))).collect();
        assert_eq!(book.plan().listeners, wanted);
    }

    #[test]
    fn nothing_listens_before_node_ports_have_addresses() {
        let mut book = Book::default();
        assert!(book.acknowledged(Family::V4, &[service("a", Some((31000, 1)))]));
        listens(&book, &[]);
        assert!(book.acknowledged(Family::V4, &[base(NodePortAddresses::All)]));
        listens(&book, &[("0.0.0.0:31000", "a")]);
    }

    #[test]
    fn each_family_has_its_own() {
        let mut book = Book::default();
        book.acknowledged(Family::V4, &[only(&["10.0.0.1", "10.0.0.2"]), service("a", Some((31000, 1)))]);
        book.acknowledged(Family::V6, &[base(NodePortAddresses::All), service("a", Some((31000, 0)))]);
        listens(&book, &[("10.0.0.1:31000", "a"), ("10.0.0.2:31000", "a"), ("[::]:31000", "a")]);
        assert_eq!(Family::ALL.map(|family| book.local_endpoints(family, &name("a"))), [1, 0]);
        assert!(book.acknowledged(Family::V4, &[gone("a")]));
        listens(&book, &[("[::]:31000", "a")]);
    }

    #[test]
    fn a_count_takes_no_other_listeners() {
        let mut book = Book::default();
        book.acknowledged(Family::V4, &[base(NodePortAddresses::All), service("a", Some((31000, 1)))]);
        assert!(!book.acknowledged(Family::V4, &[service("a", Some((31000, 7))), service("b", None)]));
        assert_eq!(book.local_endpoints(Family::V4, &name("a")), 7);
        assert!(!book.acknowledged(Family::V4, &[base(NodePortAddresses::All), gone("b")]));
    }

    #[test]
    fn a_port_moves_and_a_policy_ends_it() {
        let mut book = Book::default();
        book.acknowledged(Family::V4, &[base(NodePortAddresses::All), service("a", Some((31000, 1)))]);
        assert!(book.acknowledged(Family::V4, &[service("a", Some((31001, 1)))]));
        listens(&book, &[("0.0.0.0:31001", "a")]);
        assert!(book.acknowledged(Family::V4, &[service("a", None)]));
        listens(&book, &[]);
        assert_eq!(book.local_endpoints(Family::V4, &name("a")), 0);
    }

    #[test]
    fn addresses_are_followed() {
        let mut book = Book::default();
        book.acknowledged(Family::V6, &[only(&["fd00::1"]), service("a", Some((31000, 1)))]);
        assert!(book.acknowledged(Family::V6, &[only(&["fd00::2", "fd00::3"])]));
        listens(&book, &[("[fd00::2]:31000", "a"), ("[fd00::3]:31000", "a")]);
        assert!(book.acknowledged(Family::V6, &[only(&[])]));
        listens(&book, &[]);
    }

    #[test]
    fn the_first_service_keeps_a_port_until_it_goes() {
        let mut book = Book::default();
        let both = [base(NodePortAddresses::All), service("b", Some((31000, 1)))];
        book.acknowledged(Family::V4, &both);
        assert!(book.acknowledged(Family::V4, &[service("a", Some((31000, 2)))]));
        listens(&book, &[("0.0.0.0:31000", "b")]);
        let claim = Claim { family: Family::V4, port: 31000, service: name("a") };
        assert_eq!(book.plan().contested, BTreeMap::from([(claim, name("b"))]));
        // A change without another port changes nothing.
        book.acknowledged(Family::V4, &[service("b", Some((31000, 0)))]);
        listens(&book, &[("0.0.0.0:31000", "b")]);
        for leaving in [service("b", None), service("b", Some((31001, 1)))] {
            let mut book = Book::default();
            book.acknowledged(Family::V4, &both);
            book.acknowledged(Family::V4, &[service("a", Some((31000, 2)))]);
            assert!(book.acknowledged(Family::V4, &[leaving]));
            assert_eq!(book.plan().listeners.get(&"0.0.0.0:31000".parse().unwrap()), Some(&name("a")));
            assert_eq!(book.plan().contested, BTreeMap::new());
        }
    }
}
