//! Prints what a mode would have in the kernel, as text that the tools of its subsystems load.

use anyhow::{Context as _, bail};
use ferry_api::object::ObjectName;
use ferry_plane::{Delta, UnitId};
use serde_json::json;

use super::desired::{Desired, InspectedNode, desired};
use super::objects::ListedObjects;
use crate::planes::{Plane, RenderedPart, Rendering};

/// The inputs of a rendering.
#[derive(Clone, Debug)]
pub struct RenderRequest<'a> {
    /// the node, and the mode
    pub node: InspectedNode<'a>,
    /// this Service alone
    pub service: Option<ObjectName>,
    /// this part alone, without a heading
    pub part: Option<&'a str>,
    /// as JSON, whose schema is that of docs/cli.md
    pub json: bool,
}

/// The version of the JSON schema.
const VERSION: u32 = 1;

/// The text of these objects. The same objects, settings and addresses have the same text on every machine.
///
/// # Errors
/// If this build lacks the mode, the mode the part, or the objects the Service or what [`desired`] needs.
pub fn render(objects: ListedObjects, request: &RenderRequest<'_>) -> anyhow::Result<String> {
    let RenderRequest { node, service, part, json } = request;
    let config = node.config;
    let mode = config.configured_mode();
    let offline = Plane::named(mode)?.offline(config);
    let mut desired = desired(objects, node, offline.profile)?;
    if let Some(name) = service {
        desired.families.iter_mut().for_each(|(_, delta)| keep_service(delta, name));
        check_service(name, &desired)?;
    }
    let mut parts = (offline.render)(&Rendering { families: &desired.families, config });
    if let Some(wanted) = part {
        let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
        let names = names.join(", ");
        parts.retain(|part| part.name == *wanted);
        let part = parts.first().with_context(|| format!("mode {mode} has no part {wanted:?}: it has {names}"))?;
        if !json {
            return Ok(part.text.clone());
        }
    }
    Ok(if *json { as_json(mode, &parts) } else { as_text(mode, &parts) })
}

/// Leaves out all other Services; what is shared by all stays out, too.
fn keep_service(delta: &mut Delta, name: &ObjectName) {
    let kept = UnitId::Service(name.clone());
    delta.units.retain(|id, _| *id == kept);
}

fn check_service(name: &ObjectName, desired: &Desired) -> anyhow::Result<()> {
    if desired.view().store.objects(name).service.is_none() {
        bail!("no Service {name} among the objects: name it NAMESPACE/NAME");
    }
    if desired.families.iter().all(|(_, delta)| delta.units.values().all(Option::is_none)) {
        bail!("nothing of Service {name} is served: it has no cluster IP or no port, or see the lines above");
    }
    Ok(())
}

fn as_text(mode: &str, parts: &[RenderedPart]) -> String {
    let heading = |part: &RenderedPart| match part.loader {
        Some(loader) => {
            format!("# mode {mode}, part {}: `--part {}` prints what `{loader}` loads", part.name, part.name)
        }
        None => format!("# mode {mode}, part {}: held by the proxy", part.name),
    };
    let texts: Vec<String> = parts.iter().map(|part| format!("{}\n{}", heading(part), part.text)).collect();
    texts.join("\n")
}

fn as_json(mode: &str, parts: &[RenderedPart]) -> String {
    let part = |part: &RenderedPart| json!({"name": part.name, "loader": part.loader, "text": part.text});
    let parts: Vec<_> = parts.iter().map(part).collect();
    format!("{:#}\n", json!({"version": VERSION, "mode": mode, "parts": parts}))
}
