//! Compiles the base: the chains that belong to no service, and the jumps from built-in chains to ours.

use ferry_api::object::Family;
use ferry_kernel::iptables::{CtStates, IptablesChainName, Match, Rule, Table, Target};
use ferry_model::{BaseState, Context, NodePortAddresses};

use crate::features::Features;
use crate::names;
use crate::object::{ChainId, ChainRules, IptObject, OwnedRulesKey, RuleOwner};
use crate::rules::{self, RuleWriter};

/// Upstream's comment of the jump to the node port chain, which other rules must not follow.
const NODE_PORTS: &str = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";

/// A rule in a built-in chain that jumps to one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// the table
    pub table: Table,
    /// the built-in chain
    pub from: IptablesChainName,
    /// ours
    pub to: IptablesChainName,
    /// true if it matches only the first packet of a connection
    new_only: bool,
    /// empty: none
    comment: &'static str,
}

const PORTALS: &str = "kubernetes service portals";
const EXTERNAL: &str = "kubernetes externally-visible service portals";
const BALANCERS: &str = "kubernetes load balancer firewall";

/// Built-in chain: packets delivered to this node.
pub const INPUT: IptablesChainName = IptablesChainName::literal("INPUT");
/// Built-in chain: forwarded packets.
pub const FORWARD: IptablesChainName = IptablesChainName::literal("FORWARD");
/// Built-in chain: packets that this node sends.
pub const OUTPUT: IptablesChainName = IptablesChainName::literal("OUTPUT");
/// Built-in chain: received packets, before routing.
pub const PREROUTING: IptablesChainName = IptablesChainName::literal("PREROUTING");
/// Built-in chain: leaving packets, after routing.
pub const POSTROUTING: IptablesChainName = IptablesChainName::literal("POSTROUTING");

/// All jumps, in the order in which they are inserted at the head of their chains: of one chain's jumps the last one here comes
/// first.
pub const JUMPS: [Jump; 14] = [
    Jump::filter(INPUT, names::EXTERNAL_SERVICES, true, EXTERNAL),
    Jump::filter(FORWARD, names::EXTERNAL_SERVICES, true, EXTERNAL),
    Jump::filter(INPUT, names::NODE_PORTS, false, "kubernetes health check service ports"),
    Jump::filter(FORWARD, names::SERVICES, true, PORTALS),
    Jump::filter(OUTPUT, names::SERVICES, true, PORTALS),
    Jump::filter(FORWARD, names::FORWARD, false, "kubernetes forwarding rules"),
    Jump::filter(INPUT, names::PROXY_FIREWALL, true, BALANCERS),
    Jump::filter(OUTPUT, names::PROXY_FIREWALL, true, BALANCERS),
    Jump::filter(FORWARD, names::PROXY_FIREWALL, true, BALANCERS),
    Jump::nat(OUTPUT, names::SERVICES, PORTALS),
    Jump::nat(PREROUTING, names::SERVICES, PORTALS),
    Jump::nat(POSTROUTING, names::POSTROUTING, "kubernetes postrouting rules"),
    Jump::filter(INPUT, names::FIREWALL, false, ""),
    Jump::filter(OUTPUT, names::FIREWALL, false, ""),
];

/// Our shared chains: they hold rules of several units.
pub const SHARED_CHAINS: [ChainId; 7] = [
    ChainId { table: Table::Filter, name: names::SERVICES },
    ChainId { table: Table::Filter, name: names::EXTERNAL_SERVICES },
    ChainId { table: Table::Filter, name: names::NODE_PORTS },
    ChainId { table: Table::Filter, name: names::PROXY_FIREWALL },
    ChainId { table: Table::Filter, name: names::FIREWALL },
    ChainId { table: Table::Nat, name: names::SERVICES },
    ChainId { table: Table::Nat, name: names::NODE_PORTS },
];

/// All chains with rules of several owners: [`SHARED_CHAINS`] and the built-in chains that jump to ours.
pub fn shared_chains() -> impl Iterator<Item = ChainId> {
    SHARED_CHAINS.into_iter().chain(JUMPS.iter().map(|jump| jump.key().chain))
}

// === impl Jump ===

impl Jump {
    const fn filter(from: IptablesChainName, to: IptablesChainName, new_only: bool, comment: &'static str) -> Self {
        Self { table: Table::Filter, from, to, new_only, comment }
    }

    const fn nat(from: IptablesChainName, to: IptablesChainName, comment: &'static str) -> Self {
        Self { table: Table::Nat, from, to, new_only: false, comment }
    }

    /// Its key.
    pub fn key(&self) -> OwnedRulesKey {
        OwnedRulesKey { chain: ChainId { table: self.table, name: self.from }, owner: RuleOwner::Jump(self.to) }
    }

    /// The rule.
    pub(crate) fn rule(&self) -> Rule {
        let mut rule = RuleWriter::new();
        if self.new_only {
            rule = rule.new_connection();
        }
        if !self.comment.is_empty() {
            rule = rule.comment(self.comment);
        }
        rule.jump(self.to)
    }
}

/// Index of a jump in [`JUMPS`]; `None` if it is none of ours.
pub fn jump_position(key: &OwnedRulesKey) -> Option<usize> {
    JUMPS.iter().position(|jump| jump.key() == *key)
}

/// The objects of the base.
pub(crate) fn compile(
    family: Family,
    features: Features,
    context: &Context,
    base: &BaseState,
    out: &mut Vec<IptObject>,
) {
    let chain = |table, name, rules: Vec<Rule>| IptObject::Chain(ChainId { table, name }, ChainRules(rules.into()));
    let tables = Table::ALL.into_iter().filter(|table| *table != Table::Mangle || !features.lacks_mangle);
    out.extend(tables.map(|table| chain(table, names::CANARY, Vec::new())));
    let mark = context.masquerade_mark;
    let ask = RuleWriter::new().target(Target::SetXmark { value: mark, mask: mark });
    out.push(chain(Table::Nat, names::MARK_MASQ, vec![ask]));
    out.push(chain(Table::Nat, names::POSTROUTING, masquerading(mark)));
    out.push(chain(Table::Filter, names::FORWARD, forwarding(mark, features)));
    out.extend(SHARED_CHAINS.map(IptObject::SharedChain));
    out.extend(JUMPS.iter().map(|jump| IptObject::OwnedRules(jump.key(), [jump.rule()].into())));
    node_ports(family, base, out);
    if family == Family::V4 && (base.localhost || features.guards_loopback) {
        out.push(guard());
    }
    if family == Family::V4 && base.localhost {
        out.push(IptObject::RouteLocalnet);
    }
}

fn masquerading(mark: u32) -> Vec<Rule> {
    let unmarked = Match::Mark { inverted: true, value: mark, mask: mark };
    vec![
        RuleWriter::new().matching(unmarked).target(Target::Return),
        RuleWriter::new().target(Target::SetXmark { value: mark, mask: 0 }),
        RuleWriter::new()
            .comment("kubernetes service traffic requiring SNAT")
            .target(Target::Masquerade { random_fully: true }),
    ]
}

fn forwarding(mark: u32, features: Features) -> Vec<Rule> {
    let known = |states| Match::CtState { inverted: false, states };
    let mut rules = Vec::new();
    if features.drops_invalid {
        let mut invalid = RuleWriter::new().matching(known(CtStates::Invalid));
        if features.counts_invalid {
            invalid = invalid.matching(Match::Account(names::INVALID_DROPPED.into()));
        }
        rules.push(invalid.target(Target::Drop));
    }
    rules.push(
        RuleWriter::new()
            .comment("kubernetes forwarding rules")
            .matching(Match::Mark { inverted: false, value: mark, mask: mark })
            .target(Target::Accept),
    );
    rules.push(
        RuleWriter::new()
            .comment("kubernetes forwarding conntrack rule")
            .matching(known(CtStates::RelatedEstablished))
            .target(Target::Accept),
    );
    rules
}

/// Adds the rules that jump to the node port chain.
fn node_ports(family: Family, base: &BaseState, out: &mut Vec<IptObject>) {
    let chain = ChainId { table: Table::Nat, name: names::SERVICES };
    let mut push = |address, rule: RuleWriter| {
        let rule = rule.jump(names::NODE_PORTS);
        out.push(IptObject::OwnedRules(OwnedRulesKey { chain, owner: RuleOwner::NodePorts(address) }, [rule].into()));
    };
    match &base.node_ports {
        NodePortAddresses::All => {
            let mut rule = RuleWriter::new();
            if family == Family::V6 || !base.localhost {
                rule = rule.not_to(rules::loopback(family));
            }
            push(None, rule.comment(NODE_PORTS).matching(Match::DestinationLocal));
        }
        NodePortAddresses::Only(addresses) => {
            let serves =
                |address: &&std::net::IpAddr| !address.is_loopback() || (base.localhost && family == Family::V4);
            for address in addresses.iter().filter(serves) {
                push(Some(*address), RuleWriter::new().to(rules::host(*address)).comment(NODE_PORTS));
            }
        }
    }
}

/// The loopback guard: drops packets from elsewhere to loopback addresses, which `route_localnet` would admit.
pub(crate) fn guard() -> IptObject {
    let loopback = rules::loopback(Family::V4);
    let rule = RuleWriter::new()
        .not_from(loopback)
        .to(loopback)
        .comment("block incoming localnet connections")
        .matching(Match::CtState { inverted: true, states: CtStates::RelatedEstablishedDnat })
        .target(Target::Drop);
    let chain = ChainId { table: Table::Filter, name: names::FIREWALL };
    IptObject::OwnedRules(OwnedRulesKey { chain, owner: RuleOwner::Guard }, [rule].into())
}

#[cfg(test)]
mod tests;
