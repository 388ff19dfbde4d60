//! Writes rules with upstream's matches in upstream's order, so that they print like upstream's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferry_api::object::{self, Family, IpNet};
use ferry_kernel::iptables::{
    AddressMatch, CtStates, InterfaceMatch, IptablesChainName, Match, PortProtocol, Rule, Target,
};
use ferry_model::{Endpoint, LocalDetector};

/// Bytes of an interface's name, at most: `IFNAMSIZ` of linux/if.h, less its final zero.
const INTERFACE_MAX: usize = 15;

/// Writes one rule. Matches are in the order of the calls.
#[derive(Clone, Debug)]
pub(crate) struct RuleWriter {
    rule: Rule,
    matches: Vec<Match>,
}

// === impl RuleWriter ===

impl RuleWriter {
    pub(crate) fn new() -> Self {
        // Most rules have two.
        Self { rule: Rule::default(), matches: Vec::with_capacity(2) }
    }

    /// Matches sources in this network.
    pub(crate) fn from(mut self, net: IpNet) -> Self {
        self.rule.source = AddressMatch::only(net);
        self
    }

    /// Matches sources outside of this network.
    pub(crate) fn not_from(mut self, net: IpNet) -> Self {
        self.rule.source = AddressMatch::except(net);
        self
    }

    /// Matches destinations in this network.
    pub(crate) fn to(mut self, net: IpNet) -> Self {
        self.rule.destination = AddressMatch::only(net);
        self
    }

    /// Matches destinations outside of this network.
    pub(crate) fn not_to(mut self, net: IpNet) -> Self {
        self.rule.destination = AddressMatch::except(net);
        self
    }

    /// Matches packets from pods of this node, or all others if `are` is false. `None` if nothing can match.
    pub(crate) fn pods(self, family: Family, detector: &LocalDetector, are: bool) -> Option<Self> {
        match detector {
            LocalDetector::Cidr(net) if Family::of_net(*net) != family => (!are).then_some(self),
            LocalDetector::Cidr(net) if net.prefix_len() == 0 => are.then_some(self),
            LocalDetector::Cidr(net) => Some(if are { self.from(*net) } else { self.not_from(*net) }),
            // No interface has such a name; a `+` at its end would make it a prefix.
            LocalDetector::Bridge(name) if !is_interface(name) || name.ends_with('+') => (!are).then_some(self),
            LocalDetector::InterfacePrefix(prefix) if !is_interface(prefix) => (!are).then_some(self),
            // A prefix of maximum length is the name.
            LocalDetector::InterfacePrefix(prefix) if prefix.len() < INTERFACE_MAX => {
                Some(self.input(format!("{prefix}+"), are))
            }
            LocalDetector::Bridge(name) | LocalDetector::InterfacePrefix(name) => Some(self.input(name.clone(), are)),
        }
    }

    fn input(mut self, name: String, is: bool) -> Self {
        self.rule.input = Some(Box::new(InterfaceMatch { name: name.into(), inverted: !is }));
        self
    }

    pub(crate) fn protocol(mut self, protocol: object::Protocol) -> Self {
        self.rule.protocol = Some(match protocol {
            object::Protocol::Tcp => PortProtocol::Tcp,
            object::Protocol::Udp => PortProtocol::Udp,
            object::Protocol::Sctp => PortProtocol::Sctp,
        });
        self
    }

    pub(crate) fn comment(self, text: &str) -> Self {
        self.matching(Match::comment(text))
    }

    /// Matches this destination port of the rule's protocol.
    pub(crate) fn port(self, port: u16) -> Self {
        self.matching(Match::Port(Some(port)))
    }

    /// Matches the first packet of a connection.
    pub(crate) fn new_connection(self) -> Self {
        self.matching(Match::CtState { inverted: false, states: CtStates::New })
    }

    pub(crate) fn matching(mut self, extension: Match) -> Self {
        self.matches.push(extension);
        self
    }

    pub(crate) fn jump(self, chain: IptablesChainName) -> Rule {
        self.target(Target::Jump(chain))
    }

    /// Translates to the endpoint.
    pub(crate) fn dnat(self, endpoint: Endpoint) -> Rule {
        self.target(Target::Dnat(SocketAddr::new(endpoint.address, endpoint.port)))
    }

    pub(crate) fn target(mut self, target: Target) -> Rule {
        self.rule.target = target;
        self.rule.matches = self.matches.into();
        self.rule
    }
}

fn is_interface(name: &str) -> bool {
    (1..=INTERFACE_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
}

/// One address as a network.
pub(crate) fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// The addresses of loopback.
pub(crate) const fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
        Family::V6 => IpNet::new_assert(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    }
}
