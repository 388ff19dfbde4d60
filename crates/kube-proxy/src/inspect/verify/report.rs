//! The text of a comparison, and its JSON.

use std::net::SocketAddr;

use ferry_api::object::ObjectName;
use ferry_kernel::text::escaped;
use ferry_model::Packet;
use ferry_plane::Batch;
use serde_json::{Value, json};

use super::{Compared, Difference, Differing};
use crate::inspect::comparison;

/// Services that are printed for people.
const SERVICES: usize = 20;
/// Operations of a Service that are printed for people.
const OPERATIONS: usize = 5;
/// The text of a table of nf_tables, up to its name.
const TABLE: &str = "table ";

/// The text of one family for people.
pub(super) fn text(compared: &Compared) -> String {
    format!("{}\n{}{}", summary(compared), shared(&compared.shared), services(compared))
}

fn summary(compared: &Compared) -> String {
    let Compared { services, packets, differing, .. } = compared;
    let differ: usize = differing.values().map(|one| one.packets).sum();
    if differ == 0 {
        format!("all {packets} packets to {services} Services meet the verdict that they should")
    } else {
        format!("{differ} of {packets} packets to {services} Services don't meet the verdict that they should")
    }
}

/// The repair of the objects that all Services share, which comes first: without them each Service differs.
fn shared(repair: &Batch<String>) -> String {
    let Batch { create, replace, delete } = repair;
    if let Some(table) = create.iter().find_map(|object| object.strip_prefix(TABLE)?.split(' ').next()) {
        let table = escaped(table);
        return format!(
            "  table {table} is missing: another program has removed it, or no run in this mode has made it\n"
        );
    }
    if repair.is_empty() {
        return String::new();
    }
    let [create, replace, delete] = [create, replace, delete].map(Vec::len);
    let numbers = format!("{create} to create, {replace} to replace, {delete} to delete");
    let operations = comparison::operations(repair, "    a run would ", OPERATIONS);
    format!("  what all Services share: {numbers}\n{operations}")
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
    if repair.is_empty() {
        return "    none of its own objects differs: see kube-proxy plan for those of all Services\n".to_owned();
    }
    comparison::operations(repair, "    a run would ", OPERATIONS)
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

/// One family for programs.
pub(super) fn json(family: &str, compared: &Compared) -> Value {
    let example = |difference: &Difference| {
        json!({
            "connection": connection(&difference.packet),
            "actual": difference.actual.to_string(),
            "expected": difference.expected.to_string(),
        })
    };
    let service = |(name, one): (&ObjectName, &Differing)| {
        let Batch { create, replace, delete } = &one.repair;
        json!({
            "service": name.to_string(),
            "packets": one.packets,
            "examples": one.examples.iter().map(example).collect::<Vec<_>>(),
            "create": create,
            "replace": replace,
            "delete": delete,
        })
    };
    let Compared { services, packets, differing, .. } = compared;
    let differing: Vec<Value> = differing.iter().map(service).collect();
    json!({"family": family, "services": services, "packets": packets, "differing": differing})
}
