//! Parses the tool's lines into objects: attributes each rule to its owner, or recognises it as foreign.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use ferry_api::object;
use ferry_api::object::Family;
use ferry_kernel::iptables::{IptablesChainName, Match, PortProtocol, Rule, Table, Target};

use crate::base;
use crate::mirror::{ChainOwnership, Mirror, PrintedRules};
use crate::names::{self, Class};
use crate::object::{ChainId, ChainRules, IptObject, OwnedRulesKey, RuleOwner};

/// The target of a rule that can't be parsed. No compiled rule has it, so the rule always differs.
const UNPARSABLE: IptablesChainName = IptablesChainName::literal("?");

/// Stands for the rule of another program because of which the tool can't print a shared chain. No tool finds a rule by this text.
const HIDING: &str = "(a rule that iptables can't print)";

/// Builds objects from lines.
#[derive(Debug)]
pub(crate) struct Sorter {
    family: Family,
    table: Table,
    objects: Vec<IptObject>,
    mirror: Mirror,
    /// declared chains of one unit without a rule so far
    empty: HashSet<IptablesChainName>,
    open: Option<(IptablesChainName, OpenChain)>,
}

/// The chain whose rules are being read.
#[derive(Debug)]
enum OpenChain {
    Own(Vec<Rule>),
    Shared(ChainOwnership, RulesByOwner),
    /// a chain of other programs, which is ignored
    Foreign,
}

/// Rules of several owners.
#[derive(Debug, Default)]
struct RulesByOwner {
    owners: BTreeMap<RuleOwner, (Vec<Rule>, String)>,
    foreign: Vec<Box<str>>,
    /// true if a rule follows those that must be last
    overtaken: bool,
}

/// Result of a read-back.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) objects: Vec<IptObject>,
    /// the same state, as the next commit needs it
    pub(crate) mirror: Mirror,
    /// true if the tool could not print the rules of service chains
    pub(crate) unreadable: bool,
}

// === impl Sorter ===

impl Sorter {
    pub(crate) fn new(family: Family) -> Self {
        Self {
            family,
            table: Table::Mangle,
            objects: Vec::new(),
            mirror: Mirror::default(),
            empty: HashSet::new(),
            open: None,
        }
    }

    /// Begins a table.
    pub(crate) fn begin(&mut self, table: Table) {
        self.table = table;
    }

    /// Adds a declared chain.
    pub(crate) fn chain(&mut self, name: IptablesChainName) {
        let id = ChainId { table: self.table, name };
        match ChainOwnership::of(id) {
            Some(ChainOwnership::Own) => drop(self.empty.insert(name)),
            Some(ChainOwnership::Shared | ChainOwnership::Firewall) => {
                self.mirror.put_shared_chain(id);
                self.objects.push(IptObject::SharedChain(id));
            }
            Some(ChainOwnership::BuiltIn) | None => {}
        }
    }

    /// Adds the next rule; false if its chain has ended before, or was not declared.
    pub(crate) fn rule(&mut self, name: IptablesChainName, text: &str) -> bool {
        if self.open.as_ref().is_none_or(|(open, _)| *open != name) {
            self.close();
            let Some(open) = self.opened(name) else { return false };
            self.open = Some((name, open));
        }
        let (family, id) = (self.family, ChainId { table: self.table, name });
        match self.open.as_mut().map(|(_, open)| open) {
            Some(OpenChain::Own(rules)) => rules.push(own_rule(family, text)),
            Some(OpenChain::Shared(kind, shared)) => shared.rule(family, id, *kind, text),
            Some(OpenChain::Foreign) | None => {}
        }
        true
    }

    /// Adds a chain that the tool can't print, with the rules that are known to be in it.
    pub(crate) fn hidden(&mut self, name: IptablesChainName, shared: Vec<(OwnedRulesKey, Rule)>) {
        let id = ChainId { table: self.table, name };
        let ownership = ChainOwnership::of(id);
        if ownership == Some(ChainOwnership::Own) {
            return self.own(name, vec![unparsable()]);
        }
        self.chain(name);
        if ownership == Some(ChainOwnership::Shared) {
            self.mirror.hide(id);
            self.objects.push(IptObject::ForeignRule(id, HIDING.into()));
        }
        for (key, rule) in shared {
            self.mirror.put_owned(key, PrintedRules::of(self.family, std::slice::from_ref(&rule)));
            self.objects.push(IptObject::OwnedRules(key, [rule].into()));
        }
    }

    /// Ends the table.
    pub(crate) fn end(&mut self) {
        self.close();
        for name in std::mem::take(&mut self.empty) {
            self.own(name, Vec::new());
        }
    }

    /// A lower bound of the number of our chains so far.
    pub(crate) fn chains_seen(&self) -> usize {
        Table::ALL.into_iter().map(|table| self.mirror.size(table).chains).sum()
    }

    /// The objects that were read.
    pub(crate) fn found(self) -> Found {
        Found { objects: self.objects, mirror: self.mirror, unreadable: false }
    }

    fn opened(&mut self, name: IptablesChainName) -> Option<OpenChain> {
        match ChainOwnership::of(ChainId { table: self.table, name }) {
            Some(ChainOwnership::Own) => self.empty.remove(&name).then(|| OpenChain::Own(Vec::new())),
            Some(kind) => Some(OpenChain::Shared(kind, RulesByOwner::default())),
            None => Some(OpenChain::Foreign),
        }
    }

    fn close(&mut self) {
        match self.open.take() {
            Some((name, OpenChain::Own(rules))) => self.own(name, rules),
            Some((name, OpenChain::Shared(_, shared))) => self.close_shared(name, shared),
            Some((_, OpenChain::Foreign)) | None => {}
        }
    }

    fn own(&mut self, name: IptablesChainName, mut rules: Vec<Rule>) {
        if Class::of(name) == Some(Class::Firewall) {
            // They all jump to the same chain, so their order doesn't matter; upstream keeps the Service's order.
            rules.sort_by_key(|rule| (rule.source.is_none(), rule.source));
        }
        let id = ChainId { table: self.table, name };
        let rules = ChainRules(rules.into());
        self.mirror.put_chain(id, &rules);
        self.objects.push(IptObject::Chain(id, rules));
    }

    fn close_shared(&mut self, name: IptablesChainName, mut shared: RulesByOwner) {
        let chain = ChainId { table: self.table, name };
        if shared.overtaken {
            shared.misplace_last();
        }
        for (owner, (rules, lines)) in shared.owners {
            let key = OwnedRulesKey { chain, owner };
            self.mirror.put_owned(key, PrintedRules::new(lines));
            self.objects.push(owned(key, rules));
        }
        self.objects.extend(shared.foreign.into_iter().map(|text| IptObject::ForeignRule(chain, text)));
    }
}

// === impl Found ===

impl Found {
    /// Adds what was known before of shared chains that the tool can't print. The rule that hides them is reported as foreign, so they are
    /// written anew, with these rules.
    pub(crate) fn completed(mut self, family: Family, known: &Mirror) -> Self {
        for (key, lines) in self.mirror.complete_hidden(known) {
            let rules = lines.iter().filter_map(|line| Rule::parse(family, line)).collect();
            self.objects.push(owned(key, rules));
        }
        self
    }
}

// === impl RulesByOwner ===

impl RulesByOwner {
    fn rule(&mut self, family: Family, id: ChainId, kind: ChainOwnership, text: &str) {
        let rule = Rule::parse(family, text);
        let owned = rule.and_then(|rule| Some((owner(id, &rule)?, rule)));
        let Some((owner, rule)) = owned else {
            if kind == ChainOwnership::Shared {
                self.foreign.push(text.into());
            }
            return;
        };
        let is_last = matches!(owner, RuleOwner::NodePorts(_));
        self.overtaken |= !is_last && self.owners.keys().any(|owner| matches!(owner, RuleOwner::NodePorts(_)));
        let (rules, lines) = self.owners.entry(owner).or_default();
        if !rules.contains(&rule) {
            push_line(lines, text);
            rules.push(rule);
        } else if !is_kubelets(owner) {
            self.foreign.push(text.into());
        }
    }

    /// Turns rules that must be last and aren't into foreign ones, so that they are deleted.
    fn misplace_last(&mut self) {
        let (last, others) = std::mem::take(&mut self.owners)
            .into_iter()
            .partition(|(owner, _)| matches!(owner, RuleOwner::NodePorts(_)));
        self.owners = others;
        let last: BTreeMap<RuleOwner, (Vec<Rule>, String)> = last;
        self.foreign.extend(last.values().flat_map(|(_, lines)| lines.split('\n').map(Box::from)));
    }
}

/// True if the kubelet may have added the rule too, a second time.
fn is_kubelets(owner: RuleOwner) -> bool {
    matches!(owner, RuleOwner::Guard | RuleOwner::Jump(names::FIREWALL))
}

/// An owner's rules as an object: those of health checks in any order, the others in that of their chain.
fn owned(key: OwnedRulesKey, mut rules: Vec<Rule>) -> IptObject {
    if matches!(key.owner, RuleOwner::HealthCheck(..)) {
        rules.sort_unstable();
    }
    IptObject::OwnedRules(key, rules.into())
}

fn push_line(lines: &mut String, text: &str) {
    if !lines.is_empty() {
        lines.push('\n');
    }
    lines.push_str(text);
}

fn unparsable() -> Rule {
    Rule { target: Target::Jump(UNPARSABLE), ..Rule::default() }
}

/// Parses a rule of a chain of one unit. Comments are dropped: they are not compared, and take memory.
fn own_rule(family: Family, text: &str) -> Rule {
    let Some(mut rule) = Rule::parse(family, text) else {
        return unparsable();
    };
    if rule.matches.iter().any(|each| matches!(each, Match::Comment(_))) {
        let is_kept = |each: &Match| !matches!(each, Match::Comment(_));
        rule.matches = Vec::from(rule.matches).into_iter().filter(is_kept).collect();
    }
    rule
}

/// The owner of a rule in this chain; `None` if it is none that this mode makes.
fn owner(chain: ChainId, rule: &Rule) -> Option<RuleOwner> {
    match ChainOwnership::of(chain)? {
        ChainOwnership::Own => None,
        ChainOwnership::Firewall => is_guard(rule).then_some(RuleOwner::Guard),
        ChainOwnership::BuiltIn => {
            let Target::Jump(to) = rule.target else { return None };
            let id = ChainId { table: chain.table, name: to };
            // Other programs may jump to the kubelet's chain for some packets.
            let is_ours = names::is_ours(id.table, to)
                || (ChainOwnership::of(id) == Some(ChainOwnership::Firewall) && is_bare(rule));
            is_ours.then_some(RuleOwner::Jump(to))
        }
        ChainOwnership::Shared => match (chain.table, chain.name, rule.target) {
            (Table::Nat, names::SERVICES, Target::Jump(names::NODE_PORTS)) => Some(RuleOwner::NodePorts(host(rule))),
            (Table::Nat, names::SERVICES, Target::Jump(_)) => vip(rule),
            (Table::Nat, names::NODE_PORTS, Target::Jump(_)) => node_port(rule),
            (Table::Filter, names::SERVICES | names::PROXY_FIREWALL, _) => vip(rule),
            (Table::Filter, names::EXTERNAL_SERVICES, _) => vip(rule).or_else(|| node_port(rule)),
            (Table::Filter, names::NODE_PORTS, Target::Accept) => {
                let (number, _) = port(rule)?;
                Some(RuleOwner::HealthCheck(number, comment(rule).and_then(names::health_check_of)?))
            }
            _ => None,
        },
    }
}

/// True if it matches every packet.
fn is_bare(rule: &Rule) -> bool {
    let Rule { source: None, destination: None, input: None, protocol: None, .. } = rule else { return false };
    rule.matches.iter().all(|each| matches!(each, Match::Comment(_)))
}

/// True for the one rule that this mode, upstream's proxy and the kubelet all make. Any other one is foreign.
fn is_guard(rule: &Rule) -> bool {
    matches!(base::guard(), IptObject::OwnedRules(_, rules) if rules.contains(rule))
}

fn vip(rule: &Rule) -> Option<RuleOwner> {
    let (port, protocol) = port(rule)?;
    Some(RuleOwner::Vip(host(rule)?, port, protocol))
}

fn node_port(rule: &Rule) -> Option<RuleOwner> {
    let (port, protocol) = port(rule)?;
    Some(RuleOwner::NodePort(port, protocol))
}

/// The single destination address of a rule.
fn host(rule: &Rule) -> Option<IpAddr> {
    let to = rule.destination.filter(|to| !to.inverted && to.net.prefix_len() == to.net.max_prefix_len())?;
    Some(to.net.addr())
}

fn port(rule: &Rule) -> Option<(u16, object::Protocol)> {
    let port = rule.matches.iter().find_map(|each| match each {
        Match::Port(port) => *port,
        _ => None,
    });
    let protocol = match rule.protocol? {
        PortProtocol::Tcp => object::Protocol::Tcp,
        PortProtocol::Udp => object::Protocol::Udp,
        PortProtocol::Sctp => object::Protocol::Sctp,
    };
    Some((port?, protocol))
}

fn comment(rule: &Rule) -> Option<&str> {
    rule.matches.iter().find_map(|each| match each {
        Match::Comment(text) => Some(&**text),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
