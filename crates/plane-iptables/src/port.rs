//! One port of a Service, with all inputs of its rules: names, state, local detector, features.

use ferry_api::object::Family;
use ferry_kernel::iptables::IptablesChainName;
use ferry_model::{LocalDetector, PortState};

use crate::names::PortNames;
use crate::shape::External;

/// Inputs for the rules of one port of a Service.
pub(crate) struct PortInput<'a> {
    pub(crate) names: PortNames,
    pub(crate) state: &'a PortState,
    pub(crate) family: Family,
    pub(crate) detector: Option<&'a LocalDetector>,
    /// true if connections to node ports over loopback are counted
    pub(crate) counts_localhost: bool,
    /// treatment of packets to external frontends; the same for all that have one
    pub(crate) external: Option<External>,
    /// the ipset of the Service's source ranges, if they aren't rules
    pub(crate) sources: Option<IptablesChainName>,
    /// the port on the other side of a change that concerns only its endpoints: objects of both sides are left out
    pub(crate) beside: Option<&'a PortState>,
}
