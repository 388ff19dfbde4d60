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
