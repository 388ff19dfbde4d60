//! Takes a packet through the objects that are in this machine's kernel, one by one, and compares the result with the model's.

use std::io;

use ferry_api::config::KubeProxyConfiguration;
use ferry_api::object::Family;
use ferry_model::{FrontendAddr, Packet, ServiceState, Settings, Verdict, decide};
use ferry_plane::{Batch, CommitError, Delta, Inspector, Plan, Step, Traced, UnitId, Way};
use serde_json::{Value, json};

use super::comparison::{self, Comparison};
use super::connection::Connection;
use super::desired::{DesiredSetup, LocalAddresses, desired};
use super::engines::each_family;
use super::known::{InFamily, Known};
use super::objects::Objects;
use crate::planes::Plane;

/// Operations of a repair that are printed for people.
const OPERATIONS: usize = 5;
/// Ways that are printed for people.
const WAYS: usize = 8;
/// Indentation of each level.
const INDENT: &str = "  ";

/// The inputs of a trace.
#[derive(Clone, Debug)]
pub struct TraceRequest<'a> {
    /// valid, with all defaults; its mode is traced
    pub config: &'a KubeProxyConfiguration,
    /// the settings of this configuration that affect traffic
    pub settings: &'a Settings,
    /// the addresses of the node's interfaces
    pub addresses: LocalAddresses,
    /// whose first packet is traced
    pub connection: Connection,
    /// as JSON, whose schema is that of docs/cli.md
    pub json: bool,
}

/// The verdicts on the packet, of the objects and of the model.
#[derive(Debug)]
struct Answers {
    traced: Traced,
    expected: Verdict,
    /// what a run would change about the Services at this address, if the verdicts differ
    repair: Option<Repair>,
}

/// What a run would change.
#[derive(Debug, Default)]
struct Repair {
    /// of the Services at the packet's destination, and of what all share
    here: Batch<String>,
    /// the number of other changes
    elsewhere: usize,
}

/// Traces the first packet of a connection. Nothing is changed.
///
/// # Errors
/// If this build lacks the mode, its objects can't be read from outside, it can't be used here for the connection's family, or the objects
/// lack what [`desired`] needs.
pub fn trace(objects: Objects, request: &TraceRequest<'_>) -> anyhow::Result<Comparison> {
    let TraceRequest { config, settings, addresses, connection, json } = request;
    let plane = Plane::named(config.configured_mode())?;
    let profile = plane.offline(config).profile;
    let desired = desired(objects, DesiredSetup { config, settings, profile, addresses })?;
    let known = Known::of(&desired, profile)?;
    let packet = connection.packet(&desired.addresses);
    let family = Family::of(connection.client);
    let shown = each_family(&plane, &[family], (config, settings), &desired, |family, engine, delta| {
        let in_family = known.family(family);
        let InFamily { base, context, services, .. } = in_family;
        let expected = decide(services.iter().copied(), base, &packet, context, &profile);
        answers(engine, delta, (&packet, expected), services)
    })?;
    let differs = shown.iter().any(|(_, one)| one.as_ref().is_ok_and(Answers::differs));
    let text = if *json {
        comparison::json(plane.mode, &shown, |family, one| as_json(family, connection, one))
    } else {
        comparison::text(plane.mode, &shown, |one| text(connection, one))
    };
    Ok(Comparison { text, differs })
}

fn answers(
    engine: &mut dyn Inspector,
    delta: Delta,
    (packet, expected): (&Packet, Verdict),
    services: &[&ServiceState],
) -> Result<Answers, CommitError> {
    engine.offer(delta);
    let mut traced = None;
    engine.trace(&mut |tracer| traced = Some(tracer.trace(packet, &Way::recorded())))?;
    let traced = traced.ok_or_else(|| CommitError::Unusable(io::Error::other("the engine has traced nothing")))?;
    let repair = if traced.verdict == expected { None } else { Some(Repair::of(engine.plan()?, packet, services)) };
    Ok(Answers { traced, expected, repair })
}

// === impl Repair ===

impl Repair {
    fn of(mut plan: Plan, packet: &Packet, services: &[&ServiceState]) -> Self {
        let all = plan.len();
        let at = [FrontendAddr::Vip(packet.destination, packet.port), FrontendAddr::NodePort(packet.port)];
        let is_there = |state: &&&ServiceState| {
            state.ports.iter().flat_map(|port| &port.frontends).any(|frontend| at.contains(&frontend.at))
        };
        let names = services.iter().filter(is_there).map(|state| UnitId::Service(state.name.clone()));
        let mut here = Batch { delete: plan.unwanted, ..Batch::default() };
        for id in [UnitId::Base].into_iter().chain(names) {
            let Batch { create, replace, delete } = plan.units.remove(&id).unwrap_or_default();
            here.create.extend(create);
            here.replace.extend(replace);
            here.delete.extend(delete);
        }
        let elsewhere = all - here.len();
        Self { here, elsewhere }
    }

    fn text(&self) -> String {
        if self.here.is_empty() && self.elsewhere == 0 {
            return "a run would change nothing: its own objects contradict the model, which is a fault of this program\n"
                .to_owned();
        }
        let mut text = comparison::operations(&self.here, "a run would ", OPERATIONS);
        if self.elsewhere > 0 {
            text += &format!("a run would change {} objects of other Services: see kube-proxy plan\n", self.elsewhere);
        }
        text
    }
}

// === impl Answers ===

impl Answers {
    fn differs(&self) -> bool {
        self.repair.is_some()
    }
}

/// For people: both verdicts, the repair, and the way.
fn text(connection: &Connection, answers: &Answers) -> String {
    let Answers { traced, expected, repair } = answers;
    let mut text = format!("{connection}: {}\n", traced.verdict);
    match repair {
        None => text += "the model decides the same\n",
        Some(repair) => text += &format!("the model decides otherwise: {expected}\n{}", repair.text()),
    }
    let mut before: &[Step] = &[];
    for (index, (way, end)) in traced.ways.iter().take(WAYS).enumerate() {
        let steps = way.steps();
        let shared = steps.iter().zip(before).take_while(|(one, other)| one == other).count();
        if index > 0 {
            text += "or by another choice:\n";
        }
        for Step { depth, text: line } in steps.iter().skip(shared) {
            text += &format!("{}{line}\n", INDENT.repeat(depth + 1));
        }
        text += &format!("{INDENT}=> {end}\n");
        before = steps;
    }
    let more = traced.ways.len().saturating_sub(WAYS);
    text + &if more == 0 { String::new() } else { format!("and {more} more choices\n") }
}

/// For programs.
fn as_json(family: &str, connection: &Connection, answers: &Answers) -> Value {
    let Answers { traced, expected, repair } = answers;
    let step = |step: &Step| json!({"depth": step.depth, "text": step.text});
    let way = |(way, end): &(Way, Verdict)| json!({"steps": way.steps().iter().map(step).collect::<Vec<_>>(), "end": end.to_string()});
    let repair = repair.as_ref().map(|Repair { here: Batch { create, replace, delete }, elsewhere }| {
        json!({"create": create, "replace": replace, "delete": delete, "elsewhere": elsewhere})
    });
    json!({
        "family": family,
        "connection": connection.to_string(),
        "actual": traced.verdict.to_string(),
        "expected": expected.to_string(),
        "repair": repair,
        "ways": traced.ways.iter().map(way).collect::<Vec<_>>(),
    })
}
