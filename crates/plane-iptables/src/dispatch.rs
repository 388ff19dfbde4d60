//! Compiles the rules in shared chains that dispatch packets to a port's frontends, or refuse them.

use ferry_api::object::{Family, ObjectName, Protocol};
use ferry_kernel::iptables::{IptablesChainName, Match, Rule, Table, Target};
use ferry_model::{Frontend, FrontendAddr, FrontendKind, Scope, SourceRanges};

use crate::names::{self, PortNames};
use crate::object::{ChainId, IptObject, OwnedRulesKey, RuleOwner};
use crate::port::PortInput;
use crate::rules::{self, RuleWriter};
use crate::shape::{RefusalAction, Shape};

/// Writes the rules of one frontend.
struct Entrance<'a> {
    frontend: &'a Frontend,
    port: &'a PortInput<'a>,
}

/// Writes the rules that dispatch or refuse packets to the frontends of a port.
pub(crate) fn write(port: &PortInput<'_>, out: &mut Vec<IptObject>) {
    for frontend in &port.state.frontends {
        let entrance = Entrance { frontend, port };
        let shape = Shape::of(frontend);
        if let Some(chain) = entrance.leads_to(shape) {
            out.push(entrance.find(chain));
            if matches!(frontend.sources, SourceRanges::Only(_)) {
                out.push(entrance.keep_out());
            }
        }
        if let Some(refusal) = shape.refusal() {
            out.push(entrance.refuse(refusal));
        }
    }
}

/// The rule that accepts health checks, with the comment of one port of the Service.
pub(crate) fn health_check(service: &ObjectName, port: &str, number: u16) -> Rule {
    let printed = PortNames::new(service, port, Protocol::Tcp).printed;
    RuleWriter::new()
        .protocol(Protocol::Tcp)
        .comment(&names::health_check_comment(&printed))
        .port(number)
        .target(Target::Accept)
}

// === impl Entrance ===

impl Entrance<'_> {
    /// The chain that a frontend's packets jump to; `None` if it is refused or left alone.
    fn leads_to(&self, shape: Shape) -> Option<IptablesChainName> {
        let names = &self.port.names;
        match (shape, &self.frontend.sources) {
            (Shape::Internal(Scope::Cluster, _), _) => Some(names.cluster()),
            (Shape::Internal(Scope::Local, _), _) => Some(names.local()),
            (Shape::External(_), SourceRanges::Any) => Some(names.external()),
            (Shape::External(_), SourceRanges::Only(_)) => Some(names.firewall()),
            (Shape::Refuse(_) | Shape::Pass, _) => None,
        }
    }

    /// `-d … -p … -m comment … -m … --dport …`: the matches of all rules for a frontend; `matching` comes before the port.
    fn rule(&self, comment: &str, matching: Option<Match>) -> RuleWriter {
        let mut rule = RuleWriter::new().protocol(self.port.state.protocol).comment(comment);
        if let Some(matching) = matching {
            rule = rule.matching(matching);
        }
        match self.frontend.at {
            FrontendAddr::Vip(vip, port) => rule.to(rules::host(vip)).port(port),
            FrontendAddr::NodePort(port) => rule.port(port),
        }
    }

    fn owned_rules(&self, table: Table, name: IptablesChainName, rules: impl Into<Box<[Rule]>>) -> IptObject {
        let protocol = self.port.state.protocol;
        let owner = match self.frontend.at {
            FrontendAddr::Vip(vip, port) => RuleOwner::Vip(vip, port, protocol),
            FrontendAddr::NodePort(port) => RuleOwner::NodePort(port, protocol),
        };
        IptObject::OwnedRules(OwnedRulesKey { chain: ChainId { table, name }, owner }, rules.into())
    }

    fn find(&self, chain: IptablesChainName) -> IptObject {
        let printed = &self.port.names.printed;
        if let FrontendAddr::NodePort(_) = self.frontend.at {
            let everywhere = self.rule(printed, None);
            let mut rules = Vec::with_capacity(2);
            if self.port.counts_localhost {
                let counted = everywhere.clone().to(rules::loopback(Family::V4));
                rules.push(counted.matching(Match::Account(names::LOCALHOST_ACCEPTED.into())).jump(chain));
            }
            rules.push(everywhere.jump(chain));
            return self.owned_rules(Table::Nat, names::NODE_PORTS, rules);
        }
        let rule = self.rule(&comment(printed, self.frontend.kind), None).jump(chain);
        self.owned_rules(Table::Nat, names::SERVICES, [rule])
    }

    /// The rule that drops packets from outside the source ranges: the firewall chain left them untranslated.
    fn keep_out(&self) -> IptObject {
        let names = &self.port.names;
        let comment = format!("{} traffic not accepted by {}", names.printed, names.firewall());
        self.owned_rules(Table::Filter, names::PROXY_FIREWALL, [self.rule(&comment, None).target(Target::Drop)])
    }

    fn refuse(&self, refusal: RefusalAction) -> IptObject {
        let (what, target) = match refusal {
            RefusalAction::Drop => ("has no local endpoints", Target::Drop),
            RefusalAction::Reject => ("has no endpoints", Target::Reject),
        };
        let local = match self.frontend.at {
            FrontendAddr::Vip(..) => None,
            FrontendAddr::NodePort(_) => Some(Match::DestinationLocal),
        };
        let rule = self.rule(&format!("{} {what}", self.port.names.printed), local).target(target);
        let chain = match self.frontend.kind {
            FrontendKind::ClusterIp => names::SERVICES,
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer | FrontendKind::NodePort => names::EXTERNAL_SERVICES,
        };
        self.owned_rules(Table::Filter, chain, [rule])
    }
}

/// The comment of a rule for a frontend's address.
pub(crate) fn comment(printed: &str, kind: FrontendKind) -> String {
    let what = match kind {
        FrontendKind::ClusterIp => " cluster IP",
        FrontendKind::ExternalIp => " external IP",
        FrontendKind::LoadBalancer => " loadbalancer IP",
        FrontendKind::NodePort => "",
    };
    format!("{printed}{what}")
}
