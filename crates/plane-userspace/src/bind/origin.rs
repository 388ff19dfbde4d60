//! Tells by its address where a client is, as a detector by range does.

use std::net::IpAddr;

use ferry_model::Scope;

use super::object::{ByOrigin, Origins};

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
