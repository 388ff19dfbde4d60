//! Kernel objects of the iptables mode: chains of one unit with all their rules, single rules in chains that all frontends, or
//! other programs, share, and ipsets of source ranges. Their keys and ranks.

use std::cmp::Ordering;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use ferry_api::object::{IpNet, Protocol};
use ferry_kernel::iptables::{IptablesChainName, Match, Rule, Table};
use ferry_model::FrontendAddr;
use ferry_plane::{Object, Served};

use crate::names;

/// Balancing chains with fewer rules are written as a whole, and their endpoints are ordered by text.
pub(crate) const LONG: usize = 16;

/// A chain of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId {
    /// the table
    pub table: Table,
    /// the chain
    pub name: IptablesChainName,
}

/// One object in the kernel that this mode owns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IptObject {
    /// a chain of one unit, with all its rules
    Chain(ChainId, ChainRules),
    /// the existence of a chain whose rules are [`IptObject::OwnedRules`] of many owners
    SharedChain(ChainId),
    /// the adjacent rules of one owner in a shared or built-in chain
    OwnedRules(OwnedRulesKey, Box<[Rule]>),
    /// an ipset of a Service's source ranges, where they are many: sorted, and none within another
    SourceSet(IptablesChainName, Arc<[IpNet]>),
    /// net.ipv4.conf.all.route_localnet is 1, so that packets to 127.0.0.1 can be translated
    RouteLocalnet,
    /// a rule of another program in one of our shared chains, as the tool prints it after the chain's name; only read back
    ForeignRule(ChainId, Box<str>),
}

/// The rules of a chain of one unit. Compared without comments: these follow from the chain's name, and in large clusters some
/// are left out.
#[derive(Clone, Debug, Default)]
pub struct ChainRules(pub Box<[Rule]>);

/// Identity of an object, independent of its content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IptKey {
    /// [`IptObject::Chain`]
    Chain(ChainId),
    /// [`IptObject::SharedChain`]
    SharedChain(ChainId),
    /// [`IptObject::OwnedRules`]
    OwnedRules(OwnedRulesKey),
    /// [`IptObject::SourceSet`]
    SourceSet(IptablesChainName),
    /// [`IptObject::RouteLocalnet`]
    RouteLocalnet,
    /// [`IptObject::ForeignRule`]
    ForeignRule(ChainId, Box<str>),
}

/// Identity of one owner's rules in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnedRulesKey {
    /// the chain
    pub chain: ChainId,
    /// the owner
    pub owner: RuleOwner,
}

/// Owner of rules in a shared or built-in chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleOwner {
    /// the frontend at this address
    Vip(IpAddr, u16, Protocol),
    /// the frontend at this port of the node
    NodePort(u16, Protocol),
    /// the health checks of a Service on this port; the name represents the Service, see [`names::of_service`]
    HealthCheck(u16, IptablesChainName),
    /// the jump to the node port chain: for every local address (`None`) or for this one. Always last in the chain
    NodePorts(Option<IpAddr>),
    /// the jump from a built-in chain to this one; inserted at the head
    Jump(IptablesChainName),
    /// the loopback guard
    Guard,
}

// === impl IptKey ===

impl IptKey {
    /// The shared or built-in chain that it is, or is in.
    pub fn shared_chain(&self) -> Option<ChainId> {
        match self {
            Self::OwnedRules(key) => Some(key.chain),
            Self::SharedChain(id) | Self::ForeignRule(id, _) => Some(*id),
            Self::Chain(_) | Self::SourceSet(_) | Self::RouteLocalnet => None,
        }
    }

    /// The chain that it is, or is in.
    pub fn chain(&self) -> Option<ChainId> {
        match self {
            Self::Chain(id) => Some(*id),
            other => other.shared_chain(),
        }
    }
}

// === impl ChainRules ===

impl ChainRules {
    /// A hash of each rule without its comments.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(|rule| {
            let mut hasher = DefaultHasher::new();
            without_comments(rule).hash(&mut hasher);
            hasher.finish()
        })
    }
}

/// A rule without its comments. Borrows, since a full sync compares all rules of a large cluster.
fn without_comments(rule: &Rule) -> impl Ord + Hash + '_ {
    let head = (rule.source, rule.destination, rule.input.as_deref(), rule.protocol, rule.target);
    (head, Uncommented(&rule.matches))
}

/// Matches, compared without comments.
struct Uncommented<'a>(&'a [Match]);

impl Uncommented<'_> {
    fn matches(&self) -> impl Iterator<Item = &Match> {
        self.0.iter().filter(|each| !matches!(each, Match::Comment(_)))
    }
}

impl PartialEq for Uncommented<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Uncommented<'_> {}

impl PartialOrd for Uncommented<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Uncommented<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.matches().cmp(other.matches())
    }
}

impl Hash for Uncommented<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.matches().for_each(|each| each.hash(state));
        self.matches().count().hash(state);
    }
}

impl PartialEq for ChainRules {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ChainRules {}

impl PartialOrd for ChainRules {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ChainRules {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.iter().map(without_comments).cmp(other.0.iter().map(without_comments))
    }
}

impl Hash for ChainRules {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.len().hash(state);
        self.0.iter().for_each(|rule| without_comments(rule).hash(state));
    }
}

// === impl IptObject ===

impl Object for IptObject {
    type Key = IptKey;
    type Shared = Infallible;
    const SHARES: bool = false;

    fn key(&self) -> IptKey {
        match self {
            Self::Chain(id, _) => IptKey::Chain(*id),
            Self::SharedChain(id) => IptKey::SharedChain(*id),
            Self::OwnedRules(key, _) => IptKey::OwnedRules(*key),
            Self::SourceSet(name, _) => IptKey::SourceSet(*name),
            Self::RouteLocalnet => IptKey::RouteLocalnet,
            Self::ForeignRule(id, text) => IptKey::ForeignRule(*id, text.clone()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            // Chains of services refer to each other, in the order of their classes.
            Self::Chain(id, _) => names::rank(id.name),
            Self::SourceSet(..) => 0,
            Self::SharedChain(_) => 10,
            Self::OwnedRules(OwnedRulesKey { owner: RuleOwner::Jump(_), .. }, _) => 12,
            Self::OwnedRules(..) | Self::ForeignRule(..) => 11,
            // After the guard.
            Self::RouteLocalnet => 13,
        }
    }

    fn spare(&self) -> bool {
        is_shared(self)
    }

    fn stays(&self) -> bool {
        self.spare()
    }

    fn serves(&self) -> Option<Served> {
        let Self::OwnedRules(OwnedRulesKey { chain: ChainId { table: Table::Nat, .. }, owner }, _) = self else {
            return None;
        };
        match *owner {
            RuleOwner::Vip(address, port, protocol) => {
                Some(Served::Frontend(protocol, FrontendAddr::Vip(address, port)))
            }
            RuleOwner::NodePort(port, protocol) => Some(Served::Frontend(protocol, FrontendAddr::NodePort(port))),
            RuleOwner::NodePorts(address) => Some(address.map_or(Served::NodePortsEverywhere, Served::NodePorts)),
            RuleOwner::HealthCheck(..) | RuleOwner::Jump(_) | RuleOwner::Guard => None,
        }
    }

    fn is_leaf(&self) -> bool {
        self.serves().is_some() || matches!(self, Self::ForeignRule(..))
    }

    fn is_placed(&self) -> bool {
        let Self::Chain(id, rules) = self else { return false };
        rules.0.len() >= LONG && names::is_balancing(id.name)
    }
}

/// The shared chain whose rules this object is some of.
pub(crate) fn with_rules_in(object: &IptObject) -> Option<ChainId> {
    match object {
        IptObject::OwnedRules(OwnedRulesKey { chain, .. }, _) | IptObject::ForeignRule(chain, _) => Some(*chain),
        IptObject::Chain(..) | IptObject::SharedChain(_) | IptObject::SourceSet(..) | IptObject::RouteLocalnet => None,
    }
}

/// True if the kubelet or other programs may rely on this object too: it is never deleted, as in upstream. Without the loopback
/// guard, `route_localnet` would let neighbours reach listeners on loopback (CVE-2020-8558).
pub fn is_shared(object: &IptObject) -> bool {
    match object {
        IptObject::RouteLocalnet => true,
        IptObject::SharedChain(id) => id.name == names::FIREWALL,
        IptObject::OwnedRules(OwnedRulesKey { owner, .. }, _) => {
            matches!(owner, RuleOwner::Guard | RuleOwner::Jump(names::FIREWALL))
        }
        IptObject::Chain(..) | IptObject::SourceSet(..) | IptObject::ForeignRule(..) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_a_chain_are_the_same_whatever_their_comments_say() {
        let rule = |matches: &[Match]| Rule { matches: matches.into(), ..Rule::default() };
        let rules = |matches: &[Match]| ChainRules([rule(&[]), rule(matches)].into());
        let said = [Match::comment("a"), Match::SourceLocal, Match::Random(7)];
        assert_eq!(rules(&said), rules(&[Match::SourceLocal, Match::comment("b"), Match::Random(7)]));
        assert_eq!(rules(&said), rules(&said[1..]));
        assert_ne!(rules(&said), rules(&[Match::Random(7), Match::SourceLocal]));
        assert_ne!(rules(&said), rules(&said[..2]));
        assert_ne!(rules(&said), ChainRules([rule(&said)].into()));
        let entry = |comment: &str| {
            let chain = ChainId { table: Table::Nat, name: names::SERVICES };
            IptObject::OwnedRules(
                OwnedRulesKey { chain, owner: RuleOwner::Guard },
                [rule(&[Match::comment(comment)])].into(),
            )
        };
        assert_ne!(entry("a"), entry("b"), "in shared chains rules are deleted by their text");
    }

    #[test]
    fn comments_decide_nothing_about_the_order_of_rules() {
        let rule = |matches: &[Match]| Rule { matches: matches.into(), ..Rule::default() };
        let (said, local) = (Match::comment("a"), Match::SourceLocal);
        for (one, other, wanted) in [
            (rule(&[said.clone(), local.clone()]), rule(&[local.clone(), Match::comment("b")]), Ordering::Equal),
            (rule(&[Match::comment("b")]), rule(&[Match::SourceLocal]), Ordering::Less),
            (rule(&[local.clone(), local.clone()]), rule(&[local.clone(), said]), Ordering::Greater),
        ] {
            let bare = [&one, &other].map(|rule| Uncommented(&rule.matches));
            assert_eq!((bare[0].partial_cmp(&bare[1]), bare[0] == bare[1]), (Some(wanted), wanted == Ordering::Equal));
            let chains = [one, other].map(|rule| ChainRules([rule].into()));
            assert_eq!((chains[0].partial_cmp(&chains[1]), chains[0] == chains[1]), (Some(wanted), wanted.is_eq()));
        }
    }

    #[test]
    fn what_an_object_serves_and_when_it_goes() {
        let vip = IpAddr::from([10, 96, 0, 1]);
        let nat = |name| ChainId { table: Table::Nat, name };
        let filter = |name| ChainId { table: Table::Filter, name };
        let owned = |chain, owner| IptObject::OwnedRules(OwnedRulesKey { chain, owner }, [Rule::default()].into());
        let frontend = |at| Some(Served::Frontend(Protocol::Tcp, at));
        let of_vip = RuleOwner::Vip(vip, 80, Protocol::Tcp);
        let check = RuleOwner::HealthCheck(80, names::CANARY);
        let all = [
            (owned(nat(names::SERVICES), of_vip), frontend(FrontendAddr::Vip(vip, 80)), true, false),
            (owned(filter(names::SERVICES), of_vip), None, false, false),
            (
                owned(nat(names::NODE_PORTS), RuleOwner::NodePort(30_080, Protocol::Tcp)),
                frontend(FrontendAddr::NodePort(30_080)),
                true,
                false,
            ),
            (owned(nat(names::SERVICES), RuleOwner::NodePorts(None)), Some(Served::NodePortsEverywhere), true, false),
            (owned(nat(names::SERVICES), RuleOwner::NodePorts(Some(vip))), Some(Served::NodePorts(vip)), true, false),
            (owned(filter(names::NODE_PORTS), check), None, false, false),
            (owned(nat(names::SERVICES), RuleOwner::Jump(names::POSTROUTING)), None, false, false),
            (owned(filter(names::FIREWALL), RuleOwner::Jump(names::FIREWALL)), None, false, true),
            (owned(filter(names::FIREWALL), RuleOwner::Guard), None, false, true),
            (IptObject::SharedChain(filter(names::FIREWALL)), None, false, true),
            (IptObject::SharedChain(filter(names::SERVICES)), None, false, false),
            (IptObject::RouteLocalnet, None, false, true),
            (IptObject::ForeignRule(nat(names::SERVICES), "-j RETURN".into()), None, true, false),
            (IptObject::SourceSet(names::CANARY, [].into()), None, false, false),
            (IptObject::Chain(nat(names::MARK_MASQ), ChainRules::default()), None, false, false),
        ];
        for (object, served, is_leaf, stays) in all {
            assert_eq!((object.serves(), object.is_leaf()), (served, is_leaf), "{object:?}");
            assert_eq!((object.spare(), object.stays()), (stays, stays), "{object:?}");
        }
    }
}
