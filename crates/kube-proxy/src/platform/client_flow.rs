//! A flow of a client, from its conntrack entry.

use ferry_model::Flow;

/// A flow of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFlow {
    /// the client's port
    pub client_port: u16,
    /// the flow's destination, and the source of its answers
    pub flow: Flow,
}
