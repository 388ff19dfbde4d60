//! Balancing in mode ipvs: the scheduler and the weights of endpoints that a Service's annotations choose.
//!
//! A value that can't be followed costs itself only: the configured scheduler serves in place of an unknown one, and what has no
//! valid weight has weight 1.

use std::collections::BTreeMap;

use ferry_api::object::{BalancingAnnotations, Service};

use crate::context::Context;
use crate::diagnostic::{Cause, FieldPath, Findings};
use crate::profile::Profile;
use crate::scheduler::Scheduler;
use crate::select::Selection;
use crate::slices::EndpointRow;
use crate::state::{Balance, Endpoint, MAX_WEIGHT};

/// The choices of a Service, for all its ports.
#[derive(Debug)]
pub(crate) struct Balancing<'a> {
    scheduler: Option<Scheduler>,
    /// weights by zone; 1 for other zones
    zones: BTreeMap<&'a str, u32>,
    /// factor of endpoints on this node
    local: u32,
}

const SCHEDULER: FieldPath = FieldPath::plain("metadata.annotations[ferry.io/ipvs-scheduler]");
const WEIGHT_ZONES: FieldPath = FieldPath::plain("metadata.annotations[ferry.io/ipvs-weight-zones]");
const WEIGHT_LOCAL: FieldPath = FieldPath::plain("metadata.annotations[ferry.io/ipvs-weight-local]");

// === impl Balancing ===

impl<'a> Balancing<'a> {
    /// The choices of a Service's annotations, with findings for those that can't be followed; `None` without any, and in modes
    /// that don't balance.
    pub(crate) fn of(
        service: &'a Service,
        context: &Context,
        profile: &Profile,
        findings: &mut Findings<'_>,
    ) -> Option<Self> {
        let annotations = service.balancing.as_deref().filter(|_| profile.balances)?;
        let BalancingAnnotations { scheduler, weight_zones, weight_local } = annotations;
        Some(Self {
            scheduler: scheduler.as_deref().and_then(|name| known_scheduler(name, context, findings)),
            zones: weight_zones.as_deref().map(|list| zones(list, findings)).unwrap_or_default(),
            local: weight_local.as_deref().map_or(1, |factor| local_factor(factor, findings)),
        })
    }

    /// The choices for a port with these endpoints; `None` if nothing differs from a Service without annotations.
    pub(crate) fn of_port(
        &self,
        rows: &[EndpointRow<'_>],
        selection: &Selection,
        context: &Context,
    ) -> Option<Box<Balance>> {
        let is_used = |endpoint: &Endpoint| {
            [&selection.cluster, &selection.local].iter().any(|pool| pool.0.binary_search(endpoint).is_ok())
        };
        let weighted = rows.iter().map(|row| (row.endpoint, self.weight(row, context)));
        let weights: Box<[_]> = weighted.filter(|(endpoint, weight)| *weight != 1 && is_used(endpoint)).collect();
        let scheduler = self.scheduler;
        (scheduler.is_some() || !weights.is_empty()).then(|| Box::new(Balance { scheduler, weights }))
    }

    fn weight(&self, row: &EndpointRow<'_>, context: &Context) -> u32 {
        let of_zone = row.zone().and_then(|zone| self.zones.get(zone)).copied().unwrap_or(1);
        let factor = if row.is_on(&context.node_name) { self.local } else { 1 };
        of_zone.saturating_mul(factor).min(MAX_WEIGHT)
    }
}

/// The scheduler of this name, if the kernel has it; `None` for the configured one.
fn known_scheduler(name: &str, context: &Context, findings: &mut Findings<'_>) -> Option<Scheduler> {
    let configured = context.scheduler;
    let Ok(scheduler) = name.parse::<Scheduler>() else {
        let names = Scheduler::ALL.map(Scheduler::name).join(", ");
        let message = format_args!(
            "{} is no scheduler: the configured one, {configured}, is used; known are {names}",
            Written(name)
        );
        findings.add(SCHEDULER, Cause::Balancing, &message);
        return None;
    };
    if let Some(remedy) = context.missing_schedulers.get(&scheduler) {
        let message = format_args!(
            "the kernel of this node doesn't have the scheduler {scheduler}: the configured one, {configured}, is used; {remedy}"
        );
        findings.add(SCHEDULER, Cause::MissingScheduler, &message);
        return None;
    }
    Some(scheduler)
}

/// Parses a list such as `a=3,b=1`.
fn zones<'a>(list: &'a str, findings: &mut Findings<'_>) -> BTreeMap<&'a str, u32> {
    let mut zones = BTreeMap::new();
    let mut report = |message: std::fmt::Arguments<'_>| findings.add(WEIGHT_ZONES, Cause::Balancing, &message);
    for entry in list.split(',') {
        let Some((zone, text)) = entry.split_once('=').map(|(zone, text)| (zone.trim(), text.trim())) else {
            report(format_args!(
                "{} is no zone with a weight: its endpoints have weight 1; write ZONE=WEIGHT, separated by commas",
                Written(entry.trim())
            ));
            continue;
        };
        match weight(text) {
            Some(_) if zone.is_empty() || zones.contains_key(zone) => report(format_args!(
                "{} names no zone, or one that is in the list already: not used; write each zone once",
                Written(entry.trim())
            )),
            Some(weight) => drop(zones.insert(zone, weight)),
            None => report(format_args!(
                "{} is no weight of zone {zone:?}: its endpoints have weight 1; write a number from 1 to {MAX_WEIGHT}",
                Written(text)
            )),
        }
    }
    zones
}

fn local_factor(text: &str, findings: &mut Findings<'_>) -> u32 {
    weight(text.trim()).unwrap_or_else(|| {
        let message = format_args!(
            "{} is no factor: endpoints on this node keep their weight; write a number from 1 to {MAX_WEIGHT}, in quotes",
            Written(text)
        );
        findings.add(WEIGHT_LOCAL, Cause::Balancing, &message);
        1
    })
}

/// A weight of 1 to 65,535: 0 would take an endpoint out of service.
fn weight(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|weight| digits && (1..=MAX_WEIGHT).contains(weight))
}

/// A value in a message.
struct Written<'a>(&'a str);

impl std::fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { f.write_str("a value that is empty or no string") } else { write!(f, "{:?}", self.0) }
    }
}

#[cfg(test)]
mod tests;
