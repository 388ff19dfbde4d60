//! The replies of translated flows in the mode that runs: who sends them, and to which port of the client.

use std::fmt;
use std::sync::Arc;

use ferry_api::object::Family;
use ferry_model::ReplyOwner;
use ferry_model::state::Endpoint;

/// The endpoints to which the proxy's listener at a port of UDP leads in a family; `None` without such a listener.
pub type Behind = dyn Fn(Family, u16) -> Option<Arc<[Endpoint]>> + Send + Sync;

/// Who answers flows, and what is behind the proxy's own listeners.
#[derive(Clone)]
pub struct Replies {
    /// the sender
    pub owner: ReplyOwner,
    /// known in a mode that relays
    pub behind: Option<Arc<Behind>>,
    /// flows keep their clients' ports ([`Profile::keeps_client_ports`](ferry_model::Profile::keeps_client_ports))
    pub keeps_client_ports: bool,
}

// === impl Replies ===

impl From<ReplyOwner> for Replies {
    fn from(owner: ReplyOwner) -> Self {
        Self { owner, behind: None, keeps_client_ports: false }
    }
}

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, keeps_client_ports, .. } = self;
        let mut debug = f.debug_struct("Replies");
        debug.field("owner", owner).field("keeps_client_ports", keeps_client_ports).finish_non_exhaustive()
    }
}
