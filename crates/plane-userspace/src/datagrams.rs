//! The endpoints behind each UDP listener, by which stale entries of connection tracking are recognised.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferry_api::object::Family;
use ferry_model::Endpoint;

/// The endpoints behind the UDP listeners: engines of way `redirect` note them, the cleaner of flows reads them.
#[derive(Clone, Debug, Default)]
pub struct DatagramEndpoints(Arc<Mutex<Behind>>);

type Behind = HashMap<(Family, u16), Arc<[Endpoint]>>;

// === impl DatagramEndpoints ===

impl DatagramEndpoints {
    /// The endpoints of the listener at this port; `None` if there is none.
    pub fn endpoints(&self, family: Family, port: u16) -> Option<Arc<[Endpoint]>> {
        self.lock().get(&(family, port)).cloned()
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn lead(&self, family: Family, port: u16, to: &Arc<[Endpoint]>) {
        self.lock().insert((family, port), Arc::clone(to));
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn end(&self, family: Family, port: u16) {
        self.lock().remove(&(family, port));
    }

    fn lock(&self) -> MutexGuard<'_, Behind> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use ferry_conformance::states::pool;

    use super::*;

    #[test]
    fn each_listener_has_endpoints_of_its_own_until_it_ends() {
        let behind = DatagramEndpoints::default();
        let [first, second] = [[1], [2]].map(|last| pool(Family::V4, &last).0);
        behind.lead(Family::V4, 61_000, &first);
        behind.lead(Family::V4, 61_001, &first);
        behind.lead(Family::V4, 61_001, &second);
        assert_eq!(behind.endpoints(Family::V4, 61_000), Some(first));
        assert_eq!(behind.endpoints(Family::V4, 61_001), Some(second));
        assert_eq!(behind.endpoints(Family::V6, 61_000), None);
        behind.end(Family::V4, 61_000);
        assert_eq!([61_000, 61_001].map(|port| behind.endpoints(Family::V4, port).is_some()), [false, true]);
    }
}
