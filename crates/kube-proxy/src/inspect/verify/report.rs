//! The text of a comparison, and its JSON.

use std::net::SocketAddr;

use ferry_api::object::Family;
use ferry_model::Packet;
use ferry_plane::Batch;
use serde_json::{Value, json};

use super::{Compared, Difference, Differing};
use crate::inspect::engines::Shown;

/// The version of the JSON schema.
const VERSION: u32 = 1;
/// Services that are printed for people.
const SERVICES: usize = 20;
/// Operations of a Service that are printed for people.
const OPERATIONS: usize = 5;

/// For people.
pub(super) fn text(mode: &str, shown: &Shown<Compared>) -> String {
    let mut text = String::new();
    for (family, compared) in shown {
        match compared {
            Err(error) => text += &format!("{family} in mode {mode}: can't be compared: {error}\n"),
            Ok(compared) => text += &format!("{family} in mode {mode}: {}\n{}", summary(compared), services(compared)),
        }
    }
    text
}

fn summary(compared: &Compared) -> String {
    let Compared { services, packets, differing } = compared;
    let differ: usize = differing.values().map(|one| one.packets).sum();
    if differ == 0 {
        format!("all {packets} packets to {services} Services meet the verdict that they should")
    } else {
        format!("{differ} of {packets} packets to {services} Services don't meet the verdict that they should")
    }
}

fn services(compared: &Compared) -> String {
    let mut text = String::new();
    for (name, Differing { packets, examples, repair }) in compared.differing.iter().take(SERVICES) {
        text += &format!("  service {name}: {packets} packets\n");
        for difference in examples {
            let Difference { packet, actual, expected } = difference;
            text += &format!("    {}: {actual}; should: {expected}\n", connection(packet));
        }
        text += &repairs(repair);
    }
    let more = compared.differing.len().saturating_sub(SERVICES);
    text + &if more == 0 { String::new() } else { format!("  and {more} more Services\n") }
}

/// The operations by which a run would repair a Service.
fn repairs(repair: &Batch<String>) -> String {
    let lists = [("create", &repair.create), ("replace", &repair.replace), ("delete", &repair.delete)];
    let all: Vec<String> = lists
        .into_iter()
        .flat_map(|(op, objects)| objects.iter().map(move |object| format!("    a run would {op} {object}\n")))
        .collect();
    let more = all.len().saturating_sub(OPERATIONS);
    let more = if more == 0 { String::new() } else { format!("    and {more} operations more\n") };
    let listed: String = all.iter().take(OPERATIONS).map(String::as_str).collect();
    if all.is_empty() {
        return "    none of its own objects differs: see kube-proxy plan for those of all Services\n".to_owned();
    }
    listed + &more
}

fn connection(packet: &Packet) -> String {
    let to = SocketAddr::new(packet.destination, packet.port);
    let through = match packet.interface.as_deref() {
        None => " (the node itself)".to_owned(),
        Some("") => String::new(),
        Some(interface) => format!(" (through {interface})"),
    };
    format!("{}{through} -> {to}/{}", packet.source, packet.protocol)
}

/// For programs.
pub(super) fn json(mode: &str, shown: &Shown<Compared>) -> String {
    let example = |difference: &Difference| {
        json!({
            "connection": connection(&difference.packet),
            "actual": difference.actual.to_string(),
            "expected": difference.expected.to_string(),
        })
    };
    let family = |(family, compared): &(Family, Result<Compared, String>)| match compared {
        Err(error) => json!({"family": family.to_string(), "error": error}),
        Ok(compared) => {
            let differing = compared.differing.iter().map(|(name, one)| {
                let Batch { create, replace, delete } = &one.repair;
                json!({
                    "service": name.to_string(),
                    "packets": one.packets,
                    "examples": one.examples.iter().map(example).collect::<Vec<_>>(),
                    "create": create,
                    "replace": replace,
                    "delete": delete,
                })
            });
            let differing: Vec<Value> = differing.collect();
            let (services, packets) = (compared.services, compared.packets);
            json!({"family": family.to_string(), "services": services, "packets": packets, "differing": differing})
        }
    };
    let families: Vec<Value> = shown.iter().map(family).collect();
    format!("{:#}\n", json!({"version": VERSION, "mode": mode, "families": families}))
}
