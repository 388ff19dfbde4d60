//! The choice of endpoints that the relay asks for at each new connection, in the order in which they are tried.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::endpoint::Endpoint;

/// The most tries for one connection, and endpoints in one choice.
pub const MAX_TRIES: usize = 4;

/// Chooses endpoints for clients. Called by the relay's threads for each connection, so it must not block.
pub trait Choose: Debug + Send + Sync {
    /// The endpoints to try for a new connection or association of this client; none if there is no endpoint.
    fn choose(&self, client: IpAddr, now: Instant) -> Choice;

    /// The client has a connection to, or an association with, this endpoint.
    fn connected(&self, client: IpAddr, endpoint: &Arc<Endpoint>, now: Instant);

    /// A try has failed: refused, timed out, or ended by an ICMP error.
    fn failed(&self, client: IpAddr, endpoint: &Arc<Endpoint>, now: Instant);
}

/// At most [`MAX_TRIES`] endpoints, in the order in which they are tried. Kept without a heap allocation.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    endpoints: [Option<Arc<Endpoint>>; MAX_TRIES],
}

// === impl Choice ===

impl Choice {
    /// Adds an endpoint behind the others, unless the choice is full or has it.
    pub fn push(&mut self, endpoint: &Arc<Endpoint>) {
        for place in &mut self.endpoints {
            match place {
                Some(present) if Arc::ptr_eq(present, endpoint) => return,
                Some(_other) => {}
                None => {
                    *place = Some(Arc::clone(endpoint));
                    return;
                }
            }
        }
    }

    /// Takes out the endpoints for which this is false.
    pub fn retain(&mut self, keep: impl Fn(&Endpoint) -> bool) {
        for place in &mut self.endpoints {
            place.take_if(|endpoint| !keep(endpoint));
        }
    }

    /// True if no further endpoint finds a place.
    pub fn is_full(&self) -> bool {
        self.endpoints.iter().all(Option::is_some)
    }

    /// True if there is no endpoint.
    pub fn is_empty(&self) -> bool {
        self.endpoints.iter().all(Option::is_none)
    }

    /// The endpoints in order.
    pub fn endpoints(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.endpoints.iter().flatten()
    }

    /// The endpoint of the try after `tries` others: the first ones again, after the last one. Without those removed meanwhile.
    pub(crate) fn of_try(&self, tries: usize) -> Option<Arc<Endpoint>> {
        let count = self.endpoints().filter(|endpoint| !endpoint.is_removed()).count();
        let position = tries.checked_rem(count)?;
        self.endpoints().filter(|endpoint| !endpoint.is_removed()).nth(position).cloned()
    }

    /// Takes an endpoint out.
    pub(crate) fn discard(&mut self, endpoint: &Arc<Endpoint>) {
        self.retain(|present| !std::ptr::eq(present, &**endpoint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_go_round_those_that_are_left() {
        let all: Vec<_> = (1..=5).map(|port| Arc::new(Endpoint::new(([192, 0, 2, 1], port).into()))).collect();
        let mut choice = Choice::default();
        assert!(choice.is_empty() && choice.of_try(0).is_none());
        for endpoint in all.iter().chain(&all) {
            choice.push(endpoint);
        }
        assert!(choice.is_full());
        let ports = |choice: &Choice| -> Vec<u16> {
            (0..6).filter_map(|tries| choice.of_try(tries)).map(|endpoint| endpoint.address().port()).collect()
        };
        assert_eq!(ports(&choice), [1, 2, 3, 4, 1, 2]);
        choice.discard(&all[1]);
        all[3].remove();
        assert_eq!(ports(&choice), [1, 3, 1, 3, 1, 3]);
    }
}
