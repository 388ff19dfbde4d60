//! The text of a comparison, and its JSON.

use std::net::SocketAddr;

use ferry_api::object::ObjectName;
use ferry_model::Packet;
use ferry_plane::Batch;
use serde_json::{Value, json};

use super::{Compared, Difference, Differing};
use crate::inspect::comparison::{self, TextLines};

/// Services that are printed for people.
const SERVICES: usize = 20;
/// Operations of a Service that are printed for people.
const OPERATIONS: usize = 5;

/// One family for people.
pub(super) fn lines(compared: &Compared) -> TextLines {
    let mut lines = TextLines::default();
    lines.line(&summary(compared), !compared.differing.is_empty());
    shared(compared, &mut lines);
    services(compared, &mut lines);
    lines
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
fn shared(Compared { shared, missing_container, .. }: &Compared, lines: &mut TextLines) {
    let Batch { create, replace, delete } = shared;
    if let Some(container) = missing_container {
        lines.problem(&format!(
            "  {container} is missing: another program has removed it, or no run in this mode has made it"
        ));
    } else if !shared.is_empty() {
        let [create, replace, delete] = [create, replace, delete].map(Vec::len);
        let numbers = format!("{create} to create, {replace} to replace, {delete} to delete");
        lines.problem(&format!("  what all Services share: {numbers}"));
        lines.add(&comparison::operations(shared, "    a run would ", OPERATIONS));
    }
}

fn services(compared: &Compared, lines: &mut TextLines) {
    for (name, Differing { packets, examples, repair }) in compared.differing.iter().take(SERVICES) {
        lines.problem(&format!("  service {name}: {packets} packets"));
        for difference in examples {
            let Difference { packet, actual, expected } = difference;
            lines.add(&format!("    {}: {actual}; should: {expected}", connection(packet)));
        }
        lines.add(&repairs(repair));
    }
    let more = compared.differing.len().saturating_sub(SERVICES);
    if more > 0 {
        lines.problem(&format!("  and {more} more Services"));
    }
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
    let Compared { services, packets, differing, shared: Batch { create, replace, delete }, missing_container } =
        compared;
    let differing: Vec<Value> = differing.iter().map(service).collect();
    let shared = json!({"missing": missing_container, "create": create, "replace": replace, "delete": delete});
    json!({"family": family, "services": services, "packets": packets, "shared": shared, "differing": differing})
}
