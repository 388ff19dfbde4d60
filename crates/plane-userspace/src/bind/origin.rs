//! Classifies clients by their address, as a detector by range does, and selects the endpoints of each class.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use ferry_api::object::Protocol;
use ferry_model::Scope;
use ferry_relay::{Balancer, Choice, Choose, Endpoint};

use super::object::{ByOrigin, ListenAddress, Origins};

/// The places of clients, for one family's listeners.
#[derive(Debug, Default)]
pub(super) struct Whereabouts(RwLock<KnownOrigins>);

#[derive(Debug, Default)]
struct KnownOrigins {
    origins: Origins,
    /// the addresses at which listeners are, with their number. The kernel takes the address of a Service as the source of the node's own
    /// connections to it
    listening: HashMap<IpAddr, usize>,
    /// the open listeners: an endpoint there would be this relay itself, which would dial itself until it has no port left
    open: HashSet<ListenAddress>,
}

/// The choice of one port of the relay: among the endpoints of a scope, which depends on where the client is.
#[derive(Debug)]
pub(super) struct ChooseByOrigin {
    whereabouts: Arc<Whereabouts>,
    protocol: Protocol,
    scopes: ByOrigin,
    cluster: Option<Arc<Balancer>>,
    local: Option<Arc<Balancer>>,
}

// === impl Origins ===

impl Origins {
    /// The scope of endpoints for a client; `None` if it is refused. `is_local`: the address is one of the machine.
    pub fn scope(&self, scopes: ByOrigin, client: IpAddr, is_local: bool) -> Option<Scope> {
        if self.pods.is_some_and(|range| range.contains(&client)) {
            scopes.pod
        } else if is_local {
            scopes.host
        } else {
            scopes.other
        }
    }
}

// === impl Whereabouts ===

impl Whereabouts {
    pub(super) fn replace(&self, origins: Origins) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).origins = origins;
    }

    pub(super) fn origins(&self) -> Origins {
        self.0.read().unwrap_or_else(PoisonError::into_inner).origins.clone()
    }

    /// Notes a listener at this address.
    pub(super) fn enter(&self, address: IpAddr) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner).listening.entry(address).or_default() += 1;
    }

    /// Forgets a listener at this address.
    pub(super) fn leave(&self, address: IpAddr) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = known.listening.get_mut(&address) {
            *number -= 1;
            if *number == 0 {
                known.listening.remove(&address);
            }
        }
    }

    /// Notes that a listener is open, or that it isn't: then the port may be another program's, such as an endpoint in the host's network.
    pub(super) fn set_open(&self, place: ListenAddress, is_open: bool) {
        let open = &mut self.0.write().unwrap_or_else(PoisonError::into_inner).open;
        if is_open {
            open.insert(place);
        } else {
            open.remove(&place);
        }
    }

    /// Takes this relay's own listeners out.
    fn exclude_own(&self, protocol: Protocol, choice: &mut Choice) {
        let open = &self.0.read().unwrap_or_else(PoisonError::into_inner).open;
        choice.retain(|endpoint| {
            let at = endpoint.address();
            !open.contains(&ListenAddress { protocol, address: at.ip(), port: at.port() })
        });
    }

    fn scope(&self, scopes: ByOrigin, client: IpAddr) -> Option<Scope> {
        let KnownOrigins { origins, listening, .. } = &*self.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_local = origins.local.binary_search(&client).is_ok() || listening.contains_key(&client);
        origins.scope(scopes, client, is_local)
    }
}

// === impl ChooseByOrigin ===

impl ChooseByOrigin {
    /// With the balancer of each scope that some client is led to.
    pub(super) fn new(
        whereabouts: Arc<Whereabouts>,
        protocol: Protocol,
        scopes: ByOrigin,
        balancer: impl Fn(Scope) -> Option<Arc<Balancer>>,
    ) -> Self {
        Self { whereabouts, protocol, scopes, cluster: balancer(Scope::Cluster), local: balancer(Scope::Local) }
    }

    fn balancer(&self, client: IpAddr) -> Option<&Arc<Balancer>> {
        match self.whereabouts.scope(self.scopes, client)? {
            Scope::Cluster => self.cluster.as_ref(),
            Scope::Local => self.local.as_ref(),
        }
    }
}

impl Choose for ChooseByOrigin {
    fn choose(&self, client: IpAddr, now: Instant) -> Choice {
        let Some(balancer) = self.balancer(client) else { return Choice::default() };
        let mut choice = balancer.choose(client, now);
        self.whereabouts.exclude_own(self.protocol, &mut choice);
        choice
    }

    fn connected(&self, client: IpAddr, endpoint: &Arc<Endpoint>, now: Instant) {
        if let Some(balancer) = self.balancer(client) {
            balancer.connected(client, endpoint, now);
        }
    }

    fn failed(&self, client: IpAddr, endpoint: &Arc<Endpoint>, now: Instant) {
        if let Some(balancer) = self.balancer(client) {
            balancer.failed(client, endpoint, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_client_is_led_by_its_place() {
        let whereabouts = Arc::new(Whereabouts::default());
        let local = [address("192.0.2.10")].into();
        let origins = Origins { local, pods: Some("10.244.1.0/24".parse().unwrap()) };
        whereabouts.replace(origins.clone());
        assert_eq!(whereabouts.origins(), origins);
        let balancer = |port| {
            let balancer = Balancer::new(None, Duration::ZERO);
            balancer.replace(&[([10, 244, 2, 2], port).into()], []);
            Some(Arc::new(balancer))
        };
        let scopes = ByOrigin { pod: Some(Scope::Local), host: Some(Scope::Cluster), other: None };
        let (cluster, local) = (balancer(1), balancer(2));
        let choose = ChooseByOrigin::new(Arc::clone(&whereabouts), Protocol::Tcp, scopes, |scope| match scope {
            Scope::Cluster => cluster.clone(),
            Scope::Local => local.clone(),
        });
        let port = |client: &str| {
            let choice = choose.choose(address(client), Instant::now());
            choice.endpoints().next().map(|endpoint| endpoint.address().port())
        };
        assert_eq!(port("10.244.1.7"), Some(2), "a pod of this node");
        assert_eq!(port("192.0.2.10"), Some(1), "this node");
        assert_eq!(port("192.0.2.11"), None, "another machine");
        // The node dials a Service, and has its address as the source.
        for is_there in [true, true, false] {
            let vip = address("10.96.0.10");
            if is_there {
                whereabouts.enter(vip)
            } else {
                whereabouts.leave(vip)
            }
            assert_eq!(port("10.96.0.10"), Some(1));
        }
        whereabouts.leave(address("10.96.0.10"));
        assert_eq!(port("10.96.0.10"), None);
    }

    #[test]
    fn the_relay_is_no_endpoint_of_its_own() {
        let whereabouts = Arc::new(Whereabouts::default());
        let place = |protocol, address, port| ListenAddress { protocol, address, port };
        let (own, pod) = (address("10.96.0.10"), address("10.244.2.2"));
        let balancer = Balancer::new(None, Duration::ZERO);
        balancer.replace(&[(own, 80).into(), (own, 81).into(), (pod, 80).into()], []);
        let balancer = Arc::new(balancer);
        let scopes = ByOrigin { pod: None, host: None, other: Some(Scope::Cluster) };
        let of =
            |protocol| ChooseByOrigin::new(Arc::clone(&whereabouts), protocol, scopes, |_| Some(Arc::clone(&balancer)));
        let number = |protocol| {
            let choice = of(protocol).choose(address("192.0.2.11"), Instant::now());
            choice.endpoints().count()
        };
        whereabouts.set_open(place(Protocol::Tcp, own, 80), true);
        assert_eq!((number(Protocol::Tcp), number(Protocol::Udp)), (2, 3));
        whereabouts.set_open(place(Protocol::Tcp, own, 81), true);
        assert_eq!(number(Protocol::Tcp), 1);
        whereabouts.set_open(place(Protocol::Tcp, own, 80), false);
        assert_eq!(number(Protocol::Tcp), 2, "another program may have it");
    }

    #[test]
    fn the_balancer_of_the_clients_scope_learns_how_a_choice_ended() {
        let (client, now, time) = (address("192.0.2.11"), Instant::now(), Duration::from_secs(60));
        let balancer = Balancer::new(Some(time), time);
        balancer.replace(&[([10, 244, 2, 2], 80).into(), ([10, 244, 2, 3], 80).into()], []);
        let balancer = Arc::new(balancer);
        let scopes = ByOrigin { pod: None, host: None, other: Some(Scope::Cluster) };
        let choose = ChooseByOrigin::new(Arc::default(), Protocol::Tcp, scopes, |_| Some(Arc::clone(&balancer)));
        let first = || choose.choose(client, now).endpoints().next().cloned().unwrap();
        let chosen = first();
        choose.connected(client, &chosen, now);
        assert!((0..4).all(|_| first().address() == chosen.address()), "session affinity");
        choose.failed(client, &chosen, now);
        assert!((0..4).all(|_| first().address() != chosen.address()), "behind the others");
    }
}
