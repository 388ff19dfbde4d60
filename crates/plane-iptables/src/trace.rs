//! Simulates the objects on the first packet of a connection: takes it through the hooks and their rules.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ferry_api::object::{self, IpNet};
use ferry_kernel::iptables::{
    AddressMatch, CtStates, InterfaceMatch, IptablesChainName, Match, PortProtocol, Rule, Table, Target,
};
use ferry_model::{Endpoint, Packet, Snat, Verdict};
use ferry_plane::{PacketPath, Trace, Traced};

use crate::base::{FORWARD, INPUT, OUTPUT, POSTROUTING, PREROUTING};
use crate::compile::Iptables;
use crate::object::{ChainId, IptObject};
use crate::render::RuleText;
use crate::ruleset::{self, AnyRule};

/// Limit of nested jumps; upstream's chains need six.
const DEPTH: usize = 16;

/// Relative tolerance of probabilities, since the tool rounds each of them.
const ROUNDING: f64 = 1e-4;

/// Traces many packets through the same objects.
struct Tracer<'a> {
    chains: BTreeMap<ChainId, Vec<&'a Rule>>,
    sets: Vec<(IptablesChainName, &'a [IpNet])>,
}

/// State of a packet on its way through the hooks: one of several if rules match at random.
#[derive(Clone)]
struct Walk<'a> {
    packet: &'a Packet,
    /// the ipsets that hold its source
    sets: Vec<IptablesChainName>,
    /// the current destination
    destination: SocketAddr,
    translated: bool,
    mark: u32,
    masqueraded: bool,
    chance: f64,
    path: PacketPath,
}

/// The outcome of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// the packet goes on
    Accept,
    Drop,
    Reject,
}

impl Trace for Iptables {
    fn tracer<'a>(&self, objects: &'a [IptObject]) -> Box<dyn ferry_plane::Tracer + 'a> {
        Box::new(Tracer::new(objects))
    }
}

// === impl Tracer ===

impl<'a> Tracer<'a> {
    /// A tracer of one family's objects. Foreign rules are left out.
    fn new(objects: &'a [IptObject]) -> Self {
        let ours = |line: AnyRule<'a>| match line {
            AnyRule::Ours(rule) => Some(rule),
            AnyRule::Foreign(_) => None,
        };
        let chains = ruleset::chains(objects);
        Self {
            chains: chains.into_iter().map(|(id, lines)| (id, lines.into_iter().filter_map(ours).collect())).collect(),
            sets: objects
                .iter()
                .filter_map(|object| match object {
                    IptObject::SourceSet(name, nets) => Some((*name, &**nets)),
                    _ => None,
                })
                .collect(),
        }
    }

    /// All possible verdicts, with their walks.
    fn ends<'p>(&self, packet: &'p Packet, path: &PacketPath) -> Vec<(Verdict, Walk<'p>)> {
        let sent_here = packet.interface.is_none();
        let holds = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&packet.source));
        let sets = self.sets.iter().filter(|(_, nets)| holds(nets)).map(|(name, _)| *name).collect();
        let start = Walk::new(packet, sets, path.clone());
        let mut ends = Vec::new();
        for (_, walk) in self.hook(Table::Nat, if sent_here { OUTPUT } else { PREROUTING }, start) {
            // A translated packet goes on to an endpoint: one from this node leaves through OUTPUT, even to this node.
            let hooks: &[IptablesChainName] = match (sent_here, packet.destination_local && !walk.translated) {
                (true, true) => &[OUTPUT, INPUT],
                (true, false) => &[OUTPUT],
                (false, true) => &[INPUT],
                (false, false) => &[FORWARD],
            };
            for (end, walk) in self.filters(hooks, walk) {
                match end {
                    End::Drop => ends.push((Verdict::Drop, walk)),
                    End::Reject => ends.push((Verdict::Reject, walk)),
                    End::Accept if !walk.translated => ends.push((Verdict::Pass, walk)),
                    End::Accept => {
                        let gone = self.hook(Table::Nat, POSTROUTING, walk);
                        ends.extend(gone.into_iter().map(|(_, walk)| (walk.verdict(), walk)));
                    }
                }
            }
        }
        ends
    }

    fn filters<'p>(&self, hooks: &[IptablesChainName], walk: Walk<'p>) -> Vec<(End, Walk<'p>)> {
        let mut all = vec![(End::Accept, walk)];
        for hook in hooks {
            let met = all.into_iter().flat_map(|(end, walk)| match end {
                End::Accept => self.hook(Table::Filter, *hook, walk),
                End::Drop | End::Reject => vec![(end, walk)],
            });
            all = met.collect();
        }
        all
    }

    /// All paths through the rules of a hook.
    fn hook<'p>(&self, table: Table, name: IptablesChainName, mut walk: Walk<'p>) -> Vec<(End, Walk<'p>)> {
        walk.path.step(0, format_args!("table {table}, chain {name}"));
        let mut ends = Vec::new();
        // Paths to be walked: the stack of chains, each with the index of its next rule.
        let mut open = vec![(vec![(self.rules(table, name), 0)], walk)];
        while let Some((mut stack, mut walk)) = open.pop() {
            let end = loop {
                let depth = stack.len();
                let Some((rules, at)) = stack.last_mut() else { break End::Accept };
                let Some(rule) = rules.get(*at) else {
                    stack.pop();
                    continue;
                };
                *at += 1;
                if let Some(chance) = walk.dice(rule) {
                    let mut other = walk.clone();
                    other.chance *= 1.0 - chance;
                    open.push((stack.clone(), other));
                    walk.chance *= chance;
                }
                if !walk.meets(rule) {
                    continue;
                }
                walk.path.step(depth, RuleText(rule));
                match rule.target {
                    Target::Jump(_) if stack.len() >= DEPTH => break End::Drop,
                    Target::Jump(to) => stack.push((self.rules(table, to), 0)),
                    Target::Return => drop(stack.pop()),
                    target => {
                        if let Some(end) = walk.act(&target) {
                            break end;
                        }
                    }
                }
            };
            ends.push((end, walk));
        }
        ends
    }

    fn rules(&self, table: Table, name: IptablesChainName) -> &[&'a Rule] {
        self.chains.get(&ChainId { table, name }).map_or(&[], Vec::as_slice)
    }
}

impl ferry_plane::Tracer for Tracer<'_> {
    /// Over all random outcomes: all endpoints that a packet may reach, or a refusal if one outcome is one. An endpoint that gets less or
    /// more than its share is left out, since a verdict's endpoints are equally probable.
    fn trace(&self, packet: &Packet, path: &PacketPath) -> Traced {
        let mut to: BTreeMap<Endpoint, (Snat, f64)> = BTreeMap::new();
        let mut paths = Vec::new();
        for (verdict, walk) in self.ends(packet, path) {
            let Verdict::Forward(endpoints) = &verdict else { return Traced::one(walk.path, verdict) };
            for (endpoint, snat) in endpoints {
                to.entry(*endpoint).or_insert((*snat, 0.0)).1 += walk.chance;
            }
            paths.push((walk.path, verdict));
        }
        #[expect(clippy::cast_precision_loss, reason = "fewer than 65,537 endpoints")]
        let fair = 1.0 / to.len() as f64;
        to.retain(|_, (_, chance)| (*chance / fair - 1.0).abs() < ROUNDING);
        let verdict = Verdict::Forward(to.into_iter().map(|(endpoint, (snat, _))| (endpoint, snat)).collect());
        Traced { verdict, paths }
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(packet: &'a Packet, sets: Vec<IptablesChainName>, path: PacketPath) -> Self {
        let destination = SocketAddr::new(packet.destination, packet.port);
        Self { packet, sets, destination, translated: false, mark: 0, masqueraded: false, chance: 1.0, path }
    }

    /// The probability of a random match, if all other matches of the rule apply.
    fn dice(&self, rule: &Rule) -> Option<f64> {
        let chance = rule.matches.iter().find_map(|each| match each {
            Match::Random(units) => Some(f64::from(*units) / f64::from(1_u32 << 31)),
            _ => None,
        })?;
        self.meets(rule).then_some(chance)
    }

    fn meets(&self, rule: &Rule) -> bool {
        let at = |side: &Option<AddressMatch>, address: IpAddr| {
            side.is_none_or(|side| side.net.contains(&address) != side.inverted)
        };
        at(&rule.source, self.packet.source)
            && at(&rule.destination, self.destination.ip())
            && rule.input.as_deref().is_none_or(|input| self.came_through(input))
            && rule.protocol.is_none_or(|protocol| protocol == of(self.packet.protocol))
            && rule.matches.iter().all(|each| self.matches(each))
    }

    fn came_through(&self, input: &InterfaceMatch) -> bool {
        let name = self.packet.interface.as_deref().unwrap_or_default();
        let is = match input.name.strip_suffix('+') {
            Some(prefix) => name.starts_with(prefix),
            None => *input.name == *name,
        };
        is != input.inverted
    }

    fn matches(&self, extension: &Match) -> bool {
        match extension {
            // Random matches are handled by `dice`; no client was recorded before this packet.
            Match::Comment(_) | Match::Account(_) | Match::SeeNow { .. } | Match::Random(_) => true,
            Match::RecentlySeen { .. } => false,
            Match::Port(port) => port.is_none_or(|port| port == self.destination.port()),
            Match::CtState { inverted, states } => {
                let is = match states {
                    CtStates::New => true,
                    CtStates::Invalid | CtStates::RelatedEstablished => false,
                    CtStates::RelatedEstablishedDnat => self.translated,
                };
                is != *inverted
            }
            Match::InSet { set } => self.sets.contains(set),
            Match::SourceLocal => self.packet.source_local,
            Match::DestinationLocal => self.packet.destination_local && !self.translated,
            Match::Mark { inverted, value, mask } => (self.mark & mask == *value) != *inverted,
        }
    }

    /// Applies a target that is no jump; `None` if the next rule follows.
    fn act(&mut self, target: &Target) -> Option<End> {
        match target {
            Target::None | Target::Jump(_) | Target::Return => None,
            Target::Accept => Some(End::Accept),
            Target::Drop => Some(End::Drop),
            Target::Reject => Some(End::Reject),
            Target::SetXmark { value, mask } => {
                self.mark = (self.mark & !mask) ^ value;
                None
            }
            Target::Masquerade { .. } => {
                self.masqueraded = true;
                Some(End::Accept)
            }
            Target::Dnat(to) => {
                self.destination = *to;
                self.translated = true;
                Some(End::Accept)
            }
        }
    }

    fn verdict(&self) -> Verdict {
        let endpoint = Endpoint { address: self.destination.ip(), port: self.destination.port() };
        let snat = if self.masqueraded { Snat::Masquerade } else { Snat::Keep };
        Verdict::Forward([(endpoint, snat)].into())
    }
}

fn of(protocol: object::Protocol) -> PortProtocol {
    match protocol {
        object::Protocol::Tcp => PortProtocol::Tcp,
        object::Protocol::Udp => PortProtocol::Udp,
        object::Protocol::Sctp => PortProtocol::Sctp,
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Protocol;
    use ferry_plane::Tracer as _;

    use super::*;
    use crate::object::{ChainRules, OwnedRulesKey, RuleOwner};

    fn packet() -> Packet {
        Packet {
            source: [198, 51, 100, 1].into(),
            source_local: false,
            interface: Some("eth0".to_owned()),
            destination: [203, 0, 113, 9].into(),
            destination_local: false,
            protocol: Protocol::Tcp,
            port: 80,
        }
    }

    /// Chains of table filter, each with these rules; the first one is what FORWARD jumps to.
    fn verdict(chains: &[Vec<Rule>]) -> Verdict {
        let chain = |(number, rules): (usize, &Vec<Rule>)| {
            let id = ChainId { table: Table::Filter, name: name(number) };
            IptObject::Chain(id, ChainRules(rules.clone().into()))
        };
        let mut objects: Vec<IptObject> = chains.iter().enumerate().map(chain).collect();
        let chain = ChainId { table: Table::Filter, name: FORWARD };
        let owner = RuleOwner::Jump(name(0));
        objects.push(IptObject::OwnedRules(OwnedRulesKey { chain, owner }, [rule(Target::Jump(name(0)))].into()));
        Tracer::new(&objects).verdict(&packet())
    }

    fn name(number: usize) -> IptablesChainName {
        IptablesChainName::new(&format!("CHAIN-{number}")).unwrap()
    }

    fn rule(target: Target) -> Rule {
        Rule { target, ..Rule::default() }
    }

    #[test]
    fn jumps_lead_sixteen_chains_deep_at_most() {
        let nested = |depth: usize| -> Vec<Vec<Rule>> {
            let jumps = (1..depth).map(|number| vec![rule(Target::Jump(name(number)))]);
            jumps.chain([vec![rule(Target::Reject)]]).collect()
        };
        // The hook's own chain is the first.
        assert_eq!(verdict(&nested(DEPTH - 1)), Verdict::Reject);
        assert_eq!(verdict(&nested(DEPTH)), Verdict::Drop);
        assert_eq!(verdict(&[vec![rule(Target::Jump(name(0)))]]), Verdict::Drop, "a circle");
    }

    #[test]
    fn setting_a_mark_clears_the_masked_bits_and_toggles_those_of_the_value() {
        let (value, mask) = (0x4000, 0x4000);
        let set = |value, mask| rule(Target::SetXmark { value, mask });
        let marked = Match::Mark { inverted: false, value, mask };
        let drop = Rule { matches: [marked].into(), ..rule(Target::Drop) };
        for (set, wanted) in [
            (vec![], Verdict::Pass),
            (vec![set(value, mask)], Verdict::Drop),
            (vec![set(value, mask), set(value, mask)], Verdict::Drop),
            (vec![set(value, 0)], Verdict::Drop),
            (vec![set(value, mask), set(value, 0)], Verdict::Pass),
            (vec![set(value, mask), set(0, mask)], Verdict::Pass),
            (vec![set(value, mask), set(0, 0)], Verdict::Drop),
        ] {
            let rules = set.into_iter().chain([drop.clone()]).collect();
            assert_eq!(verdict(&[rules]), wanted);
        }
    }
}
