//! Service managers that wait for readiness. The one of Windows doesn't: a service counts as running from its start, since the
//! first rules may wait for an API server for as long as it takes (`service.rs` reports the state).

use std::convert::Infallible;

use ferry_api::object::Family;

use super::OpenSocket;

/// Readiness, of which nothing is notified.
#[derive(Debug)]
pub struct Readiness;

/// Notifies that a new run takes the program's place.
pub fn reloading() {}

/// Leaves sockets to the next start, which takes none here.
pub fn keep(_sockets: &[(String, OpenSocket)]) {}

/// Forgets sockets that were left, of which there are none.
pub fn forget<'a>(_names: impl IntoIterator<Item = &'a str>) {}

/// Notifies that the program is alive.
pub async fn watch(_is_alive: impl Fn() -> bool) -> Infallible {
    std::future::pending().await
}

// === impl Readiness ===

impl Readiness {
    /// Of a program that serves these families, and has no rules in force yet.
    pub fn new(_families: impl IntoIterator<Item = Family>) -> Self {
        Self
    }

    /// Everything that was handed over to this family's engine is in force.
    pub fn settled(&mut self, _family: Family) {}
}
