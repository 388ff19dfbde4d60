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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ferry_api::object::{IpNet, Protocol};
    use ferry_kernel::iptables::{AddressMatch, IptablesChainName};

    use super::*;
    use crate::names;
    use crate::object::{ChainRules, OwnedRulesKey};

    fn rule(target: Target) -> Rule {
        Rule { target, ..Rule::default() }
    }

    #[test]
    fn objects_and_keys_as_people_read_them() {
        let chain = ChainId { table: Table::Nat, name: names::MARK_MASQ };
        let shared = ChainId { table: Table::Filter, name: names::SERVICES };
        let rules = [rule(Target::Return), rule(Target::Drop)];
        let vip =
            OwnedRulesKey { chain: shared, owner: RuleOwner::Vip(IpAddr::from([10, 96, 0, 1]), 80, Protocol::Tcp) };
        let nets: [IpNet; 2] = ["10.0.0.0/8".parse().unwrap(), "192.0.2.0/24".parse().unwrap()];
        let name = IptablesChainName::new("FERRY-SRC-XPGD46QRK7WJZT7O").unwrap();
        for (object, text, key) in [
            (
                IptObject::Chain(chain, ChainRules(rules.to_vec().into())),
                "chain nat KUBE-MARK-MASQ { -j RETURN; -j DROP; }",
                "chain nat KUBE-MARK-MASQ",
            ),
            (
                IptObject::Chain(chain, ChainRules::default()),
                "chain nat KUBE-MARK-MASQ { }",
                "chain nat KUBE-MARK-MASQ",
            ),
            (IptObject::SharedChain(shared), "chain filter KUBE-SERVICES", "chain filter KUBE-SERVICES"),
            (
                IptObject::OwnedRules(vip, rules.into()),
                "rules in filter KUBE-SERVICES for 10.96.0.1:80 TCP { -j RETURN; -j DROP; }",
                "rules in filter KUBE-SERVICES for 10.96.0.1:80 TCP",
            ),
            (
                IptObject::SourceSet(name, nets.into()),
                "ipset FERRY-SRC-XPGD46QRK7WJZT7O { 2 source ranges }",
                "ipset FERRY-SRC-XPGD46QRK7WJZT7O",
            ),
            (IptObject::RouteLocalnet, "net.ipv4.conf.all.route_localnet = 1", "net.ipv4.conf.all.route_localnet"),
            (
                IptObject::ForeignRule(shared, "-j RETURN".into()),
                "foreign rule in filter KUBE-SERVICES { -j RETURN }",
                "foreign rule in filter KUBE-SERVICES: -j RETURN",
            ),
        ] {
            assert_eq!((object.to_string().as_str(), object.key().to_string().as_str()), (text, key));
        }
    }

    #[test]
    fn owners_as_people_read_them() {
        let v6: IpAddr = "fd00::1".parse().unwrap();
        for (owner, text) in [
            (RuleOwner::Vip(v6, 53, Protocol::Udp), "[fd00::1]:53 UDP"),
            (RuleOwner::NodePort(30_080, Protocol::Sctp), "node port 30080 SCTP"),
            (RuleOwner::HealthCheck(32_000, names::CANARY), "health check port 32000 of KUBE-PROXY-CANARY"),
            (RuleOwner::NodePorts(None), "all node ports"),
            (RuleOwner::NodePorts(Some(v6)), "all node ports of fd00::1"),
            (RuleOwner::Jump(names::SERVICES), "KUBE-SERVICES"),
            (RuleOwner::Guard, "the loopback guard"),
        ] {
            assert_eq!(owner.to_string(), text);
        }
    }

    #[test]
    fn a_rule_tells_its_family_by_its_addresses() {
        let net = |text: &str| AddressMatch::only(text.parse().unwrap());
        let to = |text: &str| Target::Dnat(text.parse().unwrap());
        for (rule, family) in [
            (rule(Target::Reject), Family::V4),
            (Rule { source: net("10.0.0.0/8"), ..rule(Target::Reject) }, Family::V4),
            (Rule { source: net("fd00::/8"), ..rule(Target::Reject) }, Family::V6),
            (Rule { destination: net("fd00::/8"), ..rule(Target::Reject) }, Family::V6),
            (rule(to("10.244.1.1:80")), Family::V4),
            (rule(to("[fd00::1]:80")), Family::V6),
        ] {
            let mut text = String::new();
            rule.print(family, &mut text);
            assert_eq!((family_of(&rule), RuleText(&rule).to_string()), (family, text));
        }
        let refused = Rule { destination: net("fd00::1/128"), ..rule(Target::Reject) };
        assert_eq!(RuleText(&refused).to_string(), "-d fd00::1/128 -j REJECT --reject-with icmp6-port-unreachable");
    }
}
