//! Finds the place of an invalid value in its file: errors of validation have upstream's names of fields, which are those of
//! Go's types.

use super::decode::parse;
use super::ferry;
use super::tree::{Node, YamlValue};
use crate::yaml;

/// Fields whose name in Go isn't the one in a file.
const RENAMED: [(&str, &str); 4] = [
    ("ProxyMode", "mode"),
    ("InterfaceName", "bridgeInterface"),
    ("InterfacePrefix", "interfaceNamePrefix"),
    ("ClusterCIDRs", "clusterCIDR"),
];

/// A field of a document.
struct DocumentField<'a> {
    /// the name of the section that it stands in; empty at the top
    section: &'a str,
    node: &'a Node,
}

/// The line and the column, from 1, of the value that an error of validation is about; `None` if the file doesn't set it, or sets
/// several that it could be.
pub(super) fn of(message: &str, text: &str) -> Option<(usize, usize)> {
    let path = message.split(": ").next()?;
    let is_own = path.starts_with(ferry::KIND);
    let mut chunks = yaml::documents(text).into_iter().enumerate();
    chunks.find_map(|(number, chunk)| {
        let root = parse(chunk).ok()?;
        let is_meant = if is_own { ferry::is_own(&root.value) } else { number == 0 };
        if is_meant { chunk.place(find(&root, path)?.referenced) } else { None }
    })
}

fn find<'a>(root: &'a Node, path: &str) -> Option<&'a Node> {
    let last = path.rsplit('.').next()?;
    let (name, index) = last.split_once('[').unwrap_or((last, ""));
    let name = RENAMED.iter().find(|(of_go, _)| *of_go == name).map_or(name, |(_, of_file)| of_file);
    let mut all = Vec::new();
    collect(root, "", name, &mut all);
    let path = path.to_ascii_lowercase();
    let fits = |found: &&DocumentField<'_>| path.contains(&found.section.to_ascii_lowercase());
    let node = match (all.iter().find(fits), &*all) {
        (Some(found), _) | (None, [found]) => found.node,
        (None, _) => return None,
    };
    let item = index.trim_end_matches(']').parse().ok().and_then(|index: usize| match &node.value {
        YamlValue::List(items) => items.get(index),
        YamlValue::Null
        | YamlValue::Bool(_)
        | YamlValue::Integer(_)
        | YamlValue::Float(_)
        | YamlValue::Text(_)
        | YamlValue::Map(_) => None,
    });
    Some(item.unwrap_or(node))
}

/// Collects the fields of this name, whatever the case of its letters: Go's names begin with a capital, and have whole words of
/// them.
fn collect<'a>(node: &'a Node, section: &'a str, name: &str, found: &mut Vec<DocumentField<'a>>) {
    let YamlValue::Map(entries) = &node.value else { return };
    for (key, node) in entries {
        if key.value.eq_ignore_ascii_case(name) {
            found.push(DocumentField { section, node });
        }
        collect(node, &key.value, name, found);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KubeProxyConfiguration, decode};

    const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    /// The errors of a file with these lines behind the head, each with its place.
    fn errors(lines: &str) -> Vec<String> {
        let text = format!("{HEAD}{lines}");
        let mut config: KubeProxyConfiguration = decode(&text).unwrap().config;
        config.apply_platform_defaults();
        config.validate().unwrap_err().placed_in(&text).messages().to_vec()
    }

    #[test]
    fn each_error_has_the_place_of_its_value() {
        for (lines, places) in [
            ("mode: odd\n", &["line 3, column 7"][..]),
            ("iptables: {masqueradeBit: 77}\n", &["line 3, column 27"]),
            ("mode: nftables\nnftables:\n  masqueradeBit: 77\n", &["line 5, column 18"]),
            ("mode: nftables\nnftables:\n  syncPeriod: -1s\n", &["line 5, column 15"; 2]),
            (
                "ipvs: {udpTimeout: 1s}\nconntrack:\n  min: -4\n  udpTimeout: -1s\n",
                &["line 5, column 8", "line 6, column 15"],
            ),
            ("nodePortAddresses:\n- 10.0.0.0/8\n- 300.0.0.0/8\n", &["line 5, column 3"]),
            ("detectLocalMode: BridgeInterface\ndetectLocal:\n  bridgeInterface: a b\n", &["line 5, column 20"]),
            ("oomScoreAdj: 4000\n", &["line 3, column 14"]),
            ("---\nkind: FerryConfiguration\napiVersion: ferry.io/v1alpha1\nsnapshot: here\n", &["line 6, column 11"]),
        ] {
            let errors = errors(lines);
            let found: Vec<&str> =
                errors.iter().filter_map(|error| Some(error.rsplit_once(" (")?.1.trim_end_matches(')'))).collect();
            assert!(places.iter().all(|place| found.contains(place)), "{lines}: {errors:?}");
            assert_eq!(errors.len(), places.len(), "{errors:?}");
        }
    }

    #[test]
    fn what_the_file_does_not_set_has_no_place() {
        // the default of one mode's period is less than the minimum that the file sets
        let errors = errors("mode: nftables\nnftables: {minSyncPeriod: 100s}\n");
        assert!(
            errors
                .iter()
                .all(|error| error.starts_with("KubeProxyConfiguration.SyncPeriod") && !error.contains("line")),
            "{errors:?}"
        );
    }
}
