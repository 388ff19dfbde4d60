//! Input of the core: batches of object events, local addresses, failures of health-check servers, and problems of the node, and objects of the proxy itself.

use std::net::IpAddr;

use ferry_api::object::{Family, KubeObject, ObjectName};
use ferry_model::MissingSchedulers;
use ferry_model::store::Event;

/// An input of the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// a source's batch, applied as a whole before Services are resolved
    Events(Vec<Event>),
    /// the objects that the proxy itself adds to the source's: all of them
    OwnObjects(Vec<KubeObject>),
    /// all addresses of the machine's interfaces, after one changed
    Addresses(Vec<IpAddr>),
    /// no new data: the events applied so far can't be resolved yet, or never
    Undecided,
    /// the number of manifest files that have not been readable since the start, so that their objects are unknown
    Unreadable(usize),
    /// the health checks of a Service can't be served
    HealthCheckFailed {
        /// the Service
        service: ObjectName,
        /// the reason
        note: String,
    },
    /// a mode has found a problem of this node, or that it has ended
    NodeWarning(NodeWarning),
    /// the schedulers that one family's kernel half has found missing, all of them
    MissingSchedulers {
        /// the family
        family: Family,
        /// the schedulers, each with an advice
        missing: MissingSchedulers,
    },
}

/// A problem of the node by which traffic of Services may be lost. It may be sent again at any time: it is logged, and becomes
/// an Event about the Node, when its text changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWarning {
    /// the problem
    pub problem: NodeProblem,
    /// whose packets are affected
    pub family: Family,
    /// the text for operators: what was found, and the remedy; `None` once the problem has ended
    pub note: Option<String>,
}

/// The problems of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeProblem {
    /// the node's firewall drops forwarded packets that none of its rules accepts: the policy of a chain in the hook `forward`
    /// is DROP
    ForwardPolicyDrop,
    /// the kernel forwards no IPv6: `net.ipv6.conf.all.forwarding` is 0, which mode ipvs leaves to the operator
    Ipv6ForwardingDisabled,
    /// a port of a Service has no listener: another program may have the port, or descriptors may be used up (mode userspace)
    ListenerFailed,
    /// connections of the self-test fail
    SelfTestFailed,
}

// === impl NodeProblem ===

impl NodeProblem {
    /// The reason of its Events, one word.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ForwardPolicyDrop => "ForwardPolicyDrop",
            Self::Ipv6ForwardingDisabled => "IPv6ForwardingDisabled",
            Self::ListenerFailed => "ListenerFailed",
            Self::SelfTestFailed => "SelfTestFailed",
        }
    }
}
