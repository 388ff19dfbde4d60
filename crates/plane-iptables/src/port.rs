//! One port of a Service, with what the rules of its chains and of its frontends need.

use ferry_api::object::Family;
use ferry_model::{LocalDetector, PortState};

use crate::names::PortNames;
use crate::shape::External;

/// One port of a Service, as its chains are written.
pub(crate) struct Port<'a> {
    pub(crate) names: PortNames,
    pub(crate) state: &'a PortState,
    pub(crate) family: Family,
    pub(crate) detector: Option<&'a LocalDetector>,
    /// connections to node ports by way of loopback are counted
    pub(crate) counts_localhost: bool,
    /// what becomes of packets to the external frontends; the same for all that lead anywhere
    pub(crate) external: Option<External>,
    /// the port on the other side of a change that is about its endpoints only: what both have is left out
    pub(crate) beside: Option<&'a PortState>,
}
