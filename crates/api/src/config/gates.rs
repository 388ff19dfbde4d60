//! Feature gates: which names mean something to a kube-proxy, and which can no longer be changed.

use std::collections::BTreeMap;

use super::{DecodeError, KubeProxyConfiguration};

/// Maturity of a feature gate in upstream 1.36.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// may be switched without comment
    Open,
    /// generally available: may be switched still, with a warning
    Stable,
    /// generally available and fixed at this value
    Locked(bool),
}

/// The gates that change what a kube-proxy does, and the two that switch groups of them.
const GATES: &[(&str, Stage)] = &[
    ("AllAlpha", Stage::Open),
    ("AllBeta", Stage::Open),
    ("AllowServiceExternalIPs", Stage::Stable),
    ("ComponentFlagz", Stage::Open),
    ("ComponentSLIs", Stage::Open),
    ("ComponentStatusz", Stage::Open),
    ("ContextualLogging", Stage::Open),
    ("DisableNodeKubeProxyVersion", Stage::Locked(true)),
    ("LoggingAlphaOptions", Stage::Open),
    ("LoggingBetaOptions", Stage::Open),
    ("MultiCIDRServiceAllocator", Stage::Locked(true)),
    ("NFTablesProxyMode", Stage::Locked(true)),
    ("NativeHistograms", Stage::Open),
    ("PreferSameTrafficDistribution", Stage::Locked(true)),
    ("WatchListClient", Stage::Open),
    ("WinDSR", Stage::Locked(true)),
    ("WinOverlay", Stage::Locked(true)),
];

impl KubeProxyConfiguration {
    /// Looks at the feature gates where they didn't come from a file, which [`decode()`](super::decode()) has done for
    /// its own: what there is to warn of, or the first gate that can't be set to this value any more.
    pub fn check_feature_gates(&self) -> Result<Vec<String>, DecodeError> {
        check(&self.feature_gates)
    }
}

/// Looks at the gates of a configuration, in the order of their names: the warnings, or the first one that is locked to the
/// other value. A name that means nothing here is only a warning (upstream ends): files that are in use carry gates of
/// long ago.
pub(super) fn check(gates: &BTreeMap<String, bool>) -> Result<Vec<String>, DecodeError> {
    let mut warnings = Vec::new();
    for (name, &value) in gates {
        let known = GATES.iter().find(|(known, _)| known == name).map(|(_, stage)| *stage);
        match known {
            None => warnings.push(format!("unrecognized feature gate: {name} (ignored)")),
            Some(Stage::Open) => {}
            Some(Stage::Locked(locked)) if locked != value => {
                return Err(DecodeError::Gate { name: name.clone(), value, locked });
            }
            Some(Stage::Stable | Stage::Locked(_)) => warnings
                .push(format!("Setting GA feature gate {name}={value}. It will be removed in a future release.")),
        }
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_unique() {
        assert!(GATES.is_sorted_by(|a, b| a.0 < b.0));
    }
}
