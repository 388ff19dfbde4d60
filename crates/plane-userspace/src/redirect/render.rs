//! Renders objects as text, for people and golden files: the table as the `nft` tool prints it, with the names of listeners instead of
//! their ports, and the service ports of the relay.

use std::collections::BTreeMap;
use std::fmt::Write;

use ferry_api::object::Family;
use ferry_model::FrontendAddr;
use ferry_ruleset::table::{InTable as _, draw};

use super::object::UserspaceObject;
use crate::port::{PortId, PortSpec};

/// The table and the relay of one family. Objects may come in any order; duplicates are printed once.
pub fn ruleset(family: Family, objects: &[UserspaceObject]) -> String {
    let mut text = draw(family, objects.iter().filter_map(UserspaceObject::in_table));
    let mut ports: BTreeMap<&PortId, &PortSpec> = BTreeMap::new();
    let mut routes: BTreeMap<&PortId, Vec<&FrontendAddr>> = BTreeMap::new();
    for object in objects {
        match object {
            UserspaceObject::Port(id, spec) => drop(ports.insert(id, spec)),
            UserspaceObject::Route(_, at, id) => routes.entry(id).or_default().push(at),
            UserspaceObject::Listener(_) | UserspaceObject::Table(_) => {}
        }
    }
    for (id, spec) in &ports {
        // Writing to a String can't fail.
        let _ = writeln!(text, "\n{id}{spec}");
        let at = routes.get_mut(id).map(std::mem::take).unwrap_or_default();
        let mut at: Vec<String> = at.into_iter().map(ToString::to_string).collect();
        at.sort_unstable();
        at.dedup();
        for at in at {
            let _ = writeln!(text, "  {at}");
        }
    }
    text
}
