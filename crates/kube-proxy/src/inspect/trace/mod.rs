//! Traces a packet through the objects that are in this machine's kernel, one by one, and compares the verdict with the model's; with
//! `--live` also with the kernel's trace of real packets.
//!
//! `entries` compares the client's conntrack entries; `report` prints.

mod entries;
mod report;

use std::io::{self, Write as _};

use anyhow::{Context as _, bail};
use ferry_api::object::Family;
use ferry_model::{FrontendAddr, Packet, ServiceState, Verdict, decide, rules_at};
use ferry_plane::{Batch, CommitError, Delta, Inspector, PacketPath, Plan, RuleTexts, Traced, UnitId};

use self::entries::ConntrackEntries;
use super::comparison::{self, Comparison};
use super::connection::Connection;
use super::desired::{InspectedNode, desired};
use super::engines::each_family;
use super::objects::ListedObjects;
use crate::planes::Plane;
use crate::platform::{self, PacketEnd, WatchLimits, WatchedFlow};

/// The inputs of a trace.
#[derive(Clone, Debug)]
pub struct TraceRequest<'a> {
    /// the node, and the mode
    pub node: InspectedNode<'a>,
    /// whose first packet is traced
    pub connection: Connection,
    /// the limits of watching real packets; `None`: none are watched
    pub live: Option<WatchLimits>,
    /// as JSON, whose schema is that of docs/cli.md
    pub json: bool,
    /// with colours of a terminal
    pub colours: bool,
}

/// The verdicts on the packet, of the objects and of the model.
#[derive(Debug)]
struct Answers {
    traced: Traced,
    expected: Verdict,
    /// what a run would change about the Services at this address, if the verdicts differ
    repair: Option<Repair>,
    /// the texts of the rules of a run
    texts: RuleTexts,
    /// the client's conntrack entries, or the reason why the table can't be read; `None` in a mode that forwards by another table
    conntrack: Option<Result<ConntrackEntries, String>>,
    /// what real packets met
    live: Option<WatchedFlow>,
}

/// The verdict of the objects in the kernel, and the repair if it differs from the model's.
struct Verdicts {
    traced: Traced,
    repair: Option<Repair>,
}

/// The operations of a run that would make the kernel's objects those of the model.
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
pub fn trace(objects: ListedObjects, request: &TraceRequest<'_>) -> anyhow::Result<Comparison> {
    let TraceRequest { node, connection, live, json, colours } = request;
    let plane = Plane::named(node.config.configured_mode())?;
    let profile = plane.offline(node.config).profile;
    let desired = desired(objects, node, profile)?;
    let view = desired.view();
    let packet = connection.packet(&desired.addresses);
    if packet.interface.is_none() && connection.interface.is_some() {
        bail!("--in: {} is an address of this machine, from which no packet comes in", connection.client);
    }
    let family = Family::of(connection.client);
    let mut shown = each_family(&plane, &[family], node, &desired, |family, engine, delta| {
        let in_family = desired.in_family(family)?;
        let services = view.concerned(&packet, &in_family);
        let expected = decide(&services, in_family.base, &packet, in_family.context, &profile);
        let Verdicts { traced, repair } = verdicts(engine, delta, (&packet, &expected), &services)?;
        let texts = if live.is_some() { engine.texts() } else { RuleTexts::new() };
        // IPVS forwards by its own connection table.
        let conntrack = (!profile.balances).then(|| {
            let rules = rules_at(&services, in_family.base, &packet, &profile);
            ConntrackEntries::read(&packet, &expected, &rules)
        });
        Ok(Answers { traced, expected, repair, texts, conntrack, live: None })
    })?;
    for one in shown.iter_mut().filter_map(|(_, one)| one.as_mut().ok()) {
        let watch = |limits: &WatchLimits| {
            announce(connection, *limits);
            platform::watch_flow(&packet, *limits, &one.texts)
        };
        one.live = live.as_ref().map(watch).transpose().context("watching packets")?;
    }
    let differs = shown.iter().any(|(_, one)| one.as_ref().is_ok_and(Answers::differs));
    let text = if *json {
        comparison::json(plane.mode, &shown, |family, one| report::json(family, connection, one))
    } else {
        comparison::text(plane.mode, &shown, *colours, |one| report::lines(connection, one))
    };
    Ok(Comparison { text, differs, failed: comparison::failed(&shown) })
}

/// Says on stderr that the client has to try now: objects of a cluster may have taken a while to come.
fn announce(connection: &Connection, limits: WatchLimits) {
    let seconds = limits.time.as_secs();
    // A closed stderr is no reason not to trace.
    let _ = writeln!(
        io::stderr(),
        "watching for up to {seconds} s: let {} connect to {} now",
        connection.client,
        connection.to
    );
}

fn verdicts(
    engine: &mut dyn Inspector,
    delta: Delta,
    (packet, expected): (&Packet, &Verdict),
    services: &[ServiceState],
) -> Result<Verdicts, CommitError> {
    engine.offer(delta);
    let mut traced = None;
    engine.trace(&mut |tracer| traced = Some(tracer.trace(packet, &PacketPath::recorded())))?;
    let traced = traced.ok_or_else(|| CommitError::Unusable(io::Error::other("the engine has traced nothing")))?;
    let repair = if traced.verdict == *expected { None } else { Some(Repair::of(engine.plan()?, packet, services)) };
    Ok(Verdicts { traced, repair })
}

// === impl Repair ===

impl Repair {
    fn of(mut plan: Plan, packet: &Packet, services: &[ServiceState]) -> Self {
        let all = plan.len();
        let node_port = packet.destination_local.then_some(FrontendAddr::NodePort(packet.port));
        let at: Vec<FrontendAddr> =
            node_port.into_iter().chain([FrontendAddr::Vip(packet.destination, packet.port)]).collect();
        let is_there = |state: &&ServiceState| {
            let ports = state.ports.iter().filter(|port| port.protocol == packet.protocol);
            ports.flat_map(|port| &port.frontends).any(|frontend| at.contains(&frontend.at))
        };
        let names = services.iter().filter(is_there).map(|state| UnitId::Service(state.name.clone()));
        let mut here = Batch::default();
        for id in [UnitId::Base].into_iter().chain(names) {
            let Batch { create, replace, delete } = plan.units.remove(&id).unwrap_or_default();
            here.create.extend(create);
            here.replace.extend(replace);
            here.delete.extend(delete);
        }
        let elsewhere = all - here.len();
        Self { here, elsewhere }
    }
}

// === impl Answers ===

impl Answers {
    fn differs(&self) -> bool {
        let has_stale =
            |read: &Result<ConntrackEntries, String>| read.as_ref().is_ok_and(|entries| !entries.stale.is_empty());
        self.repair.is_some()
            || self.conntrack.as_ref().is_some_and(has_stale)
            || self.live.as_ref().is_some_and(|live| !self.is_met(live))
    }

    /// True if packets came, and none was dropped that should go on. Who refuses a packet may not be nf_tables.
    fn is_met(&self, live: &WatchedFlow) -> bool {
        let goes_on = matches!(self.expected, Verdict::Forward(_) | Verdict::Pass);
        let all_go_on = || live.packets.iter().all(|packet| packet.fate == PacketEnd::WentOn) && !live.lost;
        !live.packets.is_empty() && (!goes_on || all_go_on())
    }
}
