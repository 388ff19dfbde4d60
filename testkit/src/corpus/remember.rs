//! What session affinity has to lead clients to, by what it led them to before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::plan::Memory;

/// Under what a mode remembers a client of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembers {
    /// each traffic policy for itself: the endpoint it chose
    ByPolicy,
    /// each endpoint its clients, whatever way they came. Of a client's endpoints the first one, by the text of their
    /// addresses, is chosen that may be
    ByEndpoint,
}

/// What was seen.
pub(super) struct Memories {
    remembers: Remembers,
    by_policy: BTreeMap<Memory, SocketAddr>,
    /// of each client of a service port, its endpoints by their texts
    by_endpoint: BTreeMap<(String, IpAddr), BTreeMap<String, SocketAddr>>,
    /// every client has called once for each pool
    is_settled: bool,
}

// === impl Memories ===

impl Memories {
    pub(super) fn new(remembers: Remembers) -> Self {
        Self { remembers, by_policy: BTreeMap::new(), by_endpoint: BTreeMap::new(), is_settled: false }
    }

    /// From now on nobody calls who hasn't called for the same pool before.
    pub(super) fn settle(&mut self) {
        self.is_settled = true;
    }

    /// Takes down that a client was led to an endpoint, or says to which one it had to be.
    ///
    /// Where endpoints remember, some may do since an earlier situation: until it is settled, one that would have been
    /// asked before is as good.
    pub(super) fn note(&mut self, memory: &Memory, endpoint: SocketAddr) -> Result<(), SocketAddr> {
        if self.remembers == Remembers::ByPolicy {
            let known = *self.by_policy.entry(memory.clone()).or_insert(endpoint);
            return if known == endpoint { Ok(()) } else { Err(known) };
        }
        let pool: BTreeSet<String> = memory.pool.iter().map(SocketAddr::to_string).collect();
        let known = self.by_endpoint.entry((memory.port.clone(), memory.client)).or_default();
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
        let all = plan::testing::memory(&[one, two, ten]);
        let local = plan::testing::memory(&[one]);
        let mut memories = Memories::new(Remembers::ByEndpoint);
        assert_eq!(memories.note(&all, two), Ok(()));
        assert_eq!(memories.note(&local, one), Ok(()));
        assert_eq!(memories.note(&all, two), Err(one));
        // remembered since before
        assert_eq!(memories.note(&all, ten), Ok(()));
        memories.settle();
        assert_eq!(memories.note(&all, ten), Ok(()));
        assert_eq!(memories.note(&local, one), Ok(()));
        assert_eq!(memories.note(&all, one), Err(ten));
    }
}
