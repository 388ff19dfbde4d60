//! A file with all objects, as `kubectl get services,endpointslices,nodes -A -o yaml` or `-o json` writes it: read once.

use std::path::Path;

use anyhow::{Context as _, bail};
use ferry_api::object::{Kind, KubeObject};
use ferry_model::store::Event;

use super::file::{self, Broken};

/// All kinds that a file may have.
const KINDS: [Kind; 4] = [Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice];
/// Malformed objects that an error names.
const NAMED: usize = 5;

/// The objects of the file, as complete lists. Objects of other kinds are left out.
///
/// # Errors
/// If it can't be read, or holds a malformed object; the text names file, line and object.
pub fn read(path: &Path) -> anyhow::Result<Vec<Event>> {
    let named = || format!("reading {}", path.display());
    let contents = file::read(path).map_err(|broken| anyhow::anyhow!(text(&broken))).with_context(named)?;
    if !contents.broken.is_empty() {
        let texts: Vec<String> = contents.broken.iter().take(NAMED).map(text).collect();
        bail!("{}: {} malformed objects: {}", path.display(), contents.broken.len(), texts.join("; "));
    }
    Ok(complete(contents.objects))
}

/// Events that deliver these objects as the complete lists of all kinds.
pub fn complete(objects: Vec<KubeObject>) -> Vec<Event> {
    let objects = objects.into_iter().map(Event::Upsert);
    KINDS.map(Event::Restart).into_iter().chain(objects).chain(KINDS.map(Event::Synced)).collect()
}

fn text(broken: &Broken) -> String {
    let object = broken.object.as_ref().map_or_else(String::new, |(kind, name)| format!("{kind} {name}: "));
    match (broken.line, broken.column) {
        (0, _) => format!("{object}{}", broken.message),
        (line, column) => format!("line {line}, column {column}: {object}{}", broken.message),
    }
}
