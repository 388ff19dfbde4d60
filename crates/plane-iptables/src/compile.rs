//! Compiles a service's state into the objects that serve it. Holds no policy: the model has decided the treatment, and this
//! module selects the chains that implement it.

use std::sync::Arc;
use std::time::Duration;

use ferry_api::object::{Family, IpNet};
use ferry_kernel::iptables::{IptablesChainName, Rule, Table};
use ferry_model::{Context, Frontend, PortState, Profile, ServiceState, SourceRanges};
use ferry_plane::{Before, Compile, Unit};

use crate::features::Features;
use crate::hint::{self, Hint};
use crate::names::{self, PortNames};
use crate::object::{ChainId, IptKey, IptObject, OwnedRulesKey, RuleOwner};
use crate::port::PortInput;
use crate::shape::{External, Shape};
use crate::{base, chains, dispatch, place};

/// The most source ranges of a Service that are a rule each, as upstream's are. More are an ipset: the kernel validates all rules at each
/// commit.
const MOST_RANGE_RULES: usize = 64;

/// Compiler of this mode for one IP family.
#[derive(Clone, Copy, Debug)]
pub struct Iptables {
    family: Family,
    features: Features,
}

// === impl Iptables ===

impl Iptables {
    /// A compiler for this family, on a machine with these features.
    pub fn new(family: Family, features: Features) -> Self {
        Self { family, features }
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }
}

impl Compile for Iptables {
    type Object = IptObject;
    type Hint = Hint;
    const PROFILE: Profile = Profile::IPTABLES;
    const PLACES: bool = true;
    // With the nft variant the kernel validates all reachable rules at every commit that adds one, which takes long with many
    // services: so all new chains are created before the first rule that jumps to them, in one portion.
    const PORTION: usize = 10_000;
    /// A flush by hand consists of several commands, each a few milliseconds after the other.
    const REPAIR_PAUSE: Duration = Duration::from_millis(25);

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<IptObject>) {
        match unit {
            Unit::Base(state) => base::compile(self.family, self.features, context, state, out),
            Unit::Service(service) => self.service(context, service, None, out),
        }
    }

    fn compile_change(
        &self,
        context: &Context,
        units: (&Unit, &Unit),
        before: &mut Vec<IptObject>,
        after: &mut Vec<IptObject>,
    ) {
        match units {
            (Unit::Service(old), Unit::Service(new)) => {
                self.service(context, old, Some(new), before);
                self.service(context, new, Some(old), after);
            }
            (old, new) => {
                self.compile(context, old, before);
                self.compile(context, new, after);
            }
        }
    }

    fn hints(&self, key: &IptKey, hints: &mut Vec<Hint>) {
        hint::of_key(key, hints);
    }

    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
        hint::may_want(unit, asked)
    }

    fn place(&self, next: &mut Unit, before: Before<'_, IptObject>) {
        if let Unit::Service(next) = next {
            place::place(next, before);
        }
    }
}

impl Iptables {
    /// Compiles a Service. Leaves out objects that are on the other side of a change too, if that is cheap to determine.
    fn service(
        &self,
        context: &Context,
        service: &ServiceState,
        other: Option<&ServiceState>,
        out: &mut Vec<IptObject>,
    ) {
        let sources = self.source_set(service);
        for (index, state) in service.ports.iter().enumerate() {
            let beside = other.and_then(|other| beside(other, index, state));
            if beside == Some(state) {
                continue;
            }
            let port = PortInput {
                beside,
                names: PortNames::new(&service.name, &state.name, state.protocol),
                state,
                family: self.family,
                detector: context.local.as_ref(),
                counts_localhost: self.features.counts_localhost && self.family == Family::V4,
                sources: sources.as_ref().map(|(name, _)| *name),
                external: state.frontends.iter().filter(|frontend| chains::admits(frontend)).find_map(external),
            };
            if beside.is_none() {
                dispatch::write(&port, out);
            }
            chains::write(&port, out);
        }
        if let Some((name, ranges)) =
            sources.filter(|of| other.and_then(|other| self.source_set(other)).as_ref() != Some(of))
        {
            out.push(IptObject::SourceSet(name, ranges));
        }
        self.health_checks(service, out);
    }

    /// The ipset of a Service's source ranges; `None` if it has none, or so few that they are rules.
    fn source_set(&self, service: &ServiceState) -> Option<(IptablesChainName, Arc<[IpNet]>)> {
        if !self.features.has_sets {
            return None;
        }
        let mut frontends = service.ports.iter().flat_map(|port| &port.frontends);
        frontends.find_map(|frontend| match &frontend.sources {
            SourceRanges::Only(ranges) if ranges.len() > MOST_RANGE_RULES && external(frontend).is_some() => {
                Some((names::sources(&service.name, self.family), Arc::clone(ranges)))
            }
            SourceRanges::Only(_) | SourceRanges::Any => None,
        })
    }

    /// Adds the rules that accept health checks: one for each port, as upstream does.
    fn health_checks(&self, service: &ServiceState, out: &mut Vec<IptObject>) {
        let Some(check) = service.health_check else { return };
        if service.ports.is_empty() {
            return;
        }
        let number = check.port.get();
        let rule = |state: &PortState| dispatch::health_check(&service.name, &state.name, number);
        let mut rules: Vec<Rule> = service.ports.iter().map(rule).collect();
        // Upstream writes them in random order.
        rules.sort();
        rules.dedup();
        let chain = ChainId { table: Table::Filter, name: names::NODE_PORTS };
        let owner = RuleOwner::HealthCheck(number, names::of_service(&service.name));
        out.push(IptObject::OwnedRules(OwnedRulesKey { chain, owner }, rules.into()));
    }
}

/// The same port on the other side of a change, if it differs at most in its endpoints.
fn beside<'a>(other: &'a ServiceState, index: usize, state: &PortState) -> Option<&'a PortState> {
    let is_same = |port: &&PortState| port.name == state.name && port.protocol == state.protocol;
    let port = other.ports.get(index).filter(is_same).or_else(|| other.ports.iter().find(is_same))?;
    (port.affinity == state.affinity && port.frontends == state.frontends).then_some(port)
}

fn external(frontend: &Frontend) -> Option<External> {
    match Shape::of(frontend) {
        Shape::External(external) => Some(external),
        Shape::Internal(..) | Shape::Refuse(_) | Shape::Pass => None,
    }
}

#[cfg(test)]
mod tests;
