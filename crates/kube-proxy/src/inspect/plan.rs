//! Says what a run would change in this machine's kernel now, Service by Service.

use ferry_api::config::KubeProxyConfiguration;
use ferry_api::object::Family;
use ferry_model::Settings;
use ferry_plane::{Batch, Plan, UnitId};
use serde_json::{Value, json};

use super::desired::{DesiredSetup, LocalAddresses, desired};
use super::engines::{Shown, each_family};
use super::objects::Objects;
use crate::planes::Plane;

/// The inputs of a plan.
#[derive(Clone, Debug)]
pub struct PlanRequest<'a> {
    /// valid, with all defaults; its mode is planned
    pub config: &'a KubeProxyConfiguration,
    /// the settings of this configuration that affect traffic
    pub settings: &'a Settings,
    /// the addresses of the node's interfaces
    pub addresses: LocalAddresses,
    /// as JSON, whose schema is that of docs/cli.md
    pub json: bool,
}

/// The text of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// for people, or JSON
    pub text: String,
    /// a run would change something
    pub differs: bool,
}

/// The version of the JSON schema.
const VERSION: u32 = 1;
/// Operations of one unit that are printed for people.
const LISTED: usize = 20;

/// Compares these objects with the kernel. Nothing is changed, and no thread started.
///
/// # Errors
/// If this build lacks the mode, the mode can't be planned or used here for any family, or the objects lack what [`desired`] needs.
pub fn plan(objects: Objects, request: &PlanRequest<'_>) -> anyhow::Result<Planned> {
    let PlanRequest { config, settings, addresses, json } = request;
    let mode = config.configured_mode();
    let plane = Plane::named(mode)?;
    let setup = DesiredSetup { config, settings, profile: plane.offline(config).profile, addresses };
    let desired = desired(objects, setup)?;
    let plans = each_family(&plane, (config, settings), &desired, |_, engine, delta| {
        engine.offer(delta);
        engine.plan()
    })?;
    let differs = plans.iter().any(|(_, plan)| plan.as_ref().is_ok_and(|plan| !plan.is_empty()));
    Ok(Planned { text: if *json { as_json(mode, &plans) } else { as_text(mode, &plans) }, differs })
}

fn as_text(mode: &str, plans: &Shown<Plan>) -> String {
    let mut text = String::new();
    for (family, plan) in plans {
        match plan {
            Err(error) => text += &format!("{family} in mode {mode}: can't be planned: {error}\n"),
            Ok(plan) => text += &format!("{family} in mode {mode}: {}\n{}", summary(plan), details(plan)),
        }
    }
    text
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

fn details(plan: &Plan) -> String {
    let mut text = String::new();
    for (id, Batch { create, replace, delete }) in plan.units.iter().filter(|(_, operations)| !operations.is_empty()) {
        text +=
            &format!("  {id}: {} to create, {} to replace, {} to delete\n", create.len(), replace.len(), delete.len());
        text += &lines([("create", create), ("replace", replace), ("delete", delete)]);
    }
    if !plan.unwanted.is_empty() {
        text += &format!("  of no Service any more: {} to delete\n", plan.unwanted.len());
        text += &lines([("delete", &plan.unwanted)]);
    }
    text
}

fn lines<'a>(lists: impl IntoIterator<Item = (&'a str, &'a Vec<String>)>) -> String {
    let all: Vec<String> = lists
        .into_iter()
        .flat_map(|(op, list)| list.iter().map(move |object| format!("    {op} {object}\n")))
        .collect();
    let more = all.len().saturating_sub(LISTED);
    let more = if more == 0 { String::new() } else { format!("    and {more} more\n") };
    all.iter().take(LISTED).map(String::as_str).collect::<String>() + &more
}

fn as_json(mode: &str, plans: &Shown<Plan>) -> String {
    let unit = |(id, Batch { create, replace, delete }): (&UnitId, &Batch<String>)| json!({"unit": id.to_string(), "create": create, "replace": replace, "delete": delete});
    let family = |(family, plan): &(Family, Result<Plan, String>)| match plan {
        Err(error) => json!({"family": family.to_string(), "error": error}),
        Ok(plan) => {
            let units: Vec<Value> = plan.units.iter().map(unit).collect();
            json!({"family": family.to_string(), "units": units, "unwanted": plan.unwanted})
        }
    };
    let families: Vec<Value> = plans.iter().map(family).collect();
    format!("{:#}\n", json!({"version": VERSION, "mode": mode, "families": families}))
}
