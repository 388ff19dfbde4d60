//! The text of a trace, and its JSON.

use ferry_kernel::text::escaped;
use ferry_model::Verdict;
use ferry_plane::{Batch, PathStep};
use serde_json::{Value, json};

use super::entries::ConntrackEntries;
use super::{Answers, Repair};
use crate::inspect::comparison;
use crate::inspect::connection::Connection;
use crate::platform::{ClientFlow, PacketEnd, WatchedFlow, WatchedPacket};

/// Operations of a repair that are printed for people.
const OPERATIONS: usize = 5;
/// Stale conntrack entries that are printed for people, and for programs.
const STALE: [usize; 2] = [3, 100];
/// Ways that are printed for people.
const WAYS: usize = 8;
/// Indentation of each level.
const INDENT: &str = "  ";
/// How lines about a difference begin.
const OTHERWISE: &str = "the model decides otherwise: ";
const STALE_ENTRY: &str = "stale conntrack entry: ";
/// How lines about real packets begin, and how the line about those that went on ends.
const LIVE: &str = "live: ";
const WENT_ON: &str = "met no rule of nf_tables that drops or refuses them";

/// For people: both verdicts, stale conntrack entries, the repair, the fate of real packets, and the way.
pub(super) fn text(connection: &Connection, answers: &Answers) -> String {
    let Answers { traced, expected, repair, conntrack, live, .. } = answers;
    let mut text = format!("{connection}: {}\n", traced.verdict);
    text += &match repair {
        None => "the model decides the same\n".to_owned(),
        Some(_) => format!("{OTHERWISE}{expected}\n"),
    };
    text += &conntrack.as_ref().map_or_else(String::new, |read| entries_text(connection, read));
    text += &repair.as_ref().map_or_else(String::new, repairs);
    text += &live.as_ref().map_or_else(String::new, fates);
    let mut before: &[PathStep] = &[];
    for (index, (path, end)) in traced.paths.iter().take(WAYS).enumerate() {
        let now = path.steps();
        let shared = now.iter().zip(before).take_while(|(one, other)| one == other).count();
        if index > 0 {
            text += "or by another choice:\n";
        }
        text += &now.iter().skip(shared).map(line).collect::<String>();
        text += &format!("{INDENT}=> {end}\n");
        before = now;
    }
    let more = traced.paths.len().saturating_sub(WAYS);
    if more > 0 {
        text += &format!("and {more} more choices\n");
    }
    text + &live.as_ref().map_or_else(String::new, packets)
}

/// True for a line of the text that makes the exit code that of a difference.
pub(super) fn is_problem(answers: &Answers, line: &str) -> bool {
    let is_unmet = || answers.live.as_ref().is_some_and(|live| !answers.is_met(live));
    line.starts_with(OTHERWISE)
        || line.starts_with(STALE_ENTRY)
        || (line.starts_with(LIVE) && !line.ends_with(WENT_ON) && is_unmet())
}

fn line(PathStep { depth, text }: &PathStep) -> String {
    format!("{}{}\n", INDENT.repeat(depth + 1), escaped(text))
}

/// The operations by which a run would repair what differs.
fn repairs(Repair { here, elsewhere }: &Repair) -> String {
    if here.is_empty() && *elsewhere == 0 {
        return "a run would change nothing: its own objects contradict the model, which is a fault of this program\n"
            .to_owned();
    }
    let mut text = comparison::operations(here, "a run would ", OPERATIONS);
    if *elsewhere > 0 {
        text += &format!("a run would change {elsewhere} other objects: see kube-proxy plan\n");
    }
    text
}

/// The client's conntrack entries, stale ones first.
fn entries_text(connection: &Connection, read: &Result<ConntrackEntries, String>) -> String {
    let ConntrackEntries { stale, serving, other } = match read {
        Ok(entries) => entries,
        Err(error) => return format!("reading the conntrack table failed, stale entries are unknown: {error}\n"),
    };
    let [printed, _] = STALE;
    let mut text: String = stale.iter().take(printed).map(|of_client| stale_text(connection, of_client)).collect();
    if stale.len() > printed {
        text += &format!("and {} more stale conntrack entries of this client\n", stale.len() - printed);
    }
    if serving + other > 0 {
        text +=
            &format!("conntrack entries of this client: {serving} to endpoints of new connections, {other} others\n");
    }
    text
}

fn stale_text(connection: &Connection, ClientFlow { client_port, flow }: &ClientFlow) -> String {
    let leads_to = if flow.is_translated() {
        format!("{}, which is no endpoint here", flow.answers_from)
    } else {
        "no endpoint, since it is older than the rules".to_owned()
    };
    let (client, to) = (connection.client, connection.to);
    let deletion = format!(
        "conntrack -D -p {} -s {client} -d {} --sport {client_port} --dport {}",
        to.protocol.to_string().to_lowercase(),
        to.at.ip(),
        to.at.port()
    );
    format!(
        "{STALE_ENTRY}the flow from port {client_port} leads to {leads_to}; no rule applies to its packets until the \
         entry is deleted: {deletion}\n"
    )
}

/// Where real packets ended, one line for each place.
fn fates(live: &WatchedFlow) -> String {
    if live.packets.is_empty() {
        return format!("{LIVE}no such packet has come; over TCP and SCTP only those that open a connection count\n");
    }
    let mut places: Vec<(String, usize)> = Vec::new();
    for packet in &live.packets {
        let place = match &packet.fate {
            PacketEnd::WentOn => WENT_ON.to_owned(),
            PacketEnd::Ended { place, by } => escaped(&format!("ended in {place}, by {by}")),
        };
        match places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, count)) => *count += 1,
            None => places.push((place, 1)),
        }
    }
    let all = live.packets.len();
    let mut text: String =
        places.iter().map(|(place, count)| format!("{LIVE}{count} of {all} packets {place}\n")).collect();
    if live.lost {
        text += &format!("{LIVE}some reports were lost, since there were too many\n");
    }
    text
}

/// The ways of real packets.
fn packets(live: &WatchedFlow) -> String {
    let one = |(index, packet): (usize, &WatchedPacket)| {
        let path: String = packet.path.steps().iter().map(line).collect();
        format!("live, packet {}:\n{path}", index + 1)
    };
    live.packets.iter().enumerate().map(one).collect()
}

/// For programs.
pub(super) fn json(family: &str, connection: &Connection, answers: &Answers) -> Value {
    let Answers { traced, expected, repair, conntrack, live, .. } = answers;
    let repair = repair.as_ref().map(|Repair { here: Batch { create, replace, delete }, elsewhere }| {
        json!({"create": create, "replace": replace, "delete": delete, "elsewhere": elsewhere})
    });
    let path = |(path, end): &(ferry_plane::PacketPath, Verdict)| json!({"steps": steps(path.steps()), "end": end.to_string()});
    json!({
        "family": family,
        "connection": connection.to_string(),
        "actual": traced.verdict.to_string(),
        "expected": expected.to_string(),
        "repair": repair,
        "ways": traced.paths.iter().map(path).collect::<Vec<_>>(),
        "conntrack": conntrack.as_ref().map(entries_json),
        "live": live.as_ref().map(live_json),
    })
}

fn entries_json(read: &Result<ConntrackEntries, String>) -> Value {
    let ConntrackEntries { stale, serving, other } = match read {
        Ok(entries) => entries,
        Err(error) => return json!({"error": error}),
    };
    let [_, listed] = STALE;
    let one = |ClientFlow { client_port, flow }: &ClientFlow| json!({"clientPort": client_port, "answersFrom": flow.answers_from.to_string()});
    let first: Vec<Value> = stale.iter().take(listed).map(one).collect();
    json!({"stale": stale.len(), "firstStale": first, "serving": serving, "other": other})
}

fn steps(steps: &[PathStep]) -> Vec<Value> {
    steps.iter().map(|PathStep { depth, text }| json!({"depth": depth, "text": text})).collect()
}

fn live_json(live: &WatchedFlow) -> Value {
    let packet = |packet: &WatchedPacket| {
        let ended = match &packet.fate {
            PacketEnd::WentOn => Value::Null,
            PacketEnd::Ended { place, by } => json!({"place": place, "by": by}),
        };
        json!({"steps": steps(packet.path.steps()), "ended": ended})
    };
    json!({"packets": live.packets.iter().map(packet).collect::<Vec<_>>(), "lost": live.lost})
}
