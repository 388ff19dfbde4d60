//! The text of a trace, and its JSON.

use ferry_kernel::text::escaped;
use ferry_model::Verdict;
use ferry_plane::{Batch, PacketPath, PathStep};
use serde_json::{Value, json};

use super::entries::ConntrackEntries;
use super::{Answers, Repair};
use crate::inspect::comparison::{self, TextLines};
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

/// For people: both verdicts, stale conntrack entries, the repair, the fate of real packets, and the way.
pub(super) fn lines(connection: &Connection, answers: &Answers) -> TextLines {
    let Answers { traced, expected, repair, conntrack, live, .. } = answers;
    let mut lines = TextLines::default();
    lines.add(&format!("{connection}: {}", traced.verdict));
    match repair {
        None => lines.add("the model decides the same"),
        Some(_) => lines.problem(&format!("the model decides otherwise: {expected}")),
    }
    if let Some(read) = conntrack {
        entries(connection, read, &mut lines);
    }
    if let Some(repair) = repair {
        lines.add(&repairs(repair));
    }
    if let Some(live) = live {
        fates(live, !answers.is_met(live), &mut lines);
    }
    ways(&traced.paths, &mut lines);
    if let Some(live) = live {
        lines.add(&packets(live));
    }
    lines
}

/// The ways of the packet, by each random choice.
fn ways(paths: &[(PacketPath, Verdict)], lines: &mut TextLines) {
    let mut before: &[PathStep] = &[];
    for (index, (path, end)) in paths.iter().take(WAYS).enumerate() {
        let now = path.steps();
        let shared = now.iter().zip(before).take_while(|(one, other)| one == other).count();
        if index > 0 {
            lines.add("or by another choice:");
        }
        lines.add(&now.iter().skip(shared).map(line).collect::<String>());
        lines.add(&format!("{INDENT}=> {end}"));
        before = now;
    }
    let more = paths.len().saturating_sub(WAYS);
    if more > 0 {
        lines.add(&format!("and {more} more choices"));
    }
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
fn entries(connection: &Connection, read: &Result<ConntrackEntries, String>, lines: &mut TextLines) {
    let ConntrackEntries { stale, serving, other } = match read {
        Ok(entries) => entries,
        Err(error) => {
            return lines.add(&format!("reading the conntrack table failed, stale entries are unknown: {error}"));
        }
    };
    let [printed, _] = STALE;
    for of_client in stale.iter().take(printed) {
        lines.problem(&stale_text(connection, of_client));
    }
    if stale.len() > printed {
        lines.add(&format!("and {} more stale conntrack entries of this client", stale.len() - printed));
    }
    if serving + other > 0 {
        lines.add(&format!(
            "conntrack entries of this client: {serving} to endpoints of new connections, {other} others"
        ));
    }
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
        "stale conntrack entry: the flow from port {client_port} leads to {leads_to}; no rule applies to its packets until the entry is \
         deleted: {deletion}"
    )
}

/// Where real packets ended, one line for each place; a problem if not all went on that should.
fn fates(live: &WatchedFlow, is_problem: bool, lines: &mut TextLines) {
    if live.packets.is_empty() {
        let text = "live: no such packet has come; over TCP and SCTP only those that open a connection count";
        return lines.line(text, is_problem);
    }
    let mut places: Vec<(&PacketEnd, usize)> = Vec::new();
    for packet in &live.packets {
        match places.iter_mut().find(|(known, _)| **known == packet.fate) {
            Some((_, count)) => *count += 1,
            None => places.push((&packet.fate, 1)),
        }
    }
    let all = live.packets.len();
    for (fate, count) in places {
        let (place, went_on) = match fate {
            PacketEnd::WentOn => ("met no rule of nf_tables that drops or refuses them".to_owned(), true),
            PacketEnd::Ended { place, by } => (escaped(&format!("ended in {place}, by {by}")), false),
        };
        lines.line(&format!("live: {count} of {all} packets {place}"), is_problem && !went_on);
    }
    if live.lost {
        lines.line("live: some reports were lost, since there were too many", is_problem);
    }
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
    let path = |(path, end): &(PacketPath, Verdict)| json!({"steps": steps(path.steps()), "end": end.to_string()});
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
