//! Compares what packets meet in this machine's kernel with what the model decides, Service by Service.
//!
//! `packets` enumerates the packets of a Service. The kernel's objects are read back once, and simulated by the mode's tracer; `expected`
//! is the model's answer. `report` prints, with the operations of a run that would repair what differs.

mod expected;
mod packets;
mod report;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ferry_api::object::{Family, ObjectName};
use ferry_model::{Packet, ServiceState, Verdict};
use ferry_plane::{Batch, CommitError, Delta, Inspector, UnitId};

use self::expected::Expected;
use super::comparison::{self, Comparison};
use super::desired::{InspectedNode, desired};
use super::engines::each_family;
use super::objects::ListedObjects;
use crate::core::FamilyView;
use crate::planes::Plane;

/// Differing packets of a Service that are kept.
const KEPT: usize = 3;

/// The inputs of a comparison.
#[derive(Clone, Debug)]
pub struct VerifyRequest<'a> {
    /// the node, and the mode
    pub node: InspectedNode<'a>,
    /// the number of Services, evenly spread over all; `None` for all of them
    pub sample: Option<usize>,
    /// as JSON, whose schema is that of docs/cli.md
    pub json: bool,
    /// with colours of a terminal
    pub colours: bool,
}

/// The result of one family.
#[derive(Debug, Default)]
struct Compared {
    services: usize,
    packets: usize,
    /// the Services that differ
    differing: BTreeMap<ObjectName, Differing>,
    /// what a run would change of the objects that all Services share; empty unless a Service differs
    shared: Batch<String>,
    /// the container of all objects, if it is missing
    missing_container: Option<String>,
}

/// A Service that differs.
#[derive(Debug, Default)]
struct Differing {
    /// the number of its packets that meet another verdict
    packets: usize,
    /// the first of them
    examples: Vec<Difference>,
    /// what a run would change of its objects
    repair: Batch<String>,
}

/// A packet that meets another verdict than it should.
#[derive(Debug)]
struct Difference {
    packet: Packet,
    actual: Verdict,
    expected: Verdict,
}

/// Compares the kernel with the model. Nothing is changed.
///
/// # Errors
/// If this build lacks the mode, its objects can't be read from outside, it can't be used here for any family, or the objects lack what
/// [`desired`] needs.
pub fn verify(objects: ListedObjects, request: &VerifyRequest<'_>) -> anyhow::Result<Comparison> {
    let VerifyRequest { node, sample, json, colours } = request;
    let plane = Plane::named(node.config.configured_mode())?;
    let profile = plane.offline(node.config).profile;
    let desired = desired(objects, node, profile)?;
    let compared = each_family(&plane, &Family::ALL, node, &desired, |family, engine, delta| {
        let (in_family, services) = (desired.in_family(family)?, desired.services(family));
        let expected = Expected::new(in_family, &services, profile);
        compare(engine, delta, &sampled(&services, *sample), (&in_family, &expected, &desired.addresses))
    })?;
    let differs = compared.iter().any(|(_, one)| one.as_ref().is_ok_and(|one| !one.differing.is_empty()));
    let text = if *json {
        comparison::json(plane.mode, &compared, report::json)
    } else {
        comparison::text(plane.mode, &compared, *colours, report::lines)
    };
    Ok(Comparison { text, differs, failed: comparison::failed(&compared) })
}

/// This number of Services, evenly spread.
fn sampled<'a>(services: &[&'a ServiceState], number: Option<usize>) -> Vec<&'a ServiceState> {
    let number = number.unwrap_or(services.len()).min(services.len());
    (0..number).filter_map(|at| services.get(at * services.len() / number)).copied().collect()
}

fn compare(
    engine: &mut dyn Inspector,
    delta: Delta,
    services: &[&ServiceState],
    (in_family, expected, addresses): (&FamilyView<'_>, &Expected<'_>, &[IpAddr]),
) -> Result<Compared, CommitError> {
    let mut compared = Compared { services: services.len(), ..Compared::default() };
    engine.trace(&mut |tracer| {
        for state in services {
            for packet in packets::of(state, in_family, addresses) {
                let (actual, expected) = (tracer.verdict(&packet), expected.verdict(&packet));
                compared.note(&state.name, Difference { packet, actual, expected });
            }
        }
    })?;
    if !compared.differing.is_empty() {
        engine.offer(delta);
        let mut plan = engine.plan()?;
        compared.shared = plan.units.remove(&UnitId::Base).unwrap_or_default();
        compared.missing_container = plan.missing_container.take();
        for (name, differing) in &mut compared.differing {
            differing.repair = plan.units.remove(&UnitId::Service(name.clone())).unwrap_or_default();
        }
    }
    Ok(compared)
}

// === impl Compared ===

impl Compared {
    /// Takes the verdicts on a packet of a Service.
    fn note(&mut self, name: &ObjectName, difference: Difference) {
        self.packets += 1;
        if difference.actual == difference.expected {
            return;
        }
        let differing = self.differing.entry(name.clone()).or_default();
        differing.packets += 1;
        if differing.examples.len() < KEPT {
            differing.examples.push(difference);
        }
    }
}

#[cfg(test)]
mod tests;
