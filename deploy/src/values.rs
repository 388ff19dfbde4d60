//! The values of flags, beyond the syntax in the flag table.

use ferry_kube_proxy::cli::{FLAGS, Flag, INSPECTIONS, ValueKind};

/// What completes a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// the flag takes no separate value
    None,
    /// any text
    Free,
    /// the path of a file
    File,
    /// the path of a directory
    Directory,
    /// one of these
    OneOf(&'static [&'static str]),
}

const MODES: Values = Values::OneOf(&["iptables", "ipvs", "nftables", "userspace"]);

/// The flags whose values are not just any text.
const KNOWN: &[(&str, Values)] = &[
    ("config", Values::File),
    ("control-socket", Values::File),
    ("dump", Values::File),
    ("detect-local-mode", Values::OneOf(&["BridgeInterface", "ClusterCIDR", "InterfaceNamePrefix", "NodeCIDR"])),
    (
        "ipvs-scheduler",
        Values::OneOf(&["dh", "fo", "lblc", "lblcr", "lc", "mh", "nq", "ovf", "rr", "sed", "sh", "twos", "wlc", "wrr"]),
    ),
    ("kube-api-content-type", Values::OneOf(&["application/json", "application/vnd.kubernetes.protobuf"])),
    ("kubeconfig", Values::File),
    ("logging-format", Values::OneOf(&["json", "text"])),
    ("manifests", Values::Directory),
    ("mode", MODES),
    ("part", Values::OneOf(&["addresses", "ip6tables", "iptables", "ipvsadm", "listeners", "nft", "relay", "routes"])),
    ("proxy-mode", MODES),
    ("proxy-mode-fallback", MODES),
    ("write-config-to", Values::File),
];

/// The values of a flag.
pub fn of(flag: &Flag) -> Values {
    if matches!(flag.kind, ValueKind::Bool | ValueKind::Version) {
        return Values::None;
    }
    KNOWN.iter().find(|(name, _)| *name == flag.name).map_or(Values::Free, |(_, values)| *values)
}

/// The flags of the current release, in the order of `--help`; those that only old unit files contain are left out.
pub fn current() -> impl Iterator<Item = &'static Flag> {
    FLAGS.iter().filter(|flag| !flag.is_of_older_releases())
}

/// The flags of subcommands alone, each once.
pub fn own() -> impl Iterator<Item = &'static Flag> {
    let mut seen = std::collections::BTreeSet::new();
    INSPECTIONS.iter().flat_map(|inspected| inspected.flags).filter(move |flag| seen.insert(flag.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_a_current_flag_with_a_value() {
        for (name, values) in KNOWN {
            let flag =
                current().chain(own()).find(|flag| flag.name == *name).unwrap_or_else(|| panic!("no flag {name}"));
            assert_eq!(of(flag), *values, "{name}");
        }
    }

    #[test]
    fn old_flags_are_left_out() {
        assert!(current().any(|flag| flag.name == "config"));
        assert!(!current().any(|flag| flag.name == "skip-headers"));
    }
}
