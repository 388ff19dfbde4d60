//! Renders objects as text, for people and golden files; Ferry never parses it.

use std::fmt;
use std::net::SocketAddr;

use ferry_api::object::Family;
use ferry_kernel::iptables::{Rule, Table, Target};
use ferry_plane::Object as _;

use crate::base::{FORWARD, INPUT, OUTPUT, POSTROUTING, PREROUTING};
use crate::object::{ChainId, IptKey, IptObject, RuleOwner};
use crate::ruleset::{self, AnyRule};

/// The ruleset of one family as `iptables-save` prints it, and as `iptables-restore` takes it. Objects may come in any order.
pub fn ruleset(family: Family, objects: &[IptObject]) -> String {
    let chains = ruleset::chains(objects);
    let mut text = String::new();
    for table in Table::ALL {
        let of_table = || chains.iter().filter(|(id, _)| id.table == table);
        if of_table().next().is_none() {
            continue;
        }
        text += &format!("*{table}\n");
        for (id, _) in of_table() {
            let policy = if is_builtin(id) { "ACCEPT" } else { "-" };
            text += &format!(":{} {policy} [0:0]\n", id.name);
        }
        for (id, lines) in of_table() {
            for line in lines {
                text += &format!("-A {} ", id.name);
                match line {
                    AnyRule::Ours(rule) => rule.print(family, &mut text),
                    AnyRule::Foreign(rule) => text += rule,
                }
                text.push('\n');
            }
        }
        text += "COMMIT\n";
    }
    if objects.contains(&IptObject::RouteLocalnet) {
        text += "# net.ipv4.conf.all.route_localnet = 1\n";
    }
    text
}

/// The sets of one family in the format of `ipset restore`; empty if there are none.
pub fn sets(family: Family, objects: &[IptObject]) -> String {
    let inet = match family {
        Family::V4 => "inet",
        Family::V6 => "inet6",
    };
    let mut text = String::new();
    for object in objects {
        let IptObject::SourceSet(name, nets) = object else { continue };
        text += &format!("create {name} hash:net family {inet} maxelem {}\n", nets.len());
        text.extend(nets.iter().map(|net| format!("add {name} {net}\n")));
    }
    text
}

fn is_builtin(id: &ChainId) -> bool {
    [INPUT, FORWARD, OUTPUT, PREROUTING, POSTROUTING].contains(&id.name)
}

// === impl IptObject ===

impl fmt::Display for IptObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(id, rules) => write!(f, "chain {id} {{{} }}", InlineRules(&rules.0)),
            Self::OwnedRules(key, rules) => write!(f, "{} {{{} }}", IptKey::OwnedRules(*key), InlineRules(rules)),
            Self::SharedChain(id) => write!(f, "{}", IptKey::SharedChain(*id)),
            Self::SourceSet(_, nets) => write!(f, "{} {{ {} source ranges }}", self.key(), nets.len()),
            Self::RouteLocalnet => write!(f, "{} = 1", IptKey::RouteLocalnet),
            Self::ForeignRule(id, text) => write!(f, "foreign rule in {id} {{ {text} }}"),
        }
    }
}

/// Rules in one line.
struct InlineRules<'a>(&'a [Rule]);

impl fmt::Display for InlineRules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|rule| write!(f, " {};", RuleText(rule)))
    }
}

/// A rule as the tool prints it.
pub(crate) struct RuleText<'a>(pub(crate) &'a Rule);

impl fmt::Display for RuleText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.0.print(family_of(self.0), &mut text);
        f.write_str(&text)
    }
}

/// The family of a rule, IPv4 if the rule doesn't show it: the output differs in few words.
fn family_of(rule: &Rule) -> Family {
    let sides = [rule.source, rule.destination];
    let is_v6 = sides.iter().flatten().any(|side| Family::of_net(side.net) == Family::V6)
        || matches!(rule.target, Target::Dnat(SocketAddr::V6(_)));
    if is_v6 { Family::V6 } else { Family::V4 }
}

// === impl ChainId ===

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

// === impl RuleOwner ===

impl fmt::Display for RuleOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vip(vip, port, protocol) => write!(f, "{} {protocol}", SocketAddr::new(*vip, *port)),
            Self::NodePort(port, protocol) => write!(f, "node port {port} {protocol}"),
            Self::HealthCheck(port, service) => write!(f, "health check port {port} of {service}"),
            Self::NodePorts(None) => f.write_str("all node ports"),
            Self::NodePorts(Some(address)) => write!(f, "all node ports of {address}"),
            Self::Jump(chain) => write!(f, "{chain}"),
            Self::Guard => f.write_str("the loopback guard"),
        }
    }
}

// === impl IptKey ===

impl fmt::Display for IptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(id) | Self::SharedChain(id) => write!(f, "chain {id}"),
            Self::OwnedRules(key) => write!(f, "rules in {} for {}", key.chain, key.owner),
            Self::SourceSet(name) => write!(f, "ipset {name}"),
            Self::RouteLocalnet => f.write_str("net.ipv4.conf.all.route_localnet"),
            Self::ForeignRule(id, text) => write!(f, "foreign rule in {id}: {text}"),
        }
    }
}
