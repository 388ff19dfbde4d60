//! Checks feature gates: the gates of upstream 1.36 that affect a kube-proxy, with their maturity; some are locked.

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
    /// Checks feature gates that come from flags; [`decode()`](super::decode()) checks those of a file itself. Returns the
    /// warnings, or the first gate that is locked to the other value.
    pub fn check_feature_gates(&self) -> Result<Vec<String>, DecodeError> {
        check(&self.feature_gates)
    }
}

/// Checks the gates of a configuration in the order of their names: returns the warnings, or the first gate that is locked to
/// the other value. An unknown name is only a warning (upstream exits), since files in use contain gates of old releases.
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
