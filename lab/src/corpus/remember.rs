//! Checks session affinity: records which endpoints answered a client, and derives the expected one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::plan::AffinityKey;
use crate::mode::Remembers;

/// Observed affinities.
pub(super) struct AffinityLog {
    remembers: Remembers,
    by_policy: BTreeMap<AffinityKey, SocketAddr>,
    /// for each client of a service port, the endpoints that answered it, by their texts
    by_endpoint: BTreeMap<(String, IpAddr), BTreeMap<String, SocketAddr>>,
    /// every client has connected once to each pool
    is_settled: bool,
}

// === impl AffinityLog ===

impl AffinityLog {
    pub(super) fn new(remembers: Remembers) -> Self {
        Self { remembers, by_policy: BTreeMap::new(), by_endpoint: BTreeMap::new(), is_settled: false }
    }

    /// Declares that from now on no client connects to a pool for the first time.
    pub(super) fn settle(&mut self) {
        self.is_settled = true;
    }

    /// Records that an endpoint answered a client.
    ///
    /// With [`Remembers::ByEndpoint`], entries may remain from an earlier situation: until [`AffinityLog::settle`], an
    /// endpoint that precedes the known one is accepted.
    ///
    /// # Errors
    /// If affinity required another endpoint: that one.
    pub(super) fn note(&mut self, affinity_key: &AffinityKey, endpoint: SocketAddr) -> Result<(), SocketAddr> {
        // The key tells frontends apart where each has an affinity of its own.
        if self.remembers != Remembers::ByEndpoint {
            let known = *self.by_policy.entry(affinity_key.clone()).or_insert(endpoint);
            return if known == endpoint { Ok(()) } else { Err(known) };
        }
        let pool: BTreeSet<String> = affinity_key.pool.iter().map(SocketAddr::to_string).collect();
        let known = self.by_endpoint.entry((affinity_key.port.clone(), affinity_key.client)).or_default();
        let first = known.iter().find(|(text, _)| pool.contains(*text)).map(|(_, known)| *known);
        let text = endpoint.to_string();
        match first {
            Some(first) if first != endpoint && (self.is_settled || first.to_string() < text) => Err(first),
            Some(_) | None => {
                known.insert(text, endpoint);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::plan;

    #[test]
    fn endpoints_are_asked_in_the_order_of_their_texts() {
        let [one, ten, two] = ["10.0.0.1:80", "10.0.0.10:80", "10.0.0.2:80"].map(|text| text.parse().unwrap());
        let all = plan::testing::affinity_key(&[one, two, ten]);
        let local = plan::testing::affinity_key(&[one]);
        let mut log = AffinityLog::new(Remembers::ByEndpoint);
        assert_eq!(log.note(&all, two), Ok(()));
        assert_eq!(log.note(&local, one), Ok(()));
        assert_eq!(log.note(&all, two), Err(one));
        // an entry from an earlier situation
        assert_eq!(log.note(&all, ten), Ok(()));
        log.settle();
        assert_eq!(log.note(&all, ten), Ok(()));
        assert_eq!(log.note(&local, one), Ok(()));
        assert_eq!(log.note(&all, one), Err(ten));
    }
}
