//! Compiles the chains of one port of a Service: endpoints, balancing, external traffic, source ranges.

use std::collections::{BTreeMap, HashSet};

use ferry_kernel::iptables::{IptablesChainName, Match, Rule, Table, Target};
use ferry_model::{Endpoint, Frontend, FrontendAddr, FrontendKind, PortState, Scope, SourceRanges};

use crate::dispatch;
use crate::names;
use crate::object::{ChainId, ChainRules, IptObject};
use crate::place;
use crate::port::PortInput;
use crate::rules::{self, RuleWriter};
use crate::shape::{External, Masquerade, Shape};

/// An endpoint with its chain.
struct EndpointChain {
    endpoint: Endpoint,
    chain: IptablesChainName,
}

/// Writes the chains of a port that its frontends use.
pub(crate) fn write(port: &PortInput<'_>, out: &mut Vec<IptObject>) {
    // A frontend with empty source ranges has no reachable endpoint.
    let shapes: Vec<Shape> = port.state.frontends.iter().filter(|frontend| admits(frontend)).map(Shape::of).collect();
    let used = |scope| shapes.iter().any(|shape| shape.uses(scope));
    let scopes: Vec<Scope> = [Scope::Cluster, Scope::Local].into_iter().filter(|scope| used(*scope)).collect();
    let served = served(port, &scopes);
    let comment = Match::comment(&port.names.printed);
    let both = port.beside.map(|beside| endpoints(beside, &scopes).collect::<HashSet<_>>()).unwrap_or_default();
    let own = served.values().filter(|served| !both.contains(&served.endpoint));
    out.extend(own.map(|served| chain(served.chain, port.endpoint(served, &comment))));
    for scope in scopes {
        let name = match scope {
            Scope::Cluster => port.names.cluster(),
            Scope::Local => port.names.local(),
        };
        out.push(chain(name, port.balance(scope, &served)));
    }
    if port.beside.is_some() {
        return;
    }
    if let Some(external) = port.external {
        out.push(chain(port.names.external(), port.outside(external)));
    }
    if let Some(rules) = port.firewall() {
        out.push(chain(port.names.firewall(), rules));
    }
}

/// True if the source ranges of a frontend admit any client.
pub(crate) fn admits(frontend: &Frontend) -> bool {
    match &frontend.sources {
        SourceRanges::Any => true,
        SourceRanges::Only(ranges) => !ranges.is_empty(),
    }
}

fn chain(name: IptablesChainName, rules: Vec<Rule>) -> IptObject {
    IptObject::Chain(ChainId { table: Table::Nat, name }, ChainRules(rules.into()))
}

/// The endpoints of these scopes, by their text.
fn served(port: &PortInput<'_>, scopes: &[Scope]) -> BTreeMap<String, EndpointChain> {
    let mut all = BTreeMap::new();
    for endpoint in endpoints(port.state, scopes) {
        let entry = all.entry(place::text(&endpoint));
        entry.or_insert_with_key(|text| EndpointChain { endpoint, chain: port.names.endpoint(text) });
    }
    all
}

/// The endpoints of these scopes, with duplicates.
fn endpoints<'a>(state: &'a PortState, scopes: &'a [Scope]) -> impl Iterator<Item = Endpoint> + 'a {
    scopes.iter().flat_map(|scope| state.pool(*scope).0.iter().copied())
}

// === impl PortInput ===

impl PortInput<'_> {
    /// Rules of an endpoint's chain: masquerade for hairpin packets, then DNAT.
    fn endpoint(&self, served: &EndpointChain, comment: &Match) -> Vec<Rule> {
        let from_itself = RuleWriter::new().from(rules::host(served.endpoint.address)).matching(comment.clone());
        let mut translated = RuleWriter::new().protocol(self.state.protocol).matching(comment.clone());
        if self.state.affinity.is_some() {
            translated = translated.matching(Match::SeeNow { list: served.chain.into() });
        }
        vec![from_itself.jump(names::MARK_MASQ), translated.matching(Match::Port(None)).dnat(served.endpoint)]
    }

    /// Rules that balance between a scope's endpoints: with session affinity to the client's last one, else to a random one.
    fn balance(&self, scope: Scope, served: &BTreeMap<String, EndpointChain>) -> Vec<Rule> {
        let mut rules = self.masquerading(scope);
        let order = place::ordered(self.state.pool(scope));
        let of_scope: Vec<(&String, &EndpointChain)> =
            order.iter().filter_map(|endpoint| served.get_key_value(&place::text(endpoint))).collect();
        let to = |text: &str| RuleWriter::new().comment(&format!("{} -> {text}", self.names.printed));
        if let Some(affinity) = self.state.affinity {
            rules.extend(of_scope.iter().map(|(text, served)| {
                let list = served.chain.into();
                let seen = Match::RecentlySeen { seconds: affinity.timeout_seconds.get(), list };
                to(text).matching(seen).jump(served.chain)
            }));
        }
        for (index, (text, served)) in of_scope.iter().enumerate() {
            let left = u32::try_from(of_scope.len() - index).unwrap_or(u32::MAX);
            let mut rule = to(text);
            if left > 1 {
                rule = rule.matching(Match::one_of(left));
            }
            rules.push(rule.jump(served.chain));
        }
        rules
    }

    /// Masquerade rules for the cluster IP, at the head of the chain that it leads to.
    fn masquerading(&self, scope: Scope) -> Vec<Rule> {
        let mut rules = Vec::new();
        for frontend in &self.state.frontends {
            let (Shape::Internal(to, who), FrontendAddr::Vip(vip, port)) = (Shape::of(frontend), frontend.at) else {
                continue;
            };
            let rule = match who {
                Masquerade::Nobody => None,
                Masquerade::Everybody => Some(RuleWriter::new()),
                Masquerade::Others => {
                    self.detector.and_then(|detector| RuleWriter::new().pods(self.family, detector, false))
                }
            };
            if let Some(rule) = rule.filter(|_| to == scope) {
                let comment = dispatch::comment(&self.names.printed, FrontendKind::ClusterIp);
                let rule = rule.to(rules::host(vip)).protocol(self.state.protocol).comment(&comment).port(port);
                rules.push(rule.jump(names::MARK_MASQ));
            }
        }
        rules
    }

    /// Rules of the external chain. With policy Local, packets from pods and from the node itself leave it before the last rule.
    fn outside(&self, external: External) -> Vec<Rule> {
        let comment = |begin: &str| format!("{begin} traffic for {} external destinations", self.names.printed);
        let all = self.names.cluster();
        let (pods, served) = match external {
            External::Cluster => {
                let masquerade =
                    RuleWriter::new().comment(&format!("masquerade{}", comment(""))).jump(names::MARK_MASQ);
                return vec![masquerade, RuleWriter::new().jump(all)];
            }
            External::Local { pods, served } => (pods, served),
        };
        let from_pods = self.detector.filter(|_| pods).and_then(|pods| RuleWriter::new().pods(self.family, pods, true));
        let mut rules: Vec<Rule> = from_pods.into_iter().map(|rule| rule.comment(&comment("pod")).jump(all)).collect();
        let from_node = |begin: &str| RuleWriter::new().comment(&comment(begin)).matching(Match::SourceLocal);
        rules.push(from_node("masquerade LOCAL").jump(names::MARK_MASQ));
        rules.push(from_node("route LOCAL").jump(all));
        if served {
            rules.push(RuleWriter::new().jump(self.names.local()));
        }
        rules
    }

    /// Rules of the firewall chain, which admit source ranges to load balancer addresses; `None` without source ranges.
    fn firewall(&self) -> Option<Vec<Rule>> {
        let mut of_balancers = self.state.frontends.iter().filter_map(|frontend| match &frontend.sources {
            SourceRanges::Only(ranges) if matches!(Shape::of(frontend), Shape::External(_)) => Some(ranges),
            SourceRanges::Only(_) | SourceRanges::Any => None,
        });
        let ranges = of_balancers.next()?;
        debug_assert!(of_balancers.all(|others| others == ranges), "the ranges are the service's");
        let printed = &self.names.printed;
        let comment = dispatch::comment(printed, FrontendKind::LoadBalancer);
        let let_in = |range| RuleWriter::new().from(range).comment(&comment).jump(self.names.external());
        let mut rules: Vec<Rule> = match self.sources {
            Some(set) => {
                let admitted = RuleWriter::new().matching(Match::InSet { set: set.into() });
                vec![admitted.comment(&comment).jump(self.names.external())]
            }
            None => ranges.iter().copied().map(let_in).collect(),
        };
        let others = format!("other traffic to {printed} will be dropped by KUBE-PROXY-FIREWALL");
        rules.push(RuleWriter::new().comment(&others).target(Target::None));
        Some(rules)
    }
}
