//! Compiles the chains that draw an endpoint (pick chains: one per kind and number of endpoints, shared by all services; and
//! those of pools), the chains of session affinity, and those of source ranges.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use ferry_api::object::{Family, Protocol};
use ferry_model::{Affinity, Context, LocalDetector, Scope};
use ferry_ruleset::rules::{Field, NODE_PORT, RuleWriter, VIP};
use ferry_ruleset::sources::SourcesId;
use ferry_ruleset::{Rules, TableRule};

use crate::names::{ChainName, FixedSet, Pick, PortId, SetName};
use crate::object::{NodePortMap, VipMap};
use crate::shape::first_of_scope;

/// Compiles chains for one family. Caches pick chains, since every service with as many endpoints uses the same one.
#[derive(Debug)]
pub(crate) struct Chains {
    pub(crate) family: Family,
    /// caches of the last contexts, the latest first
    kept: RefCell<Vec<CachedChains>>,
}

/// Cached pick chains of one context.
#[derive(Debug)]
struct CachedChains {
    pods: Option<LocalDetector>,
    mark: u32,
    picks: HashMap<(Pick, u32), Rules>,
}

/// The context in force and the one that follows it.
const CONTEXTS: usize = 2;

impl Chains {
    pub(crate) fn new(family: Family) -> Self {
        Self { family, kept: RefCell::default() }
    }

    /// Rules of a pick chain: draws one of `count` slots and translates to the endpoint in it.
    pub(crate) fn pick(&self, context: &Context, pick: Pick, count: u32) -> Rules {
        let pods = &context.local;
        let mut kept = self.kept.borrow_mut();
        let serves = |kept: &CachedChains| kept.pods == *pods && kept.mark == context.masquerade_mark;
        let found = kept.iter().find(|kept| serves(kept)).and_then(|kept| kept.picks.get(&(pick, count)));
        if let Some(rules) = found {
            return rules.clone();
        }
        if !kept.iter().any(serves) {
            kept.truncate(CONTEXTS - 1);
            let picks = HashMap::new();
            kept.insert(0, CachedChains { pods: pods.clone(), mark: context.masquerade_mark, picks });
        }
        let rules = self.pick_rules(context, pick, count);
        if let Some(kept) = kept.iter_mut().find(|kept| serves(kept)) {
            kept.picks.insert((pick, count), rules.clone());
        }
        rules
    }

    fn pick_rules(&self, context: &Context, pick: Pick, count: u32) -> Rules {
        let (key, map) = match pick.of_node_port() {
            true => (NODE_PORT, FixedSet::NodePortEndpoints),
            false => (VIP, FixedSet::Endpoints),
        };
        let key = [key, &[Field::Slot(count, pick.first_slot())]].concat();
        let translate = RuleWriter::new(self.family).translate(&key, map);
        Rules(self.mark(context, pick).into_iter().chain([translate]).collect())
    }

    /// Rules of a pool's chain: draws one of the `count` slots of a scope. Packets that need masquerading are marked and go on to
    /// the one chain that draws, so a changed count replaces one rule only.
    pub(crate) fn pool(
        &self,
        context: &Context,
        protocol: Protocol,
        pick: Pick,
        (pool, scope): (PortId, Scope),
        count: u32,
    ) -> Rules {
        let rule = || RuleWriter::new(self.family);
        if pick != Pick::Forward {
            let onward = rule().goto(ChainName::Pool(Pick::Forward, scope, pool));
            return Rules(self.mark(context, pick).into_iter().chain([onward]).collect());
        }
        // The nft tool loads no translation of a port without a match of the protocol before it.
        let slot = Field::Slot(count, first_of_scope(scope));
        Rules([rule().protocol(protocol).translate(&[slot], SetName::Pool(pool))].into())
    }

    /// The rule that sets the masquerade mark, if the chain has one.
    fn mark(&self, context: &Context, pick: Pick) -> Option<TableRule> {
        let rule = RuleWriter::new(self.family);
        let rule = match pick {
            Pick::Internal => rule.pods(context.local.as_ref()?, false)?,
            Pick::External | Pick::NodePort => rule,
            Pick::Forward | Pick::Local | Pick::NodePortForward | Pick::NodePortLocal => return None,
        };
        Some(rule.set_mark(context.masquerade_mark).end())
    }

    /// Rules of an affinity chain: translates to the endpoint that is recorded for the client; other clients go on to a pick
    /// chain, or to the port's pool if it has one.
    pub(crate) fn affinity(
        &self,
        context: &Context,
        protocol: Protocol,
        pick: Pick,
        owner: (PortId, Scope),
        pool: Option<PortId>,
    ) -> Rules {
        let (key, map) = match pick {
            Pick::Internal | Pick::External | Pick::Forward => (VIP, VipMap::AffinityPick.set()),
            Pick::Local => (VIP, VipMap::AffinityPickLocal.set()),
            Pick::NodePort | Pick::NodePortForward => (NODE_PORT, NodePortMap::AffinityPick.set()),
            Pick::NodePortLocal => (NODE_PORT, NodePortMap::AffinityPickLocal.set()),
        };
        let rule = || RuleWriter::new(self.family);
        let mut rules: Vec<TableRule> = self.mark(context, pick).into_iter().collect();
        let (id, scope) = owner;
        rules.push(rule().protocol(protocol).translate(&[Field::Source], SetName::Affinity(id, scope)));
        rules.push(match pool {
            Some(pool) => rule().goto(ChainName::Pool(pick.without_mark(), scope, pool)),
            None => rule().verdict_map(key, map),
        });
        Rules(rules.into())
    }

    /// Rules of a source range chain: drops packets from outside the ranges; others go on to the frontend's verdict. The ranges
    /// are matched by a rule, and not by an element: a packet sees the rules of the moment in which it entered the hook, so
    /// ranges and chain are of one state.
    pub(crate) fn restricted(&self, id: SourcesId) -> Rules {
        let rule = || RuleWriter::new(self.family);
        let outside = rule().source_outside(SetName::Sources(id)).drop_it();
        Rules([outside, rule().verdict_map(VIP, FixedSet::RestrictedIps)].into())
    }

    /// Rules that record a client's endpoint in the affinity maps of a service port whose pools have it. The timeout belongs to
    /// the rule and not to the map, so a changed timeout needs no new map.
    pub(crate) fn record(&self, id: PortId, scopes: &[Scope], affinity: Affinity) -> Rules {
        let timeout = Duration::from_secs(affinity.timeout_seconds.get().into());
        let rule = |scope: &Scope| {
            let rule =
                RuleWriter::new(self.family).in_set(&[Field::Destination, Field::Port], SetName::Members(id, *scope));
            rule.update(SetName::Affinity(id, *scope), timeout).end()
        };
        Rules(scopes.iter().map(rule).collect())
    }
}

#[cfg(test)]
mod tests {
    use ferry_conformance::states;

    use super::*;

    fn context(pods: Option<&str>, mark: u32) -> Context {
        let local = pods.map(|net| LocalDetector::Cidr(net.parse().unwrap()));
        Context { local, masquerade_mark: mark, ..states::context(Family::V4) }
    }

    #[test]
    fn pick_chains_follow_every_fact_of_the_context() {
        let chains = Chains::new(Family::V4);
        let contexts = [
            context(Some("10.244.0.0/16"), 0x4000),
            context(Some("10.244.0.0/16"), 0x8000),
            context(Some("10.245.0.0/16"), 0x8000),
            context(None, 0x8000),
        ];
        // More contexts than are cached, and each twice: with an empty cache and with a filled one.
        for context in contexts.iter().chain(&contexts) {
            for (pick, count) in [(Pick::Internal, 2), (Pick::Internal, 3), (Pick::External, 2)] {
                let wanted = chains.pick_rules(context, pick, count);
                assert_eq!(chains.pick(context, pick, count), wanted, "{context:?}");
                assert_eq!(chains.pick(context, pick, count), wanted, "{context:?}");
            }
        }
        let distinct: std::collections::BTreeSet<Rules> =
            contexts.iter().map(|context| chains.pick(context, Pick::Internal, 2)).collect();
        assert_eq!(distinct.len(), contexts.len());
    }

    #[test]
    fn the_chains_of_the_last_two_contexts_are_kept() {
        let chains = Chains::new(Family::V4);
        let contexts = [0x1000, 0x2000, 0x4000].map(|mark| context(None, mark));
        let pick = |index: usize| chains.pick(&contexts[index], Pick::External, 2).0;
        let (first, second) = (pick(0), pick(1));
        assert!(std::sync::Arc::ptr_eq(&pick(0), &first) && std::sync::Arc::ptr_eq(&pick(1), &second));
        pick(2);
        assert!(std::sync::Arc::ptr_eq(&pick(1), &second), "a new context takes the place of the oldest");
        assert_eq!(chains.kept.borrow().len(), CONTEXTS);
    }

    #[test]
    fn a_pool_marks_before_the_one_chain_that_picks() {
        let chains = Chains::new(Family::V4);
        let context = context(Some("10.244.0.0/16"), 0x4000);
        let id = PortId::new(&ferry_api::object::ObjectName::new("demo", "web"), Protocol::Tcp, "http");
        let text = |pick, scope| -> Vec<String> {
            let rules = chains.pool(&context, Protocol::Tcp, pick, (id, scope), 3);
            rules.0.iter().map(|rule| rule.text.clone()).collect()
        };
        let onward = format!("goto fwd-pool-{id}");
        assert_eq!(
            text(Pick::Internal, Scope::Cluster),
            ["ip saddr != 10.244.0.0/16 meta mark set meta mark | 0x00004000", &onward]
        );
        assert_eq!(text(Pick::External, Scope::Cluster), ["meta mark set meta mark | 0x00004000", &onward]);
        let translate = |slot: &str| format!("meta l4proto tcp dnat ip to numgen random mod 3{slot} map @pool-{id}");
        assert_eq!(text(Pick::Forward, Scope::Cluster), [translate("")]);
        assert_eq!(text(Pick::Forward, Scope::Local), [translate(" offset 65536")]);
    }
}
