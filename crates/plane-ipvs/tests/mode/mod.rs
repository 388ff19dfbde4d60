//! The ipvs mode, as the shared tests of all modes use it.

use ferry_api::object::Family;
use ferry_conformance::{Mode, neighbours};
use ferry_plane_ipvs::{Ipvs, IpvsKey, IpvsObject, Pings, render};
use ferry_ruleset::table::TableKey;

pub(crate) enum ThisMode {}

impl Mode for ThisMode {
    type Compiler = Ipvs;
    const NAME: &'static str = "ipvs";
    const GOLDEN: &'static str = "want.ipvs";

    fn compiler(family: Family, _localhost: bool) -> Ipvs {
        Ipvs::new(family, Pings::Answered)
    }

    fn text(family: Family, objects: &[IpvsObject]) -> String {
        let table = without_fixed_sets(&render::table(family, objects));
        format!("{table}\n{}\n{}", render::servers(objects), render::addresses(objects))
    }

    fn is_leaf(key: &IpvsKey) -> bool {
        matches!(key, IpvsKey::Table(TableKey::Element(_)) | IpvsKey::Server(_) | IpvsKey::Address(_))
    }

    /// A virtual server has the scheduler and the endpoints of its neighbour.
    fn spoiled(objects: &[IpvsObject], index: usize) -> Vec<IpvsObject> {
        let servers: Vec<_> = objects
            .iter()
            .filter_map(
                |object| if let IpvsObject::Server(id, server) = object { Some((*id, server.clone())) } else { None },
            )
            .collect();
        let Some([(id, _), (_, server)]) = neighbours(&servers, index) else { return Vec::new() };
        vec![IpvsObject::Server(*id, server.clone())]
    }

    fn varied(config: String, seed: u64) -> String {
        const SCHEDULERS: [&str; 4] = ["", "wlc", "sh", "mh"];
        let scheduler = usize::try_from(seed).ok().and_then(|seed| SCHEDULERS.get(seed % 4)).unwrap_or(&"");
        format!("{config}\nipvs:\n  scheduler: \"{scheduler}\"\n")
    }
}

/// Leaves out sets without elements and the one of all octets: they are the same in every case, and the tests of this crate's
/// base cover them.
fn without_fixed_sets(text: &str) -> String {
    let mut kept: Vec<String> = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    for line in text.lines() {
        let opens = line.starts_with("\tset ") || line.starts_with("\tmap ");
        if opens || !block.is_empty() {
            block.push(line);
            if line == "\t}" {
                let holds = block.iter().any(|line| line.contains("elements"));
                if holds && !block.iter().any(|line| line.contains("set same-octet")) {
                    kept.extend(block.iter().map(|line| (*line).to_owned()));
                } else {
                    kept.pop();
                }
                block.clear();
            }
        } else {
            kept.push(line.to_owned());
        }
    }
    kept.join("\n") + "\n"
}
