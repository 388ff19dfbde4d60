//! Prints what a run would change in this machine's kernel now, Service by Service.

use ferry_api::object::Family;
use ferry_plane::{Batch, Plan, UnitId};
use serde_json::{Value, json};

use super::comparison::{self, Comparison, TextLines};
use super::desired::{InspectedNode, desired};
use super::engines::each_family;
use super::objects::ListedObjects;
use crate::planes::Plane;

/// The inputs of a plan.
#[derive(Clone, Debug)]
pub struct PlanRequest<'a> {
    /// the node, and the mode
    pub node: InspectedNode<'a>,
    /// as JSON, whose schema is that of docs/cli.md
    pub json: bool,
    /// with colours of a terminal
    pub colours: bool,
}

/// Operations of one unit that are printed for people.
const LISTED: usize = 20;

/// Compares these objects with the kernel. Nothing is changed, and no thread started.
///
/// # Errors
/// If this build lacks the mode, the mode can't be planned or used here for any family, or the objects lack what [`desired`] needs.
pub fn plan(objects: ListedObjects, request: &PlanRequest<'_>) -> anyhow::Result<Comparison> {
    let PlanRequest { node, json, colours } = request;
    let mode = node.config.configured_mode();
    let plane = Plane::named(mode)?;
    let desired = desired(objects, node, plane.offline(node.config).profile)?;
    let plans = each_family(&plane, &Family::ALL, node, &desired, |_, engine, delta| {
        engine.offer(delta);
        engine.plan()
    })?;
    let differs = plans.iter().any(|(_, plan)| plan.as_ref().is_ok_and(|plan| !plan.is_empty()));
    let text =
        if *json { comparison::json(mode, &plans, as_json) } else { comparison::text(mode, &plans, *colours, lines) };
    Ok(Comparison { text, differs, failed: comparison::failed(&plans) })
}

/// The numbers of changes, and of equal and differing Services.
fn summary(plan: &Plan) -> String {
    let services = || plan.units.iter().filter(|(id, _)| matches!(id, UnitId::Service(_)));
    let (all, differing) = (services().count(), services().filter(|(_, operations)| !operations.is_empty()).count());
    if plan.is_empty() {
        return format!("nothing to change, {all} Services equal");
    }
    let changes = if plan.len() == 1 { "change" } else { "changes" };
    format!("{} {changes}: {} Services equal, {differing} differ", plan.len(), all - differing)
}

/// One family for people.
fn lines(plan: &Plan) -> TextLines {
    let mut lines = TextLines::default();
    lines.line(&summary(plan), !plan.is_empty());
    for (id, operations) in plan.units.iter().filter(|(_, operations)| !operations.is_empty()) {
        let Batch { create, replace, delete } = operations;
        let [create, replace, delete] = [create, replace, delete].map(Vec::len);
        lines.problem(&format!("  {id}: {create} to create, {replace} to replace, {delete} to delete"));
        lines.add(&comparison::operations(operations, "    ", LISTED));
    }
    if !plan.unwanted.is_empty() {
        lines.problem(&format!("  of no Service any more: {} to delete", plan.unwanted.len()));
        let unwanted = Batch { delete: plan.unwanted.clone(), ..Batch::default() };
        lines.add(&comparison::operations(&unwanted, "    ", LISTED));
    }
    lines
}

fn as_json(family: &str, plan: &Plan) -> Value {
    let unit = |(id, operations): (&UnitId, &Batch<String>)| {
        let Batch { create, replace, delete } = operations;
        json!({"unit": id.to_string(), "create": create, "replace": replace, "delete": delete})
    };
    let units: Vec<Value> = plan.units.iter().map(unit).collect();
    json!({"family": family, "units": units, "unwanted": plan.unwanted})
}
