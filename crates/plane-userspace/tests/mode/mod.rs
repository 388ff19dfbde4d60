//! The userspace mode, as the shared tests of all modes use it.

use ferry_api::object::Family;
use ferry_conformance::{Mode, neighbours};
use ferry_plane_userspace::redirect::{Relaying, UserspaceKey, UserspaceObject, render};
use ferry_ruleset::table::TableKey;

pub(crate) enum ThisMode {}

impl Mode for ThisMode {
    type Compiler = Relaying;
    const NAME: &'static str = "userspace";
    const GOLDEN: &'static str = "want.userspace";

    fn compiler(family: Family, _localhost: bool) -> Relaying {
        Relaying::new(family)
    }

    fn text(family: Family, objects: &[UserspaceObject]) -> String {
        without_empty_sets(&render::ruleset(family, objects))
    }

    fn is_leaf(key: &UserspaceKey) -> bool {
        matches!(key, UserspaceKey::Table(TableKey::Element(_)) | UserspaceKey::Route(..))
    }

    /// A route leads to the service port of its neighbour.
    fn spoiled(objects: &[UserspaceObject], index: usize) -> Vec<UserspaceObject> {
        let routes: Vec<_> = objects
            .iter()
            .filter_map(|object| {
                if let UserspaceObject::Route(scope, at, port) = object {
                    Some(((*scope, *at), port.clone()))
                } else {
                    None
                }
            })
            .collect();
        let Some([((scope, at), _), (_, port)]) = neighbours(&routes, index) else { return Vec::new() };
        vec![UserspaceObject::Route(*scope, *at, port.clone())]
    }
}

/// Leaves out sets and maps without elements: they are the same in every case, and the tests of this crate's base cover them.
fn without_empty_sets(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    for line in text.lines() {
        let opens = line.starts_with("\tset ") || line.starts_with("\tmap ");
        if !opens && block.is_empty() {
            kept.push(line);
            continue;
        }
        block.push(line);
        if line == "\t}" {
            if block.iter().any(|line| line.contains("elements")) {
                kept.append(&mut block);
            } else {
                kept.pop();
                block.clear();
            }
        }
    }
    kept.join("\n") + "\n"
}
